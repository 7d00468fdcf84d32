"""Are these words addresses of a crypto currency? The checksums that their makers put in.

Bitcoin: Base58Check (four bytes of double SHA-256) and Bech32 or Bech32m (BIP 173, BIP 350).
Ethereum: EIP-55, the case of the letters signs the Keccak-256 digest of the address; where all
letters have one case there is no checksum and the text around must tell. Compiled, digests included
(FIPS 180-4; Keccak reference 3.0): words that differ all through a text are no slower than others.
Cost: one to two microseconds an address.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from tasks.kernels import inner
from tasks.kernels.pii.bytes import DIGIT, is_any
from tasks.kernels.text.addresses import pointers

_NONE = 255
_BASE58 = np.full(256, _NONE, np.uint8)
for _n, _c in enumerate(b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"):
    _BASE58[_c] = _n
_BECH32 = np.full(256, _NONE, np.uint8)
for _n, _c in enumerate(b"qpzry9x8gf2tvdw0s3jn54khce6mua7l"):
    _BECH32[_c] = _BECH32[_c - 32 if _c >= 97 else _c] = _n
_BECH32_SUM, _BECH32M_SUM = 1, 0x2BC830A3
"""Witness version 0, later versions."""
_BECH32_GENERATOR = np.array([0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3], np.int64)

_MASK = np.uint64(0xFFFFFFFF)


def _primes(count: int) -> list[int]:
    found: list[int] = []
    number = 2
    while len(found) < count:
        if all(number % prime for prime in found):
            found.append(number)
        number += 1
    return found


def _root_fraction(number: int, degree: int) -> int:
    """The first 32 bits of the fraction of a root of a prime: the constants of SHA-256."""
    root = 1 << 40
    for bit in range(39, -1, -1):
        root = (
            root + (1 << bit)
            if (root - (1 << 40) + (1 << bit)) ** degree <= number << 32 * degree
            else root
        )
    return root - (1 << 40) & 0xFFFFFFFF


_SHA_START = np.array([_root_fraction(prime, 2) for prime in _primes(8)], np.uint64)
_SHA_ROUNDS = np.array([_root_fraction(prime, 3) for prime in _primes(64)], np.uint64)


def _keccak_rounds() -> np.ndarray:
    """Round constants come from a shift register, seven steps a round."""
    constants, register = [], 1
    for _ in range(24):
        constant = 0
        for j in range(7):
            constant ^= (register & 1) << ((1 << j) - 1)
            register = (register << 1) ^ (register >> 7) * 0x171
        constants.append(constant)
    return np.array(constants, np.uint64)


def _keccak_moves() -> tuple[np.ndarray, np.ndarray]:
    """Which lane comes to each place by rotation and permutation, and how far it is turned:
    triangular numbers."""
    sources, turns, x, y = np.zeros(25, np.int64), np.zeros(25, np.uint64), 1, 0
    for t in range(24):
        lane, x, y = x + 5 * y, y, (2 * x + 3 * y) % 5
        sources[x + 5 * y], turns[x + 5 * y] = lane, (t + 1) * (t + 2) // 2 % 64
    return sources, turns


_KECCAK_ROUNDS = _keccak_rounds()
_KECCAK_SOURCES, _KECCAK_TURNS = _keccak_moves()


@numba.njit(cache=True, nogil=True, error_model="numpy")
def are_base58(v: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Which words v[rows[:, 1]:rows[:, 2]] are 25 bytes: version (0 or 5), hash, start of the
    double SHA-256 of both."""
    verdicts = np.zeros(len(rows), np.bool_)
    limbs, data, schedule, digest = (
        np.zeros(7, np.uint64),
        np.zeros(32, np.uint8),
        np.zeros(64, np.uint64),
        np.zeros(8, np.uint64),
    )
    for r in range(len(rows)):
        start, end = rows[r, 1], rows[r, 2]
        for k in range(7):
            limbs[k] = 0
        good, ones = end - start <= 35, 0
        for i in range(start, end):
            carry = np.uint64(_BASE58[v[i]])
            good &= carry < np.uint64(58)
            ones += ones == i - start and v[i] == 49
            for k in range(7):
                carry += limbs[k] * np.uint64(58)
                limbs[k] = carry & _MASK
                carry >>= np.uint64(32)
        if not good or (limbs[6] != np.uint64(0) and limbs[6] != np.uint64(5)):
            continue
        zeros = 0
        for k in range(25):
            data[k] = (limbs[(24 - k) >> 2] >> np.uint64(8 * ((24 - k) & 3))) & np.uint64(255)
            zeros += zeros == k and data[k] == 0
        if zeros != ones:
            continue
        _sha256(pointers(data), 21, pointers(schedule), pointers(digest))
        checksum = limbs[0]
        for k in range(32):
            data[k] = (digest[k >> 2] >> np.uint64(24 - 8 * (k & 3))) & np.uint64(255)
        _sha256(pointers(data), 32, pointers(schedule), pointers(digest))
        verdicts[r] = digest[0] == checksum
    return verdicts


@inner
def _turned(word: np.uint64, bits: int) -> np.uint64:
    return ((word >> np.uint64(bits)) | (word << np.uint64(32 - bits))) & _MASK


