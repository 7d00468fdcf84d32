"""Judges many telephone numbers at once by the number plans of `phonenumbers`, with RE2.

The package takes tens of microseconds a number. Its plans are regular expressions over digits, so
each of its steps (Google libphonenumber: parse, isValidNumber, format) runs here over a column of
numbers: strip a prefix, test lengths, match the kinds of numbers, write in groups. Verdicts are
those of the package; a test compares them for all plans. Cost: a microsecond a number, and a
millisecond for each plan, since RE2 compiles its expressions again for each column.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

KINDS = (
    *("premium_rate", "toll_free", "shared_cost", "voip", "personal_number"),
    *("pager", "uan", "voicemail", "fixed_line", "mobile"),
)
"""The kinds of numbers that make a number valid, as attributes of `PhoneMetadata`."""
MIN_DIGITS, MAX_DIGITS = 2, 17
"""Of a number without its country code; others are none."""
_POWERS = 10 ** np.arange(19, dtype=np.int64)
Column = Any
"""A `pa.StringArray` of digits."""


def codes_of(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(country code or 0, digits) of numbers, int16 each. No number has fewer than two digits
    behind its code."""
    from phonenumbers import COUNTRY_CODE_TO_REGION_CODE

    sizes = np.searchsorted(_POWERS, numbers, "right")
    leading = numbers // _POWERS[np.maximum(sizes - 3, 0)]
    codes = np.zeros(1_000, np.int16)
    for code in COUNTRY_CODE_TO_REGION_CODE:
        width = 10 ** (3 - len(str(code)))
        codes[code * width : (code + 1) * width] = code
    return np.where(sizes > 3, codes[leading], 0).astype(np.int16), sizes.astype(np.int16)


def are_international(numbers: np.ndarray) -> np.ndarray:
    """Which numbers (int64, all digits after a +, country code first) are valid, as booleans."""
    verdicts = np.zeros(len(numbers), np.bool_)
    found, sizes = codes_of(numbers)
    order = np.argsort(found, kind="stable")
    first = np.flatnonzero(np.diff(found[order], prepend=-1))
    for mine in np.split(order, first[1:]):
        code = int(found[mine[0]]) if len(mine) else 0
        if code == 0:
            continue
        plan, code_digits = plan_of(code), len(str(code))
        mine = mine[sizes[mine] >= code_digits + plan.min_digits]
        written = pa.array(numbers[mine]).cast(pa.string())
        rest = pc.utf8_slice_codeunits(written, code_digits)
        verdicts[mine] = plan.are_valid(plan.own(rest))
    return verdicts


def are_national(digits: Column, shape: tuple[int, ...], region: str) -> np.ndarray:
    """Which numbers, dialled in a region and with groups of these sizes, are valid there and
    grouped as it groups them, as booleans."""
    from phonenumbers import country_code_for_region

    code = country_code_for_region(region)
    main, home = plan_of(code), plan_of(code, region)
    # A prefix for calls abroad, then the code; or the code alone, where that makes a valid number.
    abroad = _matches(digits, f"^(?:{home.abroad})[1-9]")
    coded = ~abroad & _matches(digits, f"^{code}")
    whole = _pick(digits, coded)
    behind = home.stripped(pc.utf8_slice_codeunits(whole, len(str(code))))
    better = ~home.are_viable(whole) & home.are_viable(behind) | home.are_too_long(whole)
    coded[coded] = better
    verdicts = np.zeros(len(digits), np.bool_)
    for chosen, rest, plan in (
        (abroad, _behind_code(_pick(digits, abroad), home, code), main),
        (coded, _pick(behind, better), main),
        (~abroad & ~coded, _pick(digits, ~abroad & ~coded), home),
    ):
        places = np.flatnonzero(chosen)
        own = plan.own(rest)
        valid = main.are_valid(own)
        places = places[valid]
        verdicts[places] = main.are_written(_pick(own, valid), _pick(digits, places), shape)
    return verdicts


def _behind_code(digits: Column, home: Plan, code: int) -> Column:
    """Digits behind a prefix for calls abroad and this country code; none where another follows."""
    rest = _replaced(digits, f"^(?:{home.abroad})", "")
    return pc.if_else(pa.array(_matches(rest, f"^{code}")), _replaced(rest, f"^{code}", ""), "")


