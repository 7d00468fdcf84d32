"""A pickle takes no more memory than its length warrants, and one that does not ask for more is let
through."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_core.checkpoint.opcodes import UnboundedPickle, require_bounded
from llm_core.checkpoint.reader import CheckpointError, read_index

HOSTILE = {
    "LONG_BINPUT": b"r" + (1 << 24).to_bytes(4, "little"),
    "PUT": b"p16777216\n",
    "PUT with a sign": b"p+16_777_216\n",
    "BINUNICODE": b"X" + (1 << 24).to_bytes(4, "little"),
    "BINUNICODE8": b"\x8d" + (1 << 24).to_bytes(8, "little"),
    "BYTEARRAY8": b"\x96" + (1 << 24).to_bytes(8, "little"),
    "LONG4": b"\x8b" + (1 << 24).to_bytes(4, "little"),
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=30,
)


@given(VALUES, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_what_python_pickles_is_let_through_and_looked_through_to_its_end(
    value: object, protocol: int
) -> None:
    data = pickle.dumps(value, protocol)
    require_bounded(data)
    for opcode in HOSTILE.values():
        with pytest.raises(UnboundedPickle):
            require_bounded(data.removesuffix(b".") + opcode + b".")


@given(st.binary())
def test_bytes_of_any_kind_are_bounded_or_refused(data: bytes) -> None:
    try:
        require_bounded(data)
    except UnboundedPickle as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("opcode", HOSTILE)
def test_an_index_that_asks_for_much_memory_takes_none(opcode: str, tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(b"N" + HOSTILE[opcode] + b".")
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="is damaged; restore or delete the checkpoint"):
        read_index(tmp_path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1 << 20
