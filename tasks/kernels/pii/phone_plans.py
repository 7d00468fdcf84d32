"""Which rows of digits are telephone numbers of these plans? Walks through the tables of
`tasks.pii.phone_plans`.

A number is an int64 of up to 18 digits. Equal numbers are many, so the last verdicts are kept in a
small table. Cost: up to seven walks of a look-up for each digit, mostly three.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from tasks.kernels import inner
from tasks.kernels.text.addresses import pointers

MAX_DIGITS = 24
RECENT_BITS = 11
"""Verdicts kept, as a power of two: what repeats in a text repeats soon."""
_MIXER = np.uint64(0x9E3779B97F4A7C15)
_PLACE_SHIFT = np.uint64(64 - RECENT_BITS)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def by_country_code(numbers: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places of the numbers in order of the country codes they begin with, and where in it each
    code ends, from 0 for none.

    codes: int64, the code or 0 by the first three digits of a number.
    """
    ends, found = np.zeros(1001, np.int64), np.empty(len(numbers), np.int16)
    for n in range(len(numbers)):
        head: Any = np.uint64(numbers[n])
        while head >= np.uint64(1_000_000):
            head //= np.uint64(1_000)
        while head >= np.uint64(1_000):
            head //= np.uint64(10)
        code = codes[np.int64(head)] if numbers[n] > 99 else np.int64(0)
        found[n] = code
        ends[code + 1] += 1
    for code in range(1000):
        ends[code + 1] += ends[code]
    order = np.empty(len(numbers), np.int64)
    for n in range(len(numbers)):
        order[ends[found[n]]] = n
        ends[found[n]] += 1
    return order, ends[:1000]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def judge(
    numbers: np.ndarray,
    asked: np.ndarray,
    shapes: np.ndarray,
    verdicts: np.ndarray,
    code: int,
    plain: int,
    step: np.ndarray,
    valid: np.ndarray,
    main: Any,
    own: Any,
    abroad: Any,
    chosen: np.ndarray,
    form_shapes: np.ndarray,
    written: np.ndarray,
) -> None:
    """Say in `verdicts` which numbers, of those at the places `asked`, are valid by plans that
    share a country code.

    shapes: codes of the groups of digits of national numbers, which must be grouped as the plan
    groups them; empty for international numbers, which begin with the country code. plain: bits of
    the digits that begin neither a prefix nor the country code, so that nothing is to be taken off
    before them. step, valid: what digits lead to, and bits of the lengths that a valid national
    number may have there. main, own: how the region that leads the country code and the one asked
    for take off national prefixes; abroad: the prefix of calls to other countries. chosen,
    form_shapes, written: how numbers are written.
    """
    scratch = np.zeros((3, MAX_DIGITS), np.int64)
    recent = np.full((1 << RECENT_BITS, 3), -1, np.int64)
    code_digits = np.int64(1 if code < 10 else 2 if code < 100 else 3)
    begin, steps, first, second = np.int64(0), pointers(step), _pointers(main), _pointers(own)
    out = pointers(abroad)
    for n in asked:
        digits, national, rest = pointers(scratch[0]), pointers(scratch[1]), pointers(scratch[2])
        number, shape = numbers[n], shapes[n] if len(shapes) > 0 else begin
        place = np.int64((np.uint64(number ^ (shape << 40)) * _MIXER) >> _PLACE_SHIFT)
        if recent[place, 0] != number or recent[place, 1] != shape:
            count = _write(number, shape, digits)
            ahead = code_digits if shape == 0 else begin
            if (plain >> digits[ahead]) & 1:
                size = _copy(digits, ahead, count, begin, national)
            elif shape == 0:
                size = _national_number(digits, code_digits, count, steps, first, national)
            else:
                size = _parsed(
                    digits, count, code, code_digits, steps, first, second, out, national, rest
                )
            state = _walk(national, begin, size, steps)
            good = 2 <= size <= 17 and (valid[state] >> np.uint32(size)) & np.uint32(1) != 0
            if good and shape > 0:
                good = False
                for style in range(2):
                    form = chosen[style, state]
                    same = form_shapes[style, form, size] == shape
                    for k in range(count if same else 0):
                        digit = written[style, form, size, k]
                        same &= digits[k] == (national[digit] if digit >= 0 else -1 - digit)
                    good |= same
            recent[place, 0], recent[place, 1], recent[place, 2] = number, shape, good
        verdicts[n] = recent[place, 2] != 0


@inner
def _pointers(prefix: Any) -> Any:
    machine, results, settled, general, possible, too_long = prefix
    return (
        pointers(machine),
        pointers(results),
        pointers(settled),
        pointers(general),
        possible,
        too_long,
    )


