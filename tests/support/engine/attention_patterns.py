"""Draws patterns of attention: simple ones and their sums."""

from hypothesis import strategies as st

from llm_core.model.sparse.patterns import Pattern

PATTERNS = st.one_of(
    st.just(Pattern()),
    st.builds(Pattern, window=st.integers(1, 9), num_global=st.integers(0, 3)),
    st.builds(Pattern, block=st.integers(1, 6)),
    st.builds(
        lambda block, drawn, **more: Pattern(
            block=block * bool(drawn[0]),
            blocks_before=drawn[1] * bool(block and drawn[0]),
            summary=min(drawn[2], block) * bool(drawn[0]),
            random_blocks=drawn[3] * bool(block and drawn[0]),
            seed=drawn[4] * bool(block and drawn[0] and drawn[3]),
            **more,
        ),
        block=st.integers(1, 5),
        drawn=st.tuples(*(st.integers(0, most) for most in (1, 2, 2, 2, 9))),
        window=st.integers(1, 4),
        dilation=st.integers(1, 3),
        num_global=st.integers(0, 2),
        stride=st.integers(0, 5),
    ),
)
