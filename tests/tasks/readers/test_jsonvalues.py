"""Values that stand after each other or in arrays end where their brackets do."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.readers import jsonvalues

NEVER = re.compile(rb"(?!)")


@given(
    st.lists(
        st.one_of(
            st.text('{}[]",:\\\na1 ').map(str.encode),
            st.recursive(
                st.text('{}[]",\\\n') | st.integers(),
                lambda inner: st.lists(inner) | st.dictionaries(st.text('{}"\\'), inner),
            ).map(lambda value: json.dumps([value]).encode()),
        ),
        max_size=4,
    ),
    st.integers(1, 40),
)
def test_a_value_that_is_found_in_one_call_ends_where_its_brackets_do(
    parts: list[bytes], block_bytes: int
) -> None:
    data = b"[\n" + b",\n".join(parts)

    def found() -> list[jsonvalues.Value]:
        blocks = [data[i : i + block_bytes] for i in range(0, len(data), block_bytes)]
        return list(jsonvalues.Values(iter(blocks), 1 << 20))

    at_once = found()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonvalues, "SHALLOW", NEVER)
        assert found() == at_once
