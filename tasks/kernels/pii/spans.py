"""Finds candidates of personal data by trigger bytes and bounded look-around, over Arrow text
buffers.

A digit, `@`, `:`, `-` or `=` and every word of at least twenty letters and digits trigger a look to
both sides, never further than `rows.MAX_LOOK_BYTES`, so time is linear in the text whatever it
holds. Each trigger judges alone: candidates may overlap, and `tasks.pii.spans` resolves them. `<`,
`>` and `*` stop every look-around, so a found span that is overwritten by them acts exactly as the
replacement will.

Kinds and what is final: `tasks.definitions.pii_kinds`. What looks alike and is none is vetoed by
the judges: `emails.py`, `addresses.py`, `numbers.py`, `tokens.py`.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

from tasks.definitions import pii_kinds as kinds
from tasks.kernels import inlined, inner
from tasks.kernels.pii import numbers
from tasks.kernels.pii.addresses import ip4, ip6, mac
from tasks.kernels.pii.bytes import ALNUM, DIGIT, HEX, INNER, TOKEN, UPPER, is_any
from tasks.kernels.pii.emails import email, may_be_email
from tasks.kernels.pii.groups import DIGITS, END, SHAPE, may_begin, read_groups, value_of
from tasks.kernels.pii.labels import label_before
from tasks.kernels.pii.number_rows import is_a_decimal, is_a_place, is_in_a_formula
from tasks.kernels.pii.phones import (
    MAX_LABELLED_DIGITS,
    MAX_NATIONAL_DIGITS,
    MAX_PHONE_DIGITS,
    MIN_TOLD_DIGITS,
    NORTH_AMERICAN_DIGITS,
    NOT_OF_PHONES,
    ends_a_phone,
    follows_abbreviation,
    is_told,
    local_phone_start,
    national_phone,
    phone_start,
)
from tasks.kernels.pii.rows import ROW
from tasks.kernels.pii.secrets import assigned_secret, url_password
from tasks.kernels.pii.shapes import shape_number
from tasks.kernels.pii.tokens import (
    MAX_TOKEN_BYTES,
    MIN_TOKEN_BYTES,
    key_end,
    next_word,
    signed_key,
)
from tasks.kernels.text.addresses import pointers
from tasks.kernels.text.bitmaps import trailing_zeros
from tasks.kernels.text.vectors import BLOCK, Blocks

MAX_ROWS_OF_A_TRIGGER = 40
_TOLD_PHONE = 1 << kinds.TOLD_PHONE
_NATIONAL_PHONES = sum(1 << kind for kind in kinds.NATIONAL_PHONES)
MIN_ROOM = 1024 * ROW

_TRIGGER = np.zeros(256, np.uint8)
_TRIGGER[list(b"0123456789@:-=")] = 1


@intrinsic
def _triggers(typing_context: Any, buf: Any, pos: Any) -> Any:
    """Which of the 64 bytes at buf[pos] are triggers, as the bits of a number."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        blocks = Blocks(builder, *arguments)
        here = blocks.load(0)
        numeric = blocks.within(here, ord("0"), ord(":"))
        return blocks.bits(blocks.any_of(numeric, blocks.equal(here, *b"@-=")))

    return types.uint64(buf, types.int64), generate


@numba.njit(cache=True, nogil=True, error_model="numpy")
def find_candidates(  # type: ignore[no-untyped-def]
    values, lo, hi, scan_lo, scan_hi, wanted, phone_shapes, found, groups, letters
):
    """Candidates whose trigger is in [scan_lo, scan_hi) of each range, judged within [lo, hi).

    wanted: bits of the kinds to look for. phone_shapes: `shape_table` of national numbers' groups.
    found: int64, where rows go while there is room; at least `MIN_ROOM`. groups, letters: int64 to
    write on, `GROUP_NUMBERS` and 128 zeros. Returns a flat int64 array, `found` or a larger one,
    `ROW` numbers a candidate, of each range first the words, then the rest, in order of triggers;
    alternatives of one trigger longest first.
    """
    v, shapes, columns, counts = pointers((values, phone_shapes, groups, letters))
    # Literals would compile every judge twice, for themselves and for int64.
    count, r = np.int64(0), np.int64(0)
    while r < len(lo):
        low, high, end = lo[r], hi[r], scan_hi[r]
        if wanted & 1 << kinds.API_KEY:
            i = next_word(v, low, high, scan_lo[r] - 1, end)
            while i < high:
                full = len(found) - MAX_ROWS_OF_A_TRIGGER * ROW
                i, count = _scan_words(
                    v, low, high, i, end, wanted, r, pointers(found), count, full, counts
                )
                if i < high:
                    found = _grown(found, count)
        i = _next_trigger(v, scan_lo[r], end)
        while i < end:
            full = len(found) - MAX_ROWS_OF_A_TRIGGER * ROW
            i, count = _scan_triggers(
                v,
                low,
                high,
                i,
                end,
                wanted,
                r,
                pointers(found),
                count,
                full,
                columns,
                shapes,
                counts,
            )
            if i < end:
                found = _grown(found, count)
        r += 1
    return found[:count]


