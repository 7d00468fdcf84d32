"""Is this word an address of a crypto currency? Written again in plain Python: the other opinion in
tests of detection."""

from __future__ import annotations

import hashlib

_BASE58 = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BECH32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_BECH32_SUMS = (1, 0x2BC830A3)
"""Bech32 (witness version 0), Bech32m (later versions)."""


def is_base58_address(text: bytes) -> bool:
    """25 bytes: version (0 or 5), 20 bytes of hash, and the first four bytes of their double
    SHA-256."""
    number = 0
    for c in text:
        digit = _BASE58.find(c)
        if digit < 0:
            return False
        number = number * 58 + digit
    if number >> 200:
        return False
    data = number.to_bytes(25, "big")
    zeros = len(text) - len(text.lstrip(b"1"))
    if data[0] not in (0, 5) or zeros != len(data) - len(data.lstrip(b"\0")):
        return False
    return hashlib.sha256(hashlib.sha256(data[:21]).digest()).digest()[:4] == data[21:]


def base58(data: bytes) -> bytes:
    number, word = int.from_bytes(data, "big"), b""
    while number:
        number, digit = divmod(number, 58)
        word = _BASE58[digit : digit + 1] + word
    return b"1" * (len(data) - len(data.lstrip(b"\0"))) + word


def bech32(symbols: list[int], version: int) -> bytes:
    """`bc1` and the symbols with the checksum of a version."""
    total = _bech32_sum([3, 3, 0, 2, 3, *symbols, *[0] * 6]) ^ _BECH32_SUMS[version]
    return (
        "bc1"
        + "".join(_BECH32[s] for s in [*symbols, *(total >> 5 * (5 - k) & 31 for k in range(6))])
    ).encode()


def is_bech32_address(text: bytes) -> bool:
    """`bc1…` of one case with a valid checksum and a program of 2 to 40 bytes."""
    word = text.decode("ascii")
    if word not in (word.lower(), word.upper()):
        return False
    symbols = [_BECH32.find(c) for c in word.lower()[3:]]
    if min(symbols, default=-1) < 0 or not 6 + 1 + 4 <= len(symbols) <= 6 + 1 + 64:
        return False
    # The human-readable part bc: high bits, a zero, low bits.
    total = _bech32_sum([3, 3, 0, 2, 3, *symbols])
    return total == _BECH32_SUMS[symbols[0] > 0]


def _bech32_sum(symbols: list[int]) -> int:
    generator = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
    total = 1
    for symbol in symbols:
        top = total >> 25
        total = (total & 0x1FFFFFF) << 5 ^ symbol
        for i in range(5):
            total ^= generator[i] if top >> i & 1 else 0
    return total


def is_ether_address(text: bytes, announced: bool) -> bool:
    """`0x` and 40 hexadecimal digits whose case is right by EIP-55; of one case only where the text
    announces an address."""
    digits = text[2:].decode("ascii")
    if digits in (digits.lower(), digits.upper()):
        # 0x000…0 and the like are numbers.
        return announced and len(set(digits)) > 4
    digest = keccak_256(digits.lower().encode()).hex()
    return all(
        c.isdigit() or c.isupper() == (int(d, 16) >= 8)
        for c, d in zip(digits, digest, strict=False)
    )


def keccak_256(data: bytes) -> bytes:
    """Keccak with a rate of 136 bytes and the original padding (Keccak reference 3.0, section 1.2),
    for short data."""
    rate = 136
    padded = bytearray(data + b"\x01" + bytes(-(len(data) + 1) % rate))
    padded[-1] |= 0x80
    lanes = [0] * 25
    for begin in range(0, len(padded), rate):
        for i in range(rate // 8):
            lanes[i] ^= int.from_bytes(padded[begin + 8 * i : begin + 8 * i + 8], "little")
        _permute(lanes)
    return b"".join(lane.to_bytes(8, "little") for lane in lanes[:4])


def _rotated(lane: int, bits: int) -> int:
    return (lane << bits | lane >> (64 - bits)) & 0xFFFFFFFFFFFFFFFF


def _permute(lanes: list[int]) -> None:
    """Keccak-f[1600] in place; lane (x, y) is at x + 5 y."""
    register = 1
    for _ in range(24):
        columns = [
            lanes[x] ^ lanes[x + 5] ^ lanes[x + 10] ^ lanes[x + 15] ^ lanes[x + 20]
            for x in range(5)
        ]
        for i in range(25):
            lanes[i] ^= columns[(i + 4) % 5] ^ _rotated(columns[(i + 1) % 5], 1)
        # Rotation and permutation of lanes along one path, the triangular numbers as offsets.
        x, y, moved = 1, 0, lanes[1]
        for t in range(24):
            x, y = y, (2 * x + 3 * y) % 5
            moved, lanes[x + 5 * y] = lanes[x + 5 * y], _rotated(moved, (t + 1) * (t + 2) // 2 % 64)
        for row in range(0, 25, 5):
            a = lanes[row : row + 5]
            for x in range(5):
                lanes[row + x] = a[x] ^ (~a[(x + 1) % 5] & a[(x + 2) % 5])
        # Round constants come from a shift register, seven steps a round.
        for j in range(7):
            lanes[0] ^= (register & 1) << ((1 << j) - 1)
            register = (register << 1) ^ (register >> 7) * 0x171
