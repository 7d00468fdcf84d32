"""Computes the BLAKE2b hashes of many spans of bytes, eight at a time, each in a lane of the same
vectors.

BLAKE2b with 16 bytes of hash, without a key (RFC 7693; Aumasson et al. 2013), as `hashlib` gives
it. One text is a chain of blocks that wait for each other; eight texts are eight chains, and a
round of all of them costs as many instructions as one of one. A lane whose text is done takes the
next one. Cost: 0.5 ns a byte, 70 a span of up to 128.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tasks.kernels import inner
from tasks.kernels.text.addresses import load_word, pointers

HASH_WORDS = 2
"""Numbers of eight bytes in a hash."""
_LANES, _BLOCK_BYTES, _BLOCK_WORDS = 8, 128, 16
_STATE_AT, _WORDS_AT, _COUNT_AT, _LAST_AT = 0, 8 * _LANES, 24 * _LANES, 25 * _LANES
ROOM = 26 * _LANES
"""Numbers that `hash_spans` works in: states, words of a block, bytes so far, and whether the block
is the last; by lane."""
LANES_ROOM = 2 * _LANES
"""And which span each lane is at, and where in it."""
_ROUNDS = 12
_INITIAL = (
    0x6A09E667F3BCC908,
    0xBB67AE8584CAA73B,
    0x3C6EF372FE94F82B,
    0xA54FF53A5F1D36F1,
    0x510E527FADE682D1,
    0x9B05688C2B3E6C1F,
    0x1F83D9ABFB41BD6B,
    0x5BE0CD19137E2179,
)
_BEGIN = np.array(_INITIAL, np.uint64)
_BEGIN[0] ^= np.uint64(0x01010000 | 8 * HASH_WORDS)
_ORDERS = (
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
    (14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3),
    (11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4),
    (7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8),
    (9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13),
    (2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9),
    (12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11),
    (13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10),
    (6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5),
    (10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0),
)
_COLUMNS_AND_DIAGONALS = (
    *((i, 4 + i, 8 + i, 12 + i) for i in range(4)),
    *((i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4) for i in range(4)),
)


@intrinsic
def _compress(typing_context: Any, room: Any) -> Any:
    """One block more in every lane of `room`, which is where its array lies."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        lanes, number = ir.VectorType(ir.IntType(64), _LANES), ir.IntType(32)

        def place(at):  # type: ignore[no-untyped-def]
            return builder.bitcast(
                builder.gep(arguments[0], [ir.Constant(number, at)]), lanes.as_pointer()
            )

        def load(at):  # type: ignore[no-untyped-def]
            return builder.load(place(at), align=8)

        def constant(value):  # type: ignore[no-untyped-def]
            return ir.Constant(lanes, [value] * _LANES)

        def turned(value, bits):  # type: ignore[no-untyped-def]
            return builder.or_(
                builder.lshr(value, constant(bits)), builder.shl(value, constant(64 - bits))
            )

        state = [load(_STATE_AT + _LANES * i) for i in range(8)]
        words = [load(_WORDS_AT + _LANES * i) for i in range(_BLOCK_WORDS)]
        v = [*state, *map(constant, _INITIAL)]
        v[12] = builder.xor(v[12], load(_COUNT_AT))
        v[14] = builder.xor(v[14], load(_LAST_AT))
        for r in range(_ROUNDS):
            order = _ORDERS[r % len(_ORDERS)]
            for i, (a, b, c, d) in enumerate(_COLUMNS_AND_DIAGONALS):
                for word, first, second in ((order[2 * i], 32, 24), (order[2 * i + 1], 16, 63)):
                    v[a] = builder.add(builder.add(v[a], v[b]), words[word])
                    v[d] = turned(builder.xor(v[d], v[a]), first)
                    v[c] = builder.add(v[c], v[d])
                    v[b] = turned(builder.xor(v[b], v[c]), second)
        for i in range(8):
            changed = builder.xor(state[i], builder.xor(v[i], v[i + 8]))
            builder.store(changed, place(_STATE_AT + _LANES * i), align=8)
        return context.get_dummy_value()

    return types.void(room), generate


@inner
def _fill(buf, pos, size, room, lane):  # type: ignore[no-untyped-def]
    """Up to a block of bytes, and zeros, into a lane."""
    for word in range(_BLOCK_WORDS):
        value, begin = np.uint64(0), 8 * word
        if begin + 8 <= size:
            value = load_word(buf, pos + begin)
        else:
            for i in range(begin, size):
                value |= np.uint64(buf[pos + i]) << np.uint64(8 * (i - begin))
        room[_WORDS_AT + _LANES * word + lane] = value


@inner
def hash_spans(buf, spans, first, stop, room, lanes, hashes):  # type: ignore[no-untyped-def]
    """Write the hash of each span first <= i < stop, buf[spans[2 * i] : spans[2 * i + 1]], to
    hashes[HASH_WORDS * i].

    Spans that begin below 0 are passed over. `room`: ROOM numbers; `lanes`: LANES_ROOM. All are
    where arrays lie.
    """
    initial = pointers(_BEGIN)
    for lane in range(_LANES):
        lanes[lane] = -1  # the span it is at
    following, busy = first, 1
    while busy:
        busy = 0
        for lane in range(_LANES):
            if lanes[lane] < 0:
                while following < stop and spans[2 * following] < 0:
                    following += 1
                if following == stop:
                    continue
                lanes[lane], lanes[_LANES + lane] = following, spans[2 * following]
                for i in range(8):
                    room[_STATE_AT + _LANES * i + lane] = initial[i]
                room[_COUNT_AT + lane] = np.uint64(0)
                following += 1
            pos, left = lanes[_LANES + lane], spans[2 * lanes[lane] + 1] - lanes[_LANES + lane]
            size = min(left, _BLOCK_BYTES)
            _fill(buf, pos, size, room, lane)
            room[_COUNT_AT + lane] += np.uint64(size)
            room[_LAST_AT + lane] = ~np.uint64(0) if left <= _BLOCK_BYTES else np.uint64(0)
            lanes[_LANES + lane] = pos + size
            busy += 1
        if busy:
            _compress(room)
        for lane in range(_LANES):
            if lanes[lane] >= 0 and room[_LAST_AT + lane]:
                for i in range(HASH_WORDS):
                    hashes[HASH_WORDS * lanes[lane] + i] = room[_STATE_AT + _LANES * i + lane]
                lanes[lane] = -1