@inner
def _scan_words(v, low, high, i, stop, wanted, r, found, count, full, letters):  # type: ignore[no-untyped-def]
    """Judge long words from the one at i until none is left or `found` is full: (place of the next
    word, count)."""
    while i < high and count < full:
        end = i + MIN_TOKEN_BYTES
        while end < high and is_any(v[end], TOKEN):
            end += 1
        if end - i <= MAX_TOKEN_BYTES:
            last = key_end(v, high, i, end, letters)
            count = _put(found, count, wanted, r, i, last, kinds.API_KEY, 0)
            if i > low and (v[i - 1] == 46 or v[i - 1] == 58):
                first, last = signed_key(v, low, high, i, end)
                count = _put(found, count, wanted, r, first, last, kinds.API_KEY, 0)
        i = next_word(v, low, high, end, stop)
    return i, count


@inner
def _scan_triggers(  # type: ignore[no-untyped-def]
    v, low, high, i, stop, wanted, r, found, count, full, groups, shapes, letters
):
    """Judge triggers from the one at i until none is left or `found` is full: (place of the next
    trigger, count)."""
    while i < stop and count < full:
        c = v[i]
        if c == 64:
            if may_be_email(v, low, high, i):
                start, end = email(v, low, high, i)
                count = _put(found, count, wanted, r, start, end, kinds.EMAIL, 0)
        elif c == 58 or c == 45:
            if i + 3 < high and v[i + 3] == c and i > low and is_any(v[i - 1], HEX):
                start, end = mac(v, low, high, i)
                count = _put(found, count, wanted, r, start, end, kinds.MAC, 0)
            if c == 58:
                start, end = url_password(v, low, high, i)
                count = _put(found, count, wanted, r, start, end, kinds.SECRET, 0)
                start, end = assigned_secret(v, low, high, i, letters)
                count = _put(found, count, wanted, r, start, end, kinds.SECRET, 0)
            if c == 58 and i + 1 < high and (v[i + 1] == 58 or is_any(v[i + 1], HEX)):
                start, end = ip6(v, low, high, i)
                count = _put(found, count, wanted, r, start, end, kinds.IP6, 0)
        elif c == 61:
            start, end = assigned_secret(v, low, high, i, letters)
            count = _put(found, count, wanted, r, start, end, kinds.SECRET, 0)
        else:
            end = i
            while end < high and is_any(v[end], DIGIT):
                end += 1
            before = np.uint8(32) if i == low else v[i - 1]
            if is_any(before, UPPER):
                count = _after_letters(found, count, wanted, r, v, low, high, i, end)
            elif not is_any(before, ALNUM | INNER) or follows_abbreviation(v, low, i):
                if end < high and v[end] == 46 and end - i <= 3:
                    count = _put(found, count, wanted, r, i, ip4(v, low, high, i), kinds.IP4, 0)
                if may_begin(v, low, high, i, end):
                    most = MAX_PHONE_DIGITS if before == 43 else MAX_NATIONAL_DIGITS
                    num_groups = read_groups(v, i, high, groups, most)
                    if num_groups > 0 and groups[DIGITS + num_groups - 1] > 6:
                        count = _digits(
                            found, count, wanted, r, v, low, high, i, groups, num_groups, shapes
                        )
            i = end - 1
        i = _next_trigger(v, i + 1, stop)
    return i, count


@inlined
def _next_trigger(v: np.ndarray, i: int, end: int) -> int:
    while i + BLOCK <= end:
        found = _triggers(v, i)
        if found:
            return i + trailing_zeros(found)
        i += BLOCK
    while i < end and not _TRIGGER[v[i]]:
        i += 1
    return i