@inner
def _write(number: int, shape: int, digits: np.ndarray) -> int:
    """Write out the digits of a number, as many as the groups of its shape have; how many there
    are."""
    count: Any = np.int64(0)  # not a literal: that would compile what it is passed to twice
    left = shape
    while left > 0:
        count, left = count + (left & 31), left >> 5
    if count == 0:
        left = number
        while left > 0:
            count, left = count + 1, left // 10
    for k in range(count - 1, -1, -1):
        digits[k] = number % 10
        number //= 10
    return count


@inner
def _walk(digits: np.ndarray, begin: int, end: int, step: np.ndarray) -> int:
    """The state after digits[begin:end]. step: ten times the next state, by ten times the state
    plus the digit.

    Unsigned, so that no index can be negative and none is looked at for it.
    """
    place: Any = np.uint64(10)
    for k in range(begin, end):
        place = np.uint64(step[place + np.uint64(digits[k])])
    state: Any = np.int64(place // np.uint64(10))
    return state


@inner
def _prefix_state(
    digits: np.ndarray, begin: int, end: int, step: np.ndarray, settled: np.ndarray
) -> int:
    state: Any = np.int64(0)
    while begin < end and settled[state] == 0:
        state = np.int64(step[10 * state + digits[begin]])
        begin += 1
    return state


@inner
def _copy(digits: np.ndarray, begin: int, end: int, count: int, out: np.ndarray) -> int:
    """Write digits[begin:end] behind the first `count` of `out`; how many there are then."""
    for k in range(begin, end):
        out[count] = digits[k]
        count += 1
    return count


@inner
def _stripped(
    digits: np.ndarray, begin: int, end: int, step: np.ndarray, prefix: Any, out: np.ndarray
) -> int:
    """Write digits[begin:end] without the national prefix to `out`; how many there are.

    The prefix stays where without it a number of the plan would be one no more.
    """
    machine, results, settled, general, _, _ = prefix
    state = _prefix_state(digits, begin, end, machine, settled)
    count = np.int64(0)
    found = 5 * state
    if results[found] >= 0:
        front, count = results[found + 1], results[found + 2]
        for k in range(count - 1, -1, -1):
            out[k] = front % 10
            front //= 10
        count = _copy(digits, begin + results[found + 3], begin + results[found + 4], count, out)
        count = _copy(digits, begin + results[found], end, count, out)
        if (
            general[_walk(out, np.int64(0), count, step)] != 0
            or general[_walk(digits, begin, end, step)] == 0
        ):
            return count
    return _copy(digits, begin, end, np.int64(0), out)


@inner
def _national_number(
    digits: np.ndarray, begin: int, end: int, step: np.ndarray, prefix: Any, out: np.ndarray
) -> int:
    """Write the national number of digits[begin:end] to `out`; how many digits. What is left must
    have a possible length."""
    count = _stripped(digits, begin, end, step, prefix, out)
    if (prefix[4] >> np.uint32(count)) & np.uint32(1):
        return count
    return _copy(digits, begin, end, np.int64(0), out)


@inner
def _parsed(
    digits: np.ndarray,
    count: int,
    code: int,
    code_digits: int,
    step: np.ndarray,
    main: Any,
    own: Any,
    abroad: Any,
    national: np.ndarray,
    rest: np.ndarray,
) -> int:
    """Write the national number of what is dialled in a region to `national`; how many digits, 0
    for one from abroad."""
    zero: Any = np.int64(0)
    machine, results, settled = abroad
    end = results[5 * _prefix_state(digits, zero, count, machine, settled)]
    if end >= 0 and not (end < count and digits[end] == 0):
        if count - end <= 2 or not _begins_with(digits, end, count, code, code_digits):
            return zero
        return _national_number(digits, end + code_digits, count, step, main, national)
    if _begins_with(digits, zero, count, code, code_digits):
        size = _stripped(digits, code_digits, count, step, own, rest)
        general, too_long = own[3], own[5]
        whole = general[_walk(digits, zero, count, step)] != 0
        if (not whole and general[_walk(rest, zero, size, step)] != 0) or (
            too_long >> np.uint32(count)
        ) & np.uint32(1):
            return _national_number(rest, zero, size, step, main, national)
    return _national_number(digits, zero, count, step, own, national)


@inner
def _begins_with(digits: np.ndarray, begin: int, end: int, code: int, code_digits: int) -> bool:
    if end - begin < code_digits:
        return False
    head = np.int64(0)
    for k in range(begin, begin + code_digits):
        head = head * 10 + digits[k]
    return head == code
