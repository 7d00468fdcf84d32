"""Where could personal data be? Candidates from trigger bytes and bounded look-around, over Arrow text buffers.

A digit, `@` or `:` triggers a look to both sides, never further than `MAX_LOOK_BYTES`, so time is linear in the text
whatever it holds. Each trigger judges alone: candidates may overlap, and `tasks.pii` resolves them. `<` and `>` stop
every look-around, so a found span that is overwritten by them acts exactly as the tag that will replace it.

Kinds: EMAIL, IP4 and CARD are final here; IP6, PHONE (international) and LOCAL_PHONE are shapes that `tasks.pii`
validates. What looks alike and is none is vetoed by the judges: `pii_emails`, `pii_addresses`, `pii_numbers`.
"""

from __future__ import annotations

import numba
import numpy as np

from tasks.kernels.pii_addresses import ip4, ip6
from tasks.kernels.pii_bytes import DIGIT, helper, is_any
from tasks.kernels.pii_emails import email
from tasks.kernels.pii_numbers import card, local_phone, phone

EMAIL, IP4, IP6, CARD, PHONE, LOCAL_PHONE = range(6)
MAX_LOOK_BYTES = 512


@numba.njit(cache=True, nogil=True, error_model="numpy")
def find_candidates(values: np.ndarray, lo: np.ndarray, hi: np.ndarray, scan_lo: np.ndarray, scan_hi: np.ndarray) -> np.ndarray:
    """Candidates whose trigger is in [scan_lo, scan_hi) of each range, judged within [lo, hi), in order of triggers.

    A flat int64 array, four numbers a candidate: range number, start, end, kind.
    """
    found = np.empty(1024, np.int64)
    count = 0
    for r in range(len(lo)):
        low, high = lo[r], hi[r]
        for i in range(scan_lo[r], scan_hi[r]):
            c = values[i]
            if c > 64 or c < 48 or (58 < c < 64):
                continue
            if count + 16 > len(found):
                found = _grown(found, count)
            if c == 64:
                start, end = email(values, low, high, i)
                count = _put(found, count, r, start, end, EMAIL)
            elif c == 58:
                start, end = ip6(values, low, high, i)
                count = _put(found, count, r, start, end, IP6)
            elif i == low or not is_any(values[i - 1], DIGIT):
                count = _put(found, count, r, i, ip4(values, low, high, i), IP4)
                count = _put(found, count, r, i, card(values, low, high, i), CARD)
                if i > low and values[i - 1] == 43:
                    start, end = phone(values, low, high, i)
                    count = _put(found, count, r, start, end, PHONE)
                else:
                    start, end = local_phone(values, low, high, i)
                    count = _put(found, count, r, start, end, LOCAL_PHONE)
    return found[:count]


@helper
def _put(found: np.ndarray, count: int, number: int, start: int, end: int, kind: int) -> int:
    if end < 0:
        return count
    found[count], found[count + 1], found[count + 2], found[count + 3] = number, start, end, kind
    return count + 4


@helper
def _grown(found: np.ndarray, count: int) -> np.ndarray:
    # By element: assigning slices would compile the formatting of shape errors, for seconds.
    grown = np.empty(2 * len(found), np.int64)
    for i in range(count):
        grown[i] = found[i]
    return grown
