"""Changes sound files as hostile ones are: sizes that lie, pieces that come twice, are missing or
are nested."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

NUMBERS = (
    0,
    1,
    2,
    127,
    128,
    255,
    256,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**62,
    2**63 - 1,
    2**64 - 1,
)
WIDTHS = {1: "B", 2: "H", 4: "I", 8: "Q"}
PIECES = (
    *(
        b"",
        b"\0",
        b"\n",
        b'"',
        b"\\",
        b"{",
        b"[",
        b"]",
        b"}",
        b",",
        b"=",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
    ),
    *(
        b"[" * 3000,
        b'{"a":' * 3000,
        b"9" * 5000,
        b"-1",
        b"NaN",
        b"1e999",
        b"null",
        b"\\ud800",
        b"<div>" * 3000,
        b"\r\n\r\n",
    ),
    *(
        b"WARC/1.0\r\n",
        b"Content-Length: 99999999999\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"PAR1",
        b"ARROW1",
        b"PK\x01\x02",
    ),
)
DIGITS = re.compile(rb"\d+")


class Change(NamedTuple):
    kind: int
    place: float
    """Of the length of what is changed."""
    length: int
    width: int
    number: int
    piece: bytes


def draw_changes(chooser: random.Random) -> list[Change]:
    """One to four changes of one file."""
    return [_draw_change(chooser) for _ in range(chooser.randint(1, 4))]


def _draw_change(chooser: random.Random) -> Change:
    is_of_note = chooser.random() < 0.5
    return Change(
        kind=chooser.randrange(len(_KINDS)),
        place=chooser.random(),
        length=chooser.randint(1, chooser.choice((16, 4096))),
        width=chooser.choice(tuple(WIDTHS)),
        number=chooser.choice(NUMBERS) if is_of_note else chooser.getrandbits(64),
        piece=chooser.choice((chooser.choice(PIECES), chooser.randbytes(chooser.randint(0, 12)))),
    )


def changed(data: bytes, changes: Sequence[Change]) -> bytes:
    """The bytes after all changes."""
    for change in changes:
        data = _KINDS[change.kind](data, int(change.place * len(data)), change)
    return data


def _number(data: bytes, place: int, change: Change) -> bytes:
    order = "<" if change.length % 2 else ">"
    packed = struct.pack(order + WIDTHS[change.width], change.number % (1 << 8 * change.width))
    return data[:place] + packed + data[place + len(packed) :]


def _written_number(data: bytes, place: int, change: Change) -> bytes:
    found = DIGITS.search(data, place)
    if found is None:
        return data
    number = -change.number if change.length % 3 == 0 else change.number
    return data[: found.start()] + str(number).encode() + data[found.end() :]


_KINDS: Sequence[Callable[[bytes, int, Change], bytes]] = (
    _number,
    _written_number,
    lambda data, place, change: data[:place] + change.piece + data[place:],
    lambda data, place, change: data[:place] + change.piece + data[place + len(change.piece) :],
    lambda data, place, change: data[:place] + data[place + change.length :],
    lambda data, place, change: (
        data[:place] + data[place : place + change.length] * 2 + data[place + change.length :]
    ),
    lambda data, place, change: data[:place],
)
