"""Times the search for personal data in text that is made to be slow.

Two kinds of it: a few bytes again and again, of which each one makes the search look around, and
values of each type that all differ, so that nothing is known from before. Values have their check
digits where numbers have them. One document each, so that whatever is not linear shows. MB are 10^6
bytes over CPU seconds of one core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from tasks.pii.config import PiiConfig
from tasks.pii.spans import find_all_spans

REPEATED = (
    "a/",
    "a.",
    "@@",
    "((((",
    "a.b-",
    "::",
    "1 ",
    "4111 ",
    "1.1.1.1.",
    "aa@bb.cc ",
    "123-456-7890 ",
)
"""What is repeated, up to the size of the text."""
_DIGITS, _HEX = b"0123456789", b"0123456789abcdef"
_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
_WORD = _LETTERS + _LETTERS.upper() + _DIGITS


def hostile_texts(num_bytes: int) -> Iterator[tuple[str, np.ndarray]]:
    """Name and bytes (uint8, about num_bytes) of each text."""
    for pattern in REPEATED:
        yield pattern, np.frombuffer(pattern.encode() * (num_bytes // len(pattern)), np.uint8)
    rng = np.random.default_rng(0)
    for name, make in _DIFFERENT.items():
        rows = make(rng, num_bytes // 16)
        yield f"different {name}", rows[: num_bytes // rows.shape[1]].reshape(-1)


def hostile_mb_s(num_bytes: int = 16_000_000) -> dict[str, float]:
    """MB/s of the search for personal data of the default types, by text; after a first pass over a
    little of it."""
    config, speeds = PiiConfig(), {}
    for name, text in hostile_texts(num_bytes):
        for some in (text[:2_000], text):
            started = time.process_time()
            find_all_spans(some, np.array([0, len(some)], np.int64), config)
            speeds[name] = round(len(some) / 1e6 / max(1e-9, time.process_time() - started), 1)
    return speeds


def _written(rng: np.random.Generator, form: str, alphabet: bytes, count: int) -> np.ndarray:
    """Rows of the form, each `?` a letter of the alphabet."""
    rows = np.tile(np.frombuffer(form.encode(), np.uint8), (count, 1))
    places = np.flatnonzero(rows[0] == ord("?"))
    rows[:, places] = np.frombuffer(alphabet, np.uint8)[
        rng.integers(0, len(alphabet), (count, len(places)))
    ]
    return rows


def _form(form: str, alphabet: bytes = _DIGITS) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda rng, count: _written(rng, form, alphabet, count)


def _phones(form: str) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Digits that begin groups of three are 2 to 9, as in North America."""

    def make(rng: np.random.Generator, count: int) -> np.ndarray:
        rows = _written(rng, form, _DIGITS, count)
        places = np.flatnonzero(rows[0] != rows[1:].max(0)) if count > 1 else np.arange(0)
        for place in places[[0, 3]]:
            rows[:, place] = 50 + rows[:, place] % 8
        return rows

    return make


def _cards(rng: np.random.Generator, count: int) -> np.ndarray:
    rows = _written(rng, "4???????????????\n", _DIGITS, count)
    digits = rows[:, :15].astype(np.int64) - 48
    doubled = digits[:, 0::2] * 2
    total = (doubled - 9 * (doubled > 9)).sum(1) + digits[:, 1::2].sum(1)
    rows[:, 15] = 48 + -total % 10
    return rows


def _accounts(rng: np.random.Generator, count: int) -> np.ndarray:
    rows = _written(rng, "DE00??????????????????\n", _DIGITS, count)
    account = (rows[:, 4:22].astype(np.int64) - 48) @ 10 ** np.arange(17, -1, -1)
    check = 98 - (account % 97 * 10**6 + 131400) % 97  # D and E are 13 and 14
    rows[:, 2], rows[:, 3] = 48 + check // 10, 48 + check % 10
    return rows


def _tax_ids(rng: np.random.Generator, count: int) -> np.ndarray:
    rows = _written(rng, "???.???.???-??\n", _DIGITS, count)
    digits = rows[:, [0, 1, 2, 4, 5, 6, 8, 9, 10]].astype(np.int64) - 48
    first = (11 - digits @ np.arange(10, 1, -1)) % 11 % 10
    second = (11 - digits @ np.arange(11, 2, -1) - 2 * first) % 11 % 10
    rows[:, 12], rows[:, 13] = 48 + first, 48 + second
    return rows


_DIFFERENT: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "telephone numbers": _phones("???-???-????\n"),
    "international ones": _phones("+1 ???-???-????\n"),
    "numbers of any country": _form("+?????????????\n"),
    "e-mail addresses": _form("????@????.de\n", _LETTERS),
    "cards": _cards,
    "bank accounts": _accounts,
    "social security numbers": _form("1??-?1-1???\n"),
    "tax ids": _tax_ids,
    "IPv4 addresses": _form("1??.1??.1?.1?\n"),
    "IPv6 addresses": _form("2001:????:????::1???\n", _HEX),
    "MAC addresses": _form("0a:??:??:??:??:??\n", _HEX),
    "keys": _form("ghp_????????????????????????????????????\n", _WORD),
}
