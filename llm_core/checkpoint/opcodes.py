"""Looks through the opcodes of a pickle: it may not take more memory than its length warrants.

Python's unpickler keeps a table as long as the largest index that a pickle stores an object under,
so ten bytes can take 32 GB. Some lengths are believed in the same way. Runs of opcodes without
either are passed over by one regular expression, since the index of a large model has millions of
them. Bytes that are not an opcode are left to the unpickler.
"""

from __future__ import annotations

import pickletools
import re

LENGTH_BYTES = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
"""Kind of an argument → bytes of the length before it."""
PUT, BINPUT, LONG_BINPUT, STOP = b"pqr."
STORES = {PUT, BINPUT, LONG_BINPUT}
LENGTHS = {
    ord(opcode.code): LENGTH_BYTES[opcode.arg.n]
    for opcode in pickletools.opcodes
    if opcode.arg is not None and opcode.arg.n in LENGTH_BYTES
}
LINES = {"stringnl_noescape_pair": 2}


class UnboundedPickle(ValueError):
    """A pickle that asks for more memory than its bytes warrant."""


def require_bounded(data: bytes) -> None:
    """Raise UnboundedPickle unless every index and length of a pickle is within its bytes."""
    place = 0
    while True:
        found = PASSED.match(data, place)
        assert found is not None, "it matches nothing, too"
        place = found.end()
        code = data[place] if place < len(data) else STOP
        if code in STORES:
            index, place = _index(data, place)
            if index > len(data):
                raise UnboundedPickle(f"an object is stored under index {index:,}")
        elif code in LENGTHS:
            begin = place + 1 + LENGTHS[code]
            place = begin + int.from_bytes(data[place + 1 : begin], "little")
            if place > len(data):
                raise UnboundedPickle("a text is longer than its bytes")
        else:
            return


def _index(data: bytes, place: int) -> tuple[int, int]:
    """What an opcode that stores an object has as its index, and where the next one begins."""
    if data[place] != PUT:
        num_bytes = 1 if data[place] == BINPUT else 4
        end = place + 1 + num_bytes
        return int.from_bytes(data[place + 1 : end], "little"), end
    line_end = data.find(b"\n", place)
    end = len(data) if line_end < 0 else line_end
    try:
        return int(data[place + 1 : end]), end + 1
    except ValueError:
        return 0, end + 1  # the unpickler refuses it, in the same words


def _passed() -> re.Pattern[bytes]:
    """A run of opcodes whose arguments have a fixed length or are lines."""
    by_argument: dict[bytes, bytes] = {}
    for opcode in pickletools.opcodes:
        code, length = re.escape(opcode.code.encode("latin1")), opcode.arg.n if opcode.arg else 0
        if ord(opcode.code) in {*STORES, *LENGTHS, STOP}:
            continue
        lines = LINES.get(opcode.arg.name, 1) if opcode.arg else 0
        argument = rb"[^\n]*+\n" * lines if length < 0 else rb"[\0-\xff]{%d}" % length
        by_argument[argument] = by_argument.get(argument, b"") + code
    kinds = (b"[" + codes + b"]" + argument for argument, codes in by_argument.items())
    return re.compile(b"(?:" + b"|".join(kinds) + b")*+")


PASSED = _passed()
