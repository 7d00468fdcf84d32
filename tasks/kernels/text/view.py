"""Makes one view of texts in which spellings that differ by encoding alone are equal.

A text is read as it would be typed on one keyboard: composed (NFC, Unicode Standard Annex 15),
without invisible signs (soft hyphens, joiners, variation selectors; a zero width space separates
words, and stays), with full-width letters and digits, digits of other scripts and half-width Kana
in their usual form. With `signs`, dashes, quotes and full-width signs become those of ASCII too.
Offsets of the view are mapped back to bytes of the text. Language and rules read the view without
signs; shingles and the search for personal data read it with them.

Marks that follow their letter in canonical order are composed; what NFC reorders stays. Cost: text
that is its own view is returned as it is, after one pass: eight bytes at a time in ASCII, one
look-up a character elsewhere.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numba import njit

from tasks.kernels import inlined
from tasks.kernels.text.addresses import pointers, store_word
from tasks.kernels.text.bitmaps import trailing_zeros
from tasks.kernels.text.changes import PADDING, beyond_ascii, copy_bytes, may_change
from tasks.kernels.text.vectors import BLOCK

NUM_TABLED = 0x10000
_ONE = np.uint64(1)
KEEP, DROP, REPLACE, MARK = np.uint8(0), np.uint8(1), np.uint8(2), np.uint8(3)
"""What happens to a character. A mark is composed with what stands before it, if there is a form
for both, or replaced."""
_IGNORED = (
    *(0x00AD, 0x034F, 0x061C, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180E, 0x3164, 0xFEFF, 0xFFA0),
    *range(0x180B, 0x180E),
    *range(0x200C, 0x2010),
    *range(0x202A, 0x202F),
    *range(0x2060, 0x2070),
    *range(0xFE00, 0xFE10),
)
_SIGNS = {
    "-": "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d",
    "'": "\u2018\u2019\u201a\u201b\u02bc\uff07",
    '"': "\u201c\u201d\u201e\u201f\u00ab\u00bb\uff02",
    " ": "\u3000",
    **{chr(c): chr(c + 0xFEE0) for c in b"#$%&()+./=@[]_{}~"},
}
_HANGUL, _LEADS, _VOWELS, _TAILS = 0xAC00, 0x1100, 0x1161, 0x11A7
Tables = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class View:
    """Texts in one buffer, document i in [begins[i], begins[i + 1]), and where they came from."""

    values: np.ndarray
    begins: np.ndarray
    places: np.ndarray
    """Offsets in the view where the distance to the text changes, ascending, int64."""
    ends: np.ndarray
    """Offset in the text where what stands before each place ends."""
    starts: np.ndarray
    """Offset in the text where what stands behind each place begins."""

    def original_starts(self, offsets: np.ndarray) -> np.ndarray:
        """Offsets in the text of characters that begin at these offsets of the view."""
        if not len(self.places):
            return offsets
        last = np.searchsorted(self.places, offsets, "right") - 1
        return offsets + np.where(last >= 0, (self.starts - self.places)[last], 0)

    def original_ends(self, offsets: np.ndarray) -> np.ndarray:
        """Offsets in the text where characters end that end at these offsets of the view."""
        if not len(self.places):
            return offsets
        first = np.searchsorted(self.places, offsets, "left")
        at_place = self.places[np.minimum(first, len(self.places) - 1)] == offsets
        inside = offsets + np.where(first > 0, (self.starts - self.places)[first - 1], 0)
        return np.where(at_place, self.ends[np.minimum(first, len(self.places) - 1)], inside)


def view_of(values: np.ndarray, begins: np.ndarray, signs: bool) -> View:
    """The view of documents in one buffer (uint8)."""
    # Always the same array types, read-only, so that all kernels are compiled once.
    values, begins = values.view(), np.ascontiguousarray(begins).view()
    values.flags.writeable = begins.flags.writeable = False
    tables = _tables(signs)
    none = np.zeros(0, np.int64)
    low, high = int(begins[0]), int(begins[-1])
    first = _first_change(values, low, high, tables[0])
    if first == high:
        return View(values, begins, none, none, none)
    # Each byte makes at most three, and each character two places; most texts change little.
    size, num_places = high - low, 1024 + (high - low) // 64
    while True:
        out = np.empty(size + size // 2 + 64, np.uint8)
        places = np.empty((3, num_places), np.int64)
        new_begins = np.empty(len(begins), np.int64)
        used, count = _write(values, begins, tables, first, out, new_begins, places)
        if count < 0:
            num_places *= 8
        elif used < 0:
            size *= 2
        else:
            seen = out[:used]
            seen.flags.writeable = new_begins.flags.writeable = False
            return View(seen, new_begins, *(row[:count] for row in places))


@lru_cache(maxsize=2)
def _tables(signs: bool) -> Tables:
    """What happens to each character of the first plane, the UTF-8 bytes in its place (as one
    number, the first byte lowest) and their count, and pairs that compose: sorted, first << 20 |
    second, with the composed character."""
    actions = np.zeros(NUM_TABLED, np.uint8)
    written = np.zeros(NUM_TABLED, np.uint64)
    pairs: dict[int, int] = {}
    replaced = {ord(c): to for to, several in _SIGNS.items() for c in several} if signs else {}
    for code in range(0x80, NUM_TABLED):
        char = chr(code)
        if 0xD800 <= code < 0xE000 or _HANGUL <= code < _HANGUL + 11172:
            continue
        digit = unicodedata.decimal(char, None)
        composed = unicodedata.normalize("NFC", char)
        if digit is not None:
            replaced[code] = str(digit)
        elif 0xFF21 <= code <= 0xFF5A and char.isalpha():
            replaced[code] = chr(code - 0xFEE0)
        elif 0xFF66 <= code <= 0xFF9F:
            replaced[code] = unicodedata.normalize("NFKC", char)
        elif composed != char and code not in replaced:
            replaced[code] = composed
        parts = unicodedata.normalize("NFD", char)
        if len(parts) > 1 and composed == char:
            head = unicodedata.normalize("NFC", parts[:-1])
            if len(head) == 1:
                pairs[ord(head) << 20 | ord(parts[-1])] = code
                actions[ord(parts[-1])] = MARK
    for code, text in replaced.items():
        data = text.encode()
        assert len(data) < 8
        written[code] = int.from_bytes(data, "little") | len(data) << 56
        if actions[code] != MARK:
            actions[code] = REPLACE
    actions[0xFF9E:0xFFA0] = MARK  # written as U+3099 and U+309A
    actions[_VOWELS : _VOWELS + 21] = actions[_TAILS + 1 : _TAILS + 28] = MARK
    actions[list(_IGNORED)] = DROP
    keys = np.array(sorted(pairs), np.int64)
    made = np.array([pairs[key] for key in keys.tolist()], np.int64)
    return actions, written, keys, made


@njit(cache=True, nogil=True)
def _first_change(values, low, high, actions):  # type: ignore[no-untyped-def]
    """The first byte of a character that may not stay as it is, or `high`."""
    v, table = pointers(values), pointers(actions)
    size, block = len(values), low
    while block < high:
        mask = _suspects(v, block, size)
        while mask:
            i = block + trailing_zeros(mask)
            if i >= high:
                return high
            if table[_decode(v, i, high)[0]] != KEEP:
                return i
            mask &= mask - _ONE
        block += BLOCK
    return high


@inlined
def _suspects(v, block, size):  # type: ignore[no-untyped-def]
    """Which of the bytes from `block` on begin a character that may change, of `size` bytes."""
    if block + PADDING <= size:
        return may_change(v, block) if beyond_ascii(v, block) else np.uint64(0)
    mask = np.uint64(0)
    for k in range(min(BLOCK, size - block)):
        mask |= np.uint64(v[block + k] >= 0xC0) << np.uint64(k)
    return mask


@inlined
def _decode(v, i, high):  # type: ignore[no-untyped-def]
    """Code point, 0 where it is beyond the first plane or no text, and bytes of what is at i."""
    c = np.int64(v[i])
    if c & 0xE0 == 0xC0 and i + 1 < high and v[i + 1] & 0xC0 == 0x80:
        return (c & 0x1F) << 6 | (v[i + 1] & 0x3F), 2
    if c & 0xF0 == 0xE0 and i + 2 < high and v[i + 1] & 0xC0 == 0x80 and v[i + 2] & 0xC0 == 0x80:
        code = (c & 0x0F) << 12 | (np.int64(v[i + 1]) & 0x3F) << 6 | (v[i + 2] & 0x3F)
        return code, 3
    return np.int64(0), 1


@inlined
def _composed(first, second, keys, made, num_keys):  # type: ignore[no-untyped-def]
    """The character that both make, or 0."""
    if _LEADS <= first < _LEADS + 19 and _VOWELS <= second < _VOWELS + 21:
        return _HANGUL + ((first - _LEADS) * 21 + second - _VOWELS) * 28
    tail = second - _TAILS
    if 0 < tail < 28 and _HANGUL <= first < _HANGUL + 11172 and (first - _HANGUL) % 28 == 0:
        return first + tail
    key, lo, hi = first << 20 | second, 0, num_keys
    while lo < hi:
        middle = (lo + hi) >> 1
        if keys[middle] < key:
            lo = middle + 1
        else:
            hi = middle
    return made[lo] if lo < num_keys and keys[lo] == key else 0


@njit(cache=True, nogil=True)
def _write(values, begins, tables, first, out, new_begins, places):  # type: ignore[no-untyped-def]
    """Write the view of texts that have no change before byte `first`; returns its bytes and the
    number of places, the one negative for which there is no room."""
    v, o, begin_of = pointers((values, out, begins))
    actions, written, keys, made = pointers(tables)
    num_keys, room, most, num_bytes = len(tables[2]), len(out) - 16, places.shape[1], len(values)
    at, count, block = 0, 0, first
    mask = _suspects(v, block, num_bytes)
    for d in range(len(new_begins)):
        new_begins[d] = at
        i = begin_of[d]
        high = begin_of[d + 1] if d + 1 < len(new_begins) else i
        if d == 0 and i != 0:
            count = _place(places, count, at, i, i)
        # head: the last letter, to which marks may be added, where it is in the view, and where in
        # the text. As it is in the text is what the view has from plain_at on.
        head, head_at, head_begins, plain_at = np.int64(0), at, i, at
        while i < high:
            code, action, size = np.int64(0), KEEP, 0
            place = high
            while action == KEEP:
                while not mask and block + BLOCK < high:
                    block += BLOCK
                    mask = _suspects(v, block, num_bytes)
                place = min(block + trailing_zeros(mask), high) if mask else high
                if place == high:
                    size = 0
                    break
                mask &= mask - _ONE
                code, size = _decode(v, place, high)
                action = actions[code]
            if at + place - i >= room:
                return -1, 0
            if count + 2 >= most:
                return 0, -1
            copy_bytes(o, at, v, i, place - i)
            at += place - i
            i = place + size
            if place == high:
                break
            if at > plain_at and action != REPLACE:
                head_at = at - 1
                while head_at > plain_at and o[head_at] & 0xC0 == 0x80:
                    head_at -= 1
                head, head_begins = np.int64(o[head_at]), place - (at - head_at)
                if head >= 0x80:
                    head, head_bytes = _decode(o, head_at, at)
                    head = head if head_at + head_bytes == at else np.int64(0)
            if action == DROP:
                count = _place(places, count, at, place, i)
                plain_at = at
                continue
            if action == MARK:
                second = np.int64(code)
                if second == 0xFF9E or second == 0xFF9F:
                    second = second - 0xFF9E + 0x3099
                both = _composed(head, second, keys, made, num_keys)
                if both > 0:
                    # What is composed takes the place of the letter. Its places go.
                    while count > 0 and places[0, count - 1] > head_at:
                        count -= 1
                    if count == 0 or places[0, count - 1] < head_at:
                        count = _place(places, count, head_at, head_begins, head_begins)
                    head, at = both, _put_char(o, head_at, both)
                    count = _place(places, count, at, i, i)
                    plain_at = at
                    continue
            word = written[code]
            head_at, head_begins = at, place
            if word == 0:
                head = np.int64(code)
                for k in range(size):
                    o[at + k] = v[place + k]
                at += size
                plain_at = at
                continue
            count = _place(places, count, at, place, place)
            num_written = np.int64(word >> np.uint64(56))
            store_word(o, at, word)
            head, head_bytes = np.int64(o[at]), np.int64(1)
            if num_written > 1:
                head, head_bytes = _decode(o, at, at + num_written)
            head = head if head_bytes == num_written else np.int64(0)
            at += num_written
            count = _place(places, count, at, i, i)
            plain_at = at
        # The next document begins where this one ends in the text.
        count = _place(places, count, at, i, i)
    return at, count


@inlined
def _place(places, count, at, end, start):  # type: ignore[no-untyped-def]
    """Note that what stands before `at` ends at `end` in the text, and what is behind begins at
    `start`."""
    if count > 0 and places[0, count - 1] == at:
        places[2, count - 1] = start
        return count
    places[0, count], places[1, count], places[2, count] = at, end, start
    return count + 1


@inlined
def _put_char(o: np.ndarray, at: int, code: int) -> int:
    """Write a code point from U+0080 on of the first plane; where it ends."""
    if code < 0x800:
        o[at] = 0xC0 | code >> 6
        o[at + 1] = 0x80 | code & 0x3F
        return at + 2
    o[at] = 0xE0 | code >> 12
    o[at + 1] = 0x80 | code >> 6 & 0x3F
    o[at + 2] = 0x80 | code & 0x3F
    return at + 3
