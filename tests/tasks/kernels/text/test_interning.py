"""Equal ids mean equal content, also where hashes are equal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.kernels.text.interning import (
    clear_table,
    intern_pair,
    intern_span,
    make_table,
    pair_key,
    span_key,
)


def ids_of_spans(spans: Sequence[bytes], table: np.ndarray) -> list[int]:
    buf = np.frombuffer(b"".join(spans) or b"\0", np.uint8)
    known = (
        np.zeros(len(spans), np.int64),
        np.zeros(len(spans), np.int64),
        np.zeros(len(spans), np.uint64),
    )
    mask = clear_table(table, len(spans))
    ids: list[int] = []
    start = 0
    for span in spans:
        count = len(set(ids))
        key = np.uint64(span_key(buf, start, start + len(span)))
        ids.append(intern_span(buf, start, start + len(span), key, *known, count, table, mask))
        start += len(span)
    return ids


def ids_by_first_occurrence(items: Sequence[object]) -> list[int]:
    order = list(dict.fromkeys(items))
    return [order.index(item) for item in items]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.lists(
            st.binary(min_size=1, max_size=20) | st.sampled_from([b"a", b"\0a", b"the", b"x" * 9]),
            max_size=30,
        ),
        max_size=4,
    )
)
@example([[b"a", b"\0a", b"\0\0a", b"a"], [b"a"]])
def test_spans_are_numbered_by_content_whenever_a_table_is_used(
    documents: list[list[bytes]],
) -> None:
    table = make_table(30)
    for spans in documents:
        assert ids_of_spans(spans, table) == ids_by_first_occurrence(spans)


def test_spans_of_equal_hash_stay_apart() -> None:
    # The state after eight bytes is xored with the next eight, so any two beginnings can be made to
    # meet.
    mask64, seed, prime = (1 << 64) - 1, 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93

    def state_after(word: int) -> int:
        key = ((seed ^ 16 ^ word) * prime) & mask64
        return key ^ (key >> 29)

    first, other, end = (
        int.from_bytes(text, "little") for text in (b"beginnin", b"differen", b"same end")
    )
    a = b"".join(word.to_bytes(8, "little") for word in (first, end))
    b = b"".join(
        word.to_bytes(8, "little")
        for word in (other, end ^ state_after(first) ^ state_after(other))
    )
    keys = [span_key(np.frombuffer(span, np.uint8), 0, 16) for span in (a, b)]
    assert keys[0] == keys[1]
    assert ids_of_spans([a, b, a, b], make_table(4)) == [0, 1, 0, 1]


@given(st.binary(min_size=1, max_size=20), st.binary(max_size=9), st.binary(max_size=9))
def test_a_span_has_one_key_wherever_it_stands(span: bytes, before: bytes, behind: bytes) -> None:
    buf = np.frombuffer(before + span + behind, np.uint8)
    assert span_key(buf, len(before), len(before + span)) == span_key(
        np.frombuffer(span, np.uint8), 0, len(span)
    )


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**32 - 1) | st.integers(0, 3),
            st.integers(0, 2**32 - 1) | st.integers(0, 3),
        ),
        max_size=30,
    )
)
def test_pairs_are_numbered_by_content(pairs: list[tuple[int, int]]) -> None:
    table, keys = make_table(30), np.zeros(30, np.uint64)
    mask = clear_table(table, len(pairs))
    ids: list[int] = []
    for first, second in pairs:
        ids.append(
            intern_pair(np.uint64(pair_key(first, second)), keys, len(set(ids)), table, mask)
        )
    assert ids == ids_by_first_occurrence(pairs)