class Plan:
    """The number plan of a country code, with the prefixes of one of its regions."""

    def __init__(self, code: int, region: str) -> None:
        from phonenumbers import COUNTRY_CODE_TO_REGION_CODE, PhoneMetadata

        regions = COUNTRY_CODE_TO_REGION_CODE[code]
        of_regions: dict[str, Any] = {
            name: PhoneMetadata.metadata_for_region_or_calling_code(code, name) for name in regions
        }
        plan = of_regions[region]
        self.abroad = plan.international_prefix or "[^0-9]"
        self._prefix, self._rule = (
            plan.national_prefix_for_parsing,
            plan.national_prefix_transform_rule,
        )
        self._general = f"^(?:{plan.general_desc.national_number_pattern})$"
        # Stripping a prefix makes a number shorter, but for rules that write something instead.
        sizes = [each.general_desc.possible_length[0] for each in of_regions.values()]
        self.min_digits = 0 if self._rule else min(sizes)
        """Digits of the shortest number that may be valid."""
        longest = max(each.general_desc.possible_length[-1] for each in of_regions.values())
        self.is_plain = not self._rule and (self._prefix or "0").isdigit()
        """Whether a prefix can be taken off in one way alone."""
        self.max_digits = longest + len(self._prefix or "") if self.is_plain else MAX_DIGITS
        """Digits of the longest number that may be valid, with a prefix."""
        self._max_digits = plan.general_desc.possible_length[-1]
        self._local = plan.general_desc.possible_length_local_only
        self._possible = sorted({*plan.general_desc.possible_length} - {*self._local})
        self._regions = [
            (
                each.leading_digits,
                _kinds_in(each),
                f"^(?:{each.general_desc.national_number_pattern})$",
            )
            for each in of_regions.values()
        ]
        self._code, self._first = str(code), of_regions[regions[0]]

    @functools.cached_property
    def _styles(self) -> tuple[list[_Format], ...]:
        """Formats nationally, and behind the country code."""
        first, code = self._first, self._code
        abroad = first.intl_number_format or first.number_format
        return (
            [_format(form, form.national_prefix_formatting_rule) for form in first.number_format]
            + [_unbroken("")],
            [_format(form, code=code) for form in abroad] + [_unbroken(code)],
        )

    def expressions(self, home: Plan, written: bool) -> tuple[list[str], ...]:
        """What decides whether a number with the prefixes of a region (`home`) is valid and, where
        asked, how it is written: expressions one of which a valid number matches; others of whole
        numbers; of beginnings; of beginnings that may be a prefix in several ways."""
        kinds = [kinds for _, kinds, _ in self._regions]
        whole = [home._general, *(general for _, _, general in self._regions)]
        begins = [leading for leading, _, _ in self._regions if leading]
        if written:
            begins += [form.leading for style in self._styles for form in style if form.leading]
        prefix = home._prefix
        if not prefix or not home.is_plain:
            return kinds, whole, begins, [prefix] if prefix else []
        # Behind a plain prefix is one rest, which the same expressions decide about.
        decide = [
            some + [f"{prefix}(?:{each})" for each in some] for some in (kinds, whole, begins)
        ]
        return decide[0], decide[1], [*decide[2], prefix], []

    def are_viable(self, numbers: Column) -> np.ndarray:
        """Which numbers have the general form of the region, as booleans."""
        return _matches(numbers, self._general)

    def are_too_long(self, numbers: Column) -> np.ndarray:
        """Which numbers are longer than all of the region, as booleans."""
        return _sizes(numbers) > self._max_digits

    def stripped(self, numbers: Column) -> Column:
        """Numbers without a national prefix and the code of a carrier, but for those that have the
        general form only with them."""
        if not self._prefix:
            return numbers
        pattern = f"^(?:{self._prefix})"
        begins = _matches(numbers, pattern)
        if not begins.any():
            return numbers
        whole = _pick(numbers, begins)
        rest = _replaced(whole, pattern, "")
        if self._rule:
            # The rule holds where the last group took part; none of them can be empty.
            last = re.compile(self._prefix).groups
            ruled = _sizes(_replaced(whole, pattern, rf"\{last}")) > _sizes(rest)
            rest = pc.if_else(pa.array(ruled), _replaced(whole, pattern, self._rule), rest)
        taken = ~self.are_viable(whole) | self.are_viable(rest)
        begins[begins] = taken
        return pc.replace_with_mask(numbers, pa.array(begins), _pick(rest, taken))

    def own(self, numbers: Column) -> Column:
        """Numbers as `stripped`, but whole where the rest has too few digits or those of a local
        number."""
        rest = self.stripped(numbers)
        sizes = _sizes(rest)
        fits = np.isin(sizes, self._possible)
        fits |= self.are_too_long(rest) & ~np.isin(sizes, self._local)
        return rest if fits.all() else pc.if_else(pa.array(fits), rest, numbers)

    def are_valid(self, numbers: Column) -> np.ndarray:
        """Which numbers some region of the code has, as booleans."""
        of_any = "|".join(kinds for _, kinds, _ in self._regions)
        verdicts = _matches(numbers, f"^(?:{of_any})$")
        places = np.flatnonzero(verdicts)
        left, verdicts[:] = _pick(numbers, places), False
        # The first region that claims a number by its leading digits decides.
        for leading, kinds, general in self._regions:
            begins = _matches(left, f"^(?:{leading})") if leading else np.ones(len(left), np.bool_)
            is_valid = _matches(_pick(left, begins), general)
            if len(self._regions) > 1:
                is_valid &= _matches(_pick(left, begins), f"^(?:{kinds})$")
            verdicts[places[begins][is_valid]] = True
            begins[begins] = is_valid | bool(leading)
            left, places = _pick(left, ~begins), places[~begins]
        return verdicts

    def are_written(self, numbers: Column, digits: Column, shape: tuple[int, ...]) -> np.ndarray:
        """Which valid numbers are written as these digits in groups of these sizes, nationally or
        behind the country code."""
        verdicts, sizes = np.zeros(len(numbers), np.bool_), _sizes(numbers)
        for size in np.unique(sizes).tolist():
            for formats in self._styles:
                places = np.flatnonzero(sizes == size)
                fitting = [form for form in formats if size in form.shapes]
                # The first format that fits decides; those behind the last of this shape do not.
                while fitting and fitting[-1].shapes[size] != shape:
                    fitting.pop()
                for form in fitting:
                    left = _pick(numbers, places)
                    fits = _matches(left, form.leading)
                    if form.shapes[size] == shape:
                        made = form.written(_pick(left, fits))
                        verdicts[places[fits]] |= _equal(made, _pick(digits, places[fits]))
                    places = places[~fits]
        return verdicts