@inner
def _sha256(data: np.ndarray, size: int, w: np.ndarray, digest: np.ndarray) -> None:
    """SHA-256 of up to 55 bytes, as eight words of 32 bits. w: scratch for 64 words."""
    for k in range(16):
        w[k] = 0
    for k in range(size):
        w[k >> 2] |= np.uint64(data[k]) << np.uint64(24 - 8 * (k & 3))
    w[size >> 2] |= np.uint64(0x80) << np.uint64(24 - 8 * (size & 3))
    w[15] = 8 * size
    for k in range(16, 64):
        low = _turned(w[k - 15], 7) ^ _turned(w[k - 15], 18) ^ (w[k - 15] >> np.uint64(3))
        high = _turned(w[k - 2], 17) ^ _turned(w[k - 2], 19) ^ (w[k - 2] >> np.uint64(10))
        w[k] = (w[k - 16] + low + w[k - 7] + high) & _MASK
    a, b, c, d, e, f, g, h = (
        _SHA_START[0],
        _SHA_START[1],
        _SHA_START[2],
        _SHA_START[3],
        _SHA_START[4],
        _SHA_START[5],
        _SHA_START[6],
        _SHA_START[7],
    )
    for k in range(64):
        first = (
            h
            + (_turned(e, 6) ^ _turned(e, 11) ^ _turned(e, 25))
            + ((e & f) ^ (~e & g))
            + _SHA_ROUNDS[k]
            + w[k]
        )
        second = (_turned(a, 2) ^ _turned(a, 13) ^ _turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))
        h, g, f, e, d, c, b, a = g, f, e, (d + first) & _MASK, c, b, a, (first + second) & _MASK
    for k, word in enumerate((a, b, c, d, e, f, g, h)):
        digest[k] = (_SHA_START[k] + word) & _MASK


@numba.njit(cache=True, nogil=True, error_model="numpy")
def are_bech32(v: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Which words `bc1…` are of one case, with a valid checksum and a program of 2 to 40 bytes."""
    verdicts = np.zeros(len(rows), np.bool_)
    for r in range(len(rows)):
        start, end = rows[r, 1], rows[r, 2]
        # The human-readable part bc goes in as high bits, a zero, low bits: 3 3 0 2 3.
        total, lower, upper, good = np.int64(1), False, False, 11 <= end - start - 3 <= 71
        for k in range(-5, end - start - 3):
            symbol: Any = 3
            if k < 0:
                symbol = 0 if k == -3 else 2 if k == -2 else 3
            else:
                symbol = np.int64(_BECH32[v[start + 3 + k]])
            good &= symbol < 32
            top = total >> 25
            total = ((total & 0x1FFFFFF) << 5) ^ symbol
            for i in range(5):
                total ^= _BECH32_GENERATOR[i] * ((top >> i) & 1)
        for i in range(start, end):
            lower |= 97 <= v[i] <= 122
            upper |= 65 <= v[i] <= 90
        good &= not (lower and upper)
        verdicts[r] = good and total == (
            _BECH32_SUM if _BECH32[v[start + 3]] == 0 else _BECH32M_SUM
        )
    return verdicts


@numba.njit(cache=True, nogil=True, error_model="numpy")
def are_ether(v: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Which words, `0x` and 40 hexadecimal digits, have the case of EIP-55, or one case where the
    text announces an address.

    rows[:, 4] says whether it does. 0x000…0 and the like are numbers.
    """
    verdicts = np.zeros(len(rows), np.bool_)
    lanes, columns, moved = np.zeros(25, np.uint64), np.zeros(5, np.uint64), np.zeros(25, np.uint64)
    for r in range(len(rows)):
        start = rows[r, 1] + 2
        lower, upper, seen, different = False, False, np.int64(0), 0
        for i in range(start, start + 40):
            letter = not is_any(v[i], DIGIT)
            lower |= letter and v[i] >= 97
            upper |= letter and v[i] < 97
            bit = np.int64(1) << (
                (v[i] & 31) if v[i] >= 97 else (v[i] & 31) + 26 if letter else (v[i] & 15) + 16
            )
            different += seen & bit == 0
            seen |= bit
        if not (lower and upper):
            verdicts[r] = rows[r, 4] > 0 and different > 4
            continue
        for k in range(25):
            lanes[k] = 0
        for k in range(40):
            c = v[start + k]
            lanes[k >> 3] |= np.uint64(c if is_any(c, DIGIT) else c | 32) << np.uint64(8 * (k & 7))
        lanes[5] = 1  # the original padding, after 40 bytes and at the end of 136
        lanes[16] = np.uint64(1) << np.uint64(63)
        _permute(pointers(lanes), pointers(columns), pointers(moved))
        good = True
        for k in range(40):
            c = v[start + k]
            half = (
                lanes[k >> 4] >> np.uint64(8 * ((k >> 1) & 7) + (0 if k & 1 else 4))
            ) & np.uint64(15)
            good &= is_any(c, DIGIT) or (c < 97) == (half >= np.uint64(8))
        verdicts[r] = good
    return verdicts


@inner
def _permute(lanes: np.ndarray, columns: np.ndarray, moved: np.ndarray) -> None:
    """Keccak-f[1600] in place; lane (x, y) is at x + 5 y."""
    for n in range(24):
        for x in range(5):
            columns[x] = lanes[x] ^ lanes[x + 5] ^ lanes[x + 10] ^ lanes[x + 15] ^ lanes[x + 20]
        for x in range(5):
            after = columns[(x + 1) % 5]
            change = columns[(x + 4) % 5] ^ ((after << np.uint64(1)) | (after >> np.uint64(63)))
            for y in range(0, 25, 5):
                lanes[x + y] ^= change
        for k in range(25):
            lane, bits = lanes[_KECCAK_SOURCES[k]], _KECCAK_TURNS[k]
            moved[k] = (lane << bits) | (lane >> (-bits & np.uint64(63)))
        for y in range(0, 25, 5):
            for x in range(5):
                lanes[x + y] = moved[x + y] ^ (~moved[(x + 1) % 5 + y] & moved[(x + 2) % 5 + y])
        lanes[0] ^= _KECCAK_ROUNDS[n]
