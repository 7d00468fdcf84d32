"""Decides which candidates are what they look like, by number plans, check digits and checksums.

The kernel finds shapes; these are the judges outside it. Telephone numbers go to
`tasks.pii.phones`. National ids have the check digits that `python-stdnum` knows, and Chinese ones
a county that its registry has for the year of birth. Cost: tenths of a microsecond an id, also
where all differ; a county is looked up once.
"""

from __future__ import annotations

import functools
import ipaddress
import re

import numpy as np
import pyarrow as pa

from tasks.definitions import pii_kinds as kinds
from tasks.pii.phone_classes import are_international, are_national
from tasks.pii.phones import LARGEST, are_planned, phone_shapes

SOME = 1024
"""Telephone numbers that show whether most of a text come again. Finding those that differ takes as
long as to judge them."""
ALWAYS = (-9999, 9999)
"""First and last year of a county that was always there."""


class Checks:
    """Judges of candidates in one text for one configuration; remembers which it has turned
    down."""

    def __init__(self, regions: tuple[str, ...], public_only: bool = False) -> None:
        self._regions = regions
        self._public_only = public_only
        self.phone_shapes = phone_shapes(regions)
        """Groupings of national numbers; candidates hold a place in them."""
        self._turned_down = np.zeros(0, np.int64)

    def passed(self, values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Which rows (document, start, end, kind, value) are what they look like, as booleans."""
        from tasks.kernels.pii.rows import are_new, keys_of, of_kind

        # What was turned down the last time is not asked again: where spans are many, all others
        # come again in the next round.
        passed = are_new(rows, self._turned_down)
        for kind in np.flatnonzero(np.bincount(rows[:, 3])).tolist():
            if kind in kinds.BY_VALUE or kind in kinds.BY_TEXT:
                mine, numbers = of_kind(rows, passed, kind)
                by_value = kind in kinds.BY_VALUE
                passed[mine] = (
                    self._by_value(kind, numbers)
                    if by_value
                    else _by_text(kind, values, rows[mine])
                )
        if self._public_only:
            for r in np.flatnonzero(passed & np.isin(rows[:, 3], (kinds.IP4, kinds.IP6))):
                address = values[rows[r, 1] : rows[r, 2]].tobytes().decode()
                passed[r] = ipaddress.ip_address(address).is_global
        # Stable, since keys are nearly in order: a twentieth of the time.
        self._turned_down = np.sort(keys_of(rows, passed), kind="stable")
        return passed

    def _by_value(self, kind: int, values: np.ndarray) -> np.ndarray:
        from tasks.kernels.pii.ids import are_ids

        if kind in (kinds.PHONE, *kinds.NATIONAL_PHONES):
            some = values[:SOME]
            if 2 * len(np.unique(some)) > len(some):
                return self._are_phones(kind, values)
            # Few numbers again and again are judged once each.
            encoded = pa.array(values).dictionary_encode()
            numbers, places = encoded.dictionary.to_numpy(), encoded.indices.to_numpy()
            verdict: np.ndarray = self._are_phones(kind, numbers)[places]
            return verdict
        verdicts = are_ids(kind, values)
        if kind == kinds.CN_RIC:
            left = np.flatnonzero(verdicts)
            verdicts[left] = _have_county(values[left] >> 4)
        return verdicts

    def _are_phones(self, kind: int, values: np.ndarray) -> np.ndarray:
        if kind == kinds.PHONE:
            return are_international(values)
        if kind == kinds.LOCAL_PHONE:
            return self._are_national(values)
        regions = (*self._regions, *LARGEST) if kind == kinds.LABELLED_PHONE else self._regions
        written = [
            f"{value // kinds.MAX_DIGITS:0{value % kinds.MAX_DIGITS}d}" for value in values.tolist()
        ]
        return are_planned(written, regions)

    def _are_national(self, values: np.ndarray) -> np.ndarray:
        verdicts = np.zeros(len(values), np.bool_)
        numbers, places = values >> kinds.SHAPE_BITS, values & kinds.MAX_PHONE_SHAPES - 1
        for place in np.flatnonzero(np.bincount(places)).tolist():
            mine = np.flatnonzero(places == place)
            shape = self.phone_shapes[place]
            verdicts[mine] = are_national(numbers[mine], shape, self._regions)
        return verdicts


def _by_text(kind: int, values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    from tasks.kernels.pii.addresses import are_ip6
    from tasks.kernels.pii.ids import are_codici_fiscali

    judges = {kinds.IP6: are_ip6, kinds.IT_CF: are_codici_fiscali}
    # Always the same array type, so that each kernel is compiled once.
    readonly = values.view()
    readonly.flags.writeable = False
    verdicts: np.ndarray = judges[kind](readonly, rows)
    return verdicts


def _have_county(numbers: np.ndarray) -> np.ndarray:
    """Which Chinese ids, 17 digits each, begin with a county that there was in their year of
    birth."""
    areas, place = np.unique(numbers // 10**11, return_inverse=True)
    known = [_county_years(area) for area in areas.tolist()]
    years = numbers // 10**7 % 10**4
    verdicts = np.zeros(len(numbers), np.bool_)
    for n in range(max(map(len, known), default=0)):
        # (1, 0) holds no year.
        limits = np.array([spans[n] if n < len(spans) else (1, 0) for spans in known], np.int64)
        first, last = limits[place].T
        verdicts |= (first <= years) & (years <= last)
    return verdicts


@functools.lru_cache(maxsize=1 << 20)
def _county_years(area: int) -> tuple[tuple[int, int], ...]:
    """First and last year of each county that had this number; none for a number without county."""
    from stdnum import numdb

    # stdnum's own check of ids fails with KeyError where a province is known and the county is not.
    counties = [
        properties["county"]
        for _, properties in numdb.get("cn/loc").info(f"{area:06d}")
        if "county" in properties
    ]
    spans = []
    for county in counties[-1].split(",") if counties else ():
        found = re.match(r"\[(\d*)-(\d*)\]", county)
        spans.append((int(found[1] or ALWAYS[0]), int(found[2] or ALWAYS[1])) if found else ALWAYS)
    return tuple(spans)