@inner
def _after_letters(found, count, wanted, r, v, low, high, i, end):  # type: ignore[no-untyped-def]
    """Numbers that begin with capitals, the digits from i to end."""
    if i - 2 >= low and is_any(v[i - 2], UPPER):
        if end - i >= 2:
            stop = numbers.iban_end(v, low, high, i)
            count = _put(found, count, wanted, r, i - 2, stop, kinds.IBAN, 0)
            if end - i == 2 and numbers.is_codice_fiscale(v, low, high, i):
                count = _put(found, count, wanted, r, i - 6, i + 10, kinds.IT_CF, 0)
    elif end - i == 7:
        end, value = numbers.foreigner_id(v, low, high, i, end)
        count = _put(found, count, wanted, r, i - 1, end, kinds.ES_NIE, value)
    return count


@inlined
def _digits(found, count, wanted, r, v, low, high, i, groups, num_groups, shapes):  # type: ignore[no-untyped-def]
    """Numbers that begin with the digit i."""
    end = numbers.card(v, low, high, i, groups, num_groups)
    count = _put(found, count, wanted, r, i, end, kinds.CARD, 0)
    for k in range(num_groups):
        # Forms of one shape stand side by side; the table has the place of the first.
        shape, nth = groups[SHAPE + k], np.int64(-1)
        if groups[DIGITS + k] > 7:
            nth = shape_number(pointers(numbers.FORM_TABLE), shape)
        while 0 <= nth < numbers.NUM_FORMS and numbers.FORM_SHAPES[nth] == shape:
            end, kind, value = numbers.national_id(v, low, high, i, groups, k, nth)
            count = _put(found, count, wanted, r, i, end, kind, value)
            nth += 1
    if i > low and v[i - 1] == 43:
        start = phone_start(v, low, i)
        # Without regions only what is valid in its plan is wanted.
        told = start >= 0 and wanted & _TOLD_PHONE != 0 and is_told(v, low, start)
        for k in range(num_groups - 1 if start >= 0 else -1, -1, -1):
            end, digits = groups[END + k], groups[DIGITS + k]
            if 7 <= digits <= MAX_PHONE_DIGITS and ends_a_phone(v, high, end):
                kind = kinds.TOLD_PHONE if told and digits >= MIN_TOLD_DIGITS else kinds.PHONE
                # No number of North America is shorter: +1 212-555 is cut from one.
                if kind == kinds.PHONE and v[i] == 49 and digits < NORTH_AMERICAN_DIGITS:
                    break
                if not told and (
                    is_a_place(v, low, start, end, groups[SHAPE + k])
                    or is_in_a_formula(v, high, end)
                    or is_a_decimal(v, high, i, groups, k)
                ):
                    break
                count = _put(found, count, wanted, r, start, end, kind, value_of(v, i, end))
        return count
    start = local_phone_start(v, low, high, i, groups[END])
    if start >= 0 and wanted & _NATIONAL_PHONES:
        label, chars, crossed = label_before(v, low, start, NOT_OF_PHONES)
        for k in range(num_groups - 1, -1, -1):
            end, digits = groups[END + k], groups[DIGITS + k]
            if not 7 <= digits <= MAX_LABELLED_DIGITS or not ends_a_phone(v, high, end):
                continue
            nth = shape_number(shapes, groups[SHAPE + k])
            kind = national_phone(v, low, high, i, start, groups, k, nth, label, chars, crossed)
            tail = nth if kind == kinds.LOCAL_PHONE else digits
            base = kinds.MAX_PHONE_SHAPES if kind == kinds.LOCAL_PHONE else kinds.MAX_DIGITS
            if kind > 0:
                value = value_of(v, i, end) * base + tail
                count = _put(found, count, wanted, r, start, end, kind, value)
    return count


@inlined
def _put(found, count, wanted, number, start, end, kind, value):  # type: ignore[no-untyped-def]
    if end < 0 or not wanted >> kind & 1:
        return count
    found[count], found[count + 1], found[count + 2] = number, start, end
    found[count + 3], found[count + 4] = kind, value
    return count + ROW


@inner
def _grown(found: np.ndarray, count: int) -> np.ndarray:
    # By element: assigning slices would compile the formatting of shape errors, for seconds.
    grown = np.empty(2 * len(found), np.int64)
    for i in range(count):
        grown[i] = found[i]
    return grown