@dataclass(frozen=True)
class _Format:
    """How numbers of some sizes that begin with certain digits are grouped."""

    leading: str
    """Expression of the digits that they begin with."""
    pattern: str
    """Expression with a group for each group of digits."""
    rule: str
    """What is written of the groups, and a prefix; without what stands between."""
    shapes: dict[int, tuple[int, ...]]
    """Sizes of the groups that are written, by the size of the number."""

    def written(self, numbers: Column) -> Column:
        """Numbers as they are written, without what stands between the groups."""
        groups = self.rule.lstrip("0123456789")
        prefix = self.rule.removesuffix(groups)
        in_order = "".join(f"\\{n + 1}" for n in range(re.compile(self.pattern).groups))
        if groups == in_order:
            return _replaced(numbers, "^", prefix) if prefix else numbers
        return _replaced(numbers, self.pattern, self.rule)


def _format(form: Any, prefixed: str | None = None, code: str = "") -> _Format:
    """A format of the package, nationally with what it puts before the first group written, or
    behind a country code."""
    written = re.sub(r"(\\\d)", prefixed, form.format, count=1) if prefixed else form.format
    groups = re.findall(r"(?:\\\d|\d)+", f"{code} {written}")
    shapes = {}
    # Patterns have sizes of groups and no digits, so any digits show the groups.
    assert not re.sub(r"\(\\d(\{\d+(,\d+)?\})?\)", "", form.pattern), form.pattern
    for size in range(MIN_DIGITS, MAX_DIGITS + 1):
        if found := re.fullmatch(form.pattern, "0" * size):
            shapes[size] = tuple(len(found.expand(group)) for group in groups)
    leading = form.leading_digits_pattern
    begins = f"^(?:{leading[-1]})" if leading else ""
    return _Format(begins, f"^(?:{form.pattern})$", "".join(groups), shapes)


def _unbroken(code: str) -> _Format:
    """How numbers are written that no format fits."""
    sizes = range(MIN_DIGITS, MAX_DIGITS + 1)
    shapes: dict[int, tuple[int, ...]] = {
        size: (len(code), size) if code else (size,) for size in sizes
    }
    return _Format("", r"^(\d*)$", rf"{code}\1", shapes)


@functools.lru_cache(maxsize=512)
def plan_of(code: int, region: str = "") -> Plan:
    from phonenumbers import COUNTRY_CODE_TO_REGION_CODE

    return Plan(code, region or COUNTRY_CODE_TO_REGION_CODE[code][0])


def _kinds_in(plan: Any) -> str:
    kinds = [getattr(plan, name) for name in KINDS]
    patterns = [kind.national_number_pattern for kind in kinds if kind is not None]
    return "|".join(f"(?:{pattern})" for pattern in dict.fromkeys(patterns) if pattern) or "[^0-9]"


def _matches(numbers: Column, pattern: str) -> np.ndarray:
    if not len(numbers):
        return np.zeros(0, np.bool_)
    found: np.ndarray = pc.match_substring_regex(numbers, pattern).to_numpy(zero_copy_only=False)
    return found.astype(np.bool_)


def _replaced(numbers: Column, pattern: str, written: str) -> Column:
    if not len(numbers):
        return numbers
    return pc.replace_substring_regex(numbers, pattern, written, max_replacements=1)


def _equal(numbers: Column, others: Column) -> np.ndarray:
    return pc.equal(numbers, others).to_numpy(zero_copy_only=False).astype(np.bool_)


def _sizes(numbers: Column) -> np.ndarray:
    return pc.binary_length(numbers).to_numpy(zero_copy_only=False)


def _pick(numbers: Column, places: np.ndarray) -> Column:
    """Numbers at places, or where booleans are true."""
    if places.dtype == np.bool_ and places.all():
        return numbers
    chosen = pa.array(places)
    return numbers.filter(chosen) if places.dtype == np.bool_ else numbers.take(chosen)
