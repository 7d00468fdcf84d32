"""Draws patterns of attention: windows, blocks and global keys."""

from hypothesis import strategies as st

from llm_core.model.masks import Pattern

PATTERNS = st.one_of(
    st.just(Pattern()),
    st.builds(Pattern, window=st.integers(1, 9), num_global=st.integers(0, 3)),
    st.builds(Pattern, block=st.integers(1, 6)),
)
