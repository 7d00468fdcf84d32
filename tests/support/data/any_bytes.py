"""Bytes that may be no text, between others: what a kernel finds in them must not depend on what
stands beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

# Beginnings and inner bytes of characters without the rest, beside what all kernels look for.
PIECES = [b"ab ", b"\n\n", b"\xe4\xb8", b"\xad", b"\xf0\x9f", "数据 é -".encode(), b"</s>"]
BYTES = st.lists(st.binary(max_size=6) | st.sampled_from(PIECES), max_size=12).map(b"".join)


def assert_neighbours_do_not_matter(
    data: bytes, beside: bytes, find: Callable[[np.ndarray, np.ndarray], Any]
) -> None:
    """find: of a buffer and the begins of its three texts, what is found in the one in the
    middle."""

    def among(one: bytes, other: bytes) -> Any:
        begins = np.cumsum([0, len(one), len(data), len(other)])
        return find(np.frombuffer(one + data + other, np.uint8), begins.astype(np.int64))

    alone = among(b"", b"")
    for one, other in ((beside, b""), (b"", beside), (b"xx yy", b"\xbf\xbf\xbf"), (b"\xf0", b"a")):
        for expected, found in zip(alone, among(one, other), strict=True):
            np.testing.assert_array_equal(found, expected)
