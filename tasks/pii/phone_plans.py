"""Is this row of digits a telephone number? The answers of `phonenumbers`, from tables that are
made of its number plans.

`is_valid_number(parse(...))` takes a tenth of a millisecond, so a text of numbers that all differ
would take minutes. What it asks of a number are regular expressions over digits, so each plan
becomes automata once, when its country code or region is first seen (1 to 20 ms, the plan of +1 100
ms); then a number takes about a tenth of a microsecond (`tasks.kernels.pii.phone_plans`). The steps
are those of libphonenumber: international and national prefixes are taken off as each plan says,
carrier codes and the rewriting of local numbers included; tests hold every verdict against the
package. The number plans stay the package's own.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.definitions.pii_kinds import MAX_PHONE_SHAPES
from tasks.pii.digit_automata import Automaton, PrefixMachine

if TYPE_CHECKING:
    from phonenumbers import PhoneMetadata, PhoneNumberDesc

GROUP_BITS = 5
"""Bits per group in the code of a row of digit groups, as in `tasks.kernels.pii.shapes`."""
MAX_FORM_DIGITS = 24
MAX_NUMBER_DIGITS = 17
"""The longest national number (libphonenumber); the shortest has two."""
_TYPES = (
    "premium_rate",
    "toll_free",
    "shared_cost",
    "voip",
    "personal_number",
    "pager",
    "uan",
    "voicemail",
    "fixed_line",
    "mobile",
)
_NEVER = "x"
"""A pattern that no row of digits matches."""


class PhonePlans:
    """Verdicts on rows of telephone numbers; makes the tables of a country code or region when it
    is first asked for."""

    def __init__(self) -> None:
        self._countries: dict[int, _Country] = {}
        self._regions: dict[str, tuple[Any, ...]] = {}
        self._codes: np.ndarray | None = None

    def are_international(self, numbers: np.ndarray) -> np.ndarray:
        """Which numbers (int64, all digits after the +, country code first) are valid numbers of
        their country."""
        from tasks.kernels.pii.phone_plans import by_country_code, judge

        verdicts, no_shapes = np.zeros(len(numbers), np.bool_), np.zeros(0, np.int64)
        order, ends = by_country_code(numbers, self._country_codes())
        for code in (np.flatnonzero(np.diff(ends)) + 1).tolist():
            judge(
                numbers,
                order[ends[code - 1] : ends[code]],
                no_shapes,
                verdicts,
                code,
                *self._country(code).tables,
            )
        return verdicts

    def are_national(self, numbers: np.ndarray, shapes: np.ndarray, region: str) -> np.ndarray:
        """Which numbers (int64, all digits as one number) are valid in the region, and grouped as
        it groups them.

        shapes: codes of the sizes of the digit groups, int64, 0 for a number that is not asked for;
        a number has as many digits, zeros in front included.
        """
        from tasks.kernels.pii.phone_plans import judge

        verdicts = np.zeros(len(numbers), np.bool_)
        judge(numbers, np.flatnonzero(shapes), shapes, verdicts, *self._region(region))
        return verdicts

    def written(self, shapes: np.ndarray, region: str) -> np.ndarray:
        """The shapes that some format of the region has, and 0 in place of others."""
        return np.where(np.isin(shapes, self._region(region)[-2]), shapes, 0)

    def _country_codes(self) -> np.ndarray:
        """The country code that numbers with these first three digits begin with, or 0; int64."""
        if self._codes is None:
            from phonenumbers import COUNTRY_CODE_TO_REGION_CODE

            heads = [[int(f"{head:03d}"[:digits]) for digits in (1, 2, 3)] for head in range(1000)]
            self._codes = np.array(
                [next((c for c in some if c in COUNTRY_CODE_TO_REGION_CODE), 0) for some in heads],
                np.int64,
            )
        return self._codes

    def _country(self, code: int) -> _Country:
        if code not in self._countries:
            self._countries[code] = _Country(code)
        return self._countries[code]

    def _region(self, region: str) -> tuple[Any, ...]:
        """The arguments of `judge` after verdicts, for national numbers of a region."""
        if region not in self._regions:
            self._regions[region] = self._make_region(region)
        return self._regions[region]

    def _make_region(self, region: str) -> tuple[Any, ...]:
        plan = _metadata(region)
        code = plan.country_code
        assert code is not None
        country = self._country(code)
        own = country.prefix if region == country.main else country.prefix_tables(plan)
        valid = np.array(
            [country.lengths(plan, bits) for bits in country.automaton.matched], np.uint32
        )
        abroad = _machine(PrefixMachine(plan.international_prefix or _NEVER), None)
        plain = _plain(own) & _plain(abroad) & ~(1 << int(str(code)[0]))
        return (code, plain, country.step, valid, country.prefix, own, abroad, *country.forms())


@functools.lru_cache(maxsize=1)
def phone_plans() -> PhonePlans:
    """The plans of this process."""
    return PhonePlans()


@functools.lru_cache(maxsize=8)
def phone_shapes(regions: tuple[str, ...]) -> np.ndarray:
    """How these regions group the digits of telephone numbers, nationally and with the country
    code, as sorted codes."""
    from phonenumbers import PhoneMetadata

    shapes = set()
    for region in regions:
        metadata = PhoneMetadata.metadata_for_region(region, None)
        assert metadata is not None, region
        for form in metadata.number_format:
            written = (form.format or "").replace(
                r"\1", form.national_prefix_formatting_rule or r"\1", 1
            )
            shapes.update(_shapes(form.pattern or "", written))
        for form in [*metadata.number_format, *metadata.intl_number_format]:
            shapes.update(_shapes(form.pattern or "", f"{metadata.country_code} {form.format}"))
    codes = np.array(sorted(shapes), np.int64)
    assert len(codes) <= MAX_PHONE_SHAPES
    codes.flags.writeable = False
    return codes


def _shapes(pattern: str, written: str) -> set[int]:
    r"""Codes of the digit groups that a format like `(\d{2})(\d{3,4})` written as `0\1 \2` can
    make."""
    widths = [
        range(int(fewest or 1), int(most or fewest or 1) + 1)
        for fewest, most in re.findall(r"\(\\d(?:\{(\d+)(?:,(\d+))?\})?\)", pattern)
    ]
    codes = set()
    for sizes in itertools.product(*widths):
        form = re.sub(r"\\(\d)", lambda found, sizes=sizes: "9" * sizes[int(found[1]) - 1], written)  # type: ignore[misc]
        code = 0
        for group in re.findall("[0-9]+", form):
            code = code << GROUP_BITS | len(group)
        codes.add(code)
    return codes


class _Country:
    """What the plans of the regions that share a country code say, by the state of one
    automaton."""

    def __init__(self, code: int) -> None:
        from phonenumbers import COUNTRY_CODE_TO_REGION_CODE

        self.code = code
        self.main = COUNTRY_CODE_TO_REGION_CODE[code][0]
        self.plans = [_metadata(region, code) for region in COUNTRY_CODE_TO_REGION_CODE[code]]
        formats = [*self._formats(0), *self._formats(1)]
        self.automaton = Automaton(
            [
                *(
                    d.national_number_pattern or _NEVER
                    for plan in self.plans
                    for d in (plan.general_desc, *_types(plan))
                    if d
                ),
                *(form.pattern or _NEVER for form in formats),
            ],
            [
                *(plan.leading_digits for plan in self.plans if plan.leading_digits is not None),
                *(
                    form.leading_digits_pattern[-1]
                    for form in formats
                    if form.leading_digits_pattern
                ),
            ],
        )
        # Ten times the next state, by ten times the state plus the digit: half the bytes, and no
        # multiplication in a walk.
        states = 10 * self.automaton.step.reshape(-1)
        self.step = states.astype(np.uint16 if states.max() < 1 << 16 else np.uint32)
        self.valid = np.array(
            [self._valid_lengths(bits) for bits in self.automaton.matched], np.uint32
        )
        """Bits of the lengths that a valid national number may have, by state."""
        self.prefix = self.prefix_tables(self.plans[0])
        forms = (
            np.zeros((0, 0), np.int16),
            np.zeros((0, 0, 0), np.int64),
            np.zeros((0, 0, 0, 0), np.int8),
        )
        nowhere = _machine(PrefixMachine(_NEVER), None)
        self.tables = (
            _plain(self.prefix),
            self.step,
            self.valid,
            self.prefix,
            self.prefix,
            nowhere,
            *forms,
        )
        """The arguments of `judge` after the country code, for international numbers."""

    def _matches(self, matched: int, pattern: str, begins: bool = False) -> bool:
        return matched & self.automaton.bits[pattern, begins] != 0

    def lengths(self, plan: PhoneMetadata, matched: int) -> int:
        """Bits of the lengths with which a number is of some type of the plan."""

        def of(description: PhoneNumberDesc | None) -> int:
            if description is None or not self._matches(
                matched, description.national_number_pattern or _NEVER
            ):
                return 0
            return (
                sum(1 << n for n in description.possible_length if n >= 0)
                if description.possible_length
                else (1 << 32) - 1
            )

        general, some = of(plan.general_desc), 0
        for description in _types(plan) if general else ():
            some |= of(description)
        return general & some

    def _valid_lengths(self, matched: int) -> int:
        if len(self.plans) == 1:
            return self.lengths(self.plans[0], matched)
        valid, left = 0, (1 << 32) - 1
        # A number belongs to the first region whose leading digits it has or, where a region names
        # none, to which it is valid.
        for plan in self.plans:
            if plan.leading_digits is not None:
                if self._matches(matched, plan.leading_digits, True):
                    return valid | left & self.lengths(plan, matched)
            else:
                valid |= left & self.lengths(plan, matched)
                left &= ~valid
        return valid

    def prefix_tables(self, plan: PhoneMetadata) -> tuple[Any, ...]:
        """How a plan takes off national prefixes: its machine, which states match its numbers, and
        the lengths that stay one."""
        description = plan.general_desc
        assert description is not None
        general = np.array(
            [
                self._matches(bits, description.national_number_pattern or _NEVER)
                for bits in self.automaton.matched
            ],
            np.uint8,
        )
        machine = _machine(
            PrefixMachine(plan.national_prefix_for_parsing or _NEVER),
            plan.national_prefix_transform_rule,
        )
        local, possible = description.possible_length_local_only, description.possible_length
        too_long = sum(1 << n for n in range(32) if n > possible[-1] and n not in local)
        right = sum(1 << n for n in possible if n >= 0 and n not in local)
        return *machine, general, np.uint32(right | too_long), np.uint32(too_long)

    def _formats(self, style: int) -> list[Any]:
        plan = self.plans[0]
        return (
            list(plan.intl_number_format or plan.number_format)
            if style
            else list(plan.number_format)
        )

    def forms(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """How a number is written nationally (0) and with the country code (1).

        chosen[style, state] is the format of a number that ends in the state; shapes[style, format,
        digits] the code of its groups, and written[style, format, digits] what stands there: the
        place of a digit, or -1 - d for a digit d of the format.
        """
        formats = [self._formats(style) for style in (0, 1)]
        most = max(map(len, formats)) + 1
        shapes = np.zeros((2, most, MAX_NUMBER_DIGITS + 1), np.int64)
        written = np.zeros((2, most, MAX_NUMBER_DIGITS + 1, MAX_FORM_DIGITS), np.int8)
        chosen = np.zeros((2, len(self.automaton.matched)), np.int16)
        for style, some in enumerate(formats):
            front = str(self.code) if style else ""
            for number, form in enumerate(some):
                for digits in range(1, MAX_NUMBER_DIGITS + 1):
                    groups = _written(form, digits, front, with_prefix=not style)
                    _fill(groups, shapes[style, number], written[style, number], digits)
            for digits in range(1, MAX_NUMBER_DIGITS + 1):
                whole = [[-1 - int(d) for d in front], list(range(digits))]
                _fill(
                    [group for group in whole if group],
                    shapes[style, len(some)],
                    written[style, len(some)],
                    digits,
                )
            for state, matched in enumerate(self.automaton.matched):
                chosen[style, state] = next(
                    (
                        number
                        for number, form in enumerate(some)
                        if self._matches(matched, form.pattern or _NEVER)
                        and (
                            not form.leading_digits_pattern
                            or self._matches(matched, form.leading_digits_pattern[-1], True)
                        )
                    ),
                    len(some),
                )
        return chosen, shapes, written


def _metadata(region: str, code: int | None = None) -> PhoneMetadata:
    from phonenumbers import PhoneMetadata

    plan = PhoneMetadata.metadata_for_region(region, None)
    if plan is None and code is not None:  # numbers of no country
        plan = PhoneMetadata.metadata_for_region_or_calling_code(code, region)
    assert plan is not None, region
    return plan


def _types(plan: PhoneMetadata) -> list[PhoneNumberDesc | None]:
    return [
        getattr(plan, name)
        for name in _TYPES
        if name != "mobile" or not plan.same_mobile_and_fixed_line_pattern
    ]


def _machine(machine: PrefixMachine, rule: str | None) -> tuple[Any, ...]:
    r"""Tables of a prefix machine, and what takes the place of the match, by a rule like `9\1`.

    results[state] is (end of the match or -1, digits to put there as one number, how many, begin
    and end of the group behind).
    """
    results = np.zeros((len(machine.results), 5), np.int64)
    form = re.fullmatch(r"(\d*)\\(\d)", rule or "")
    if rule and form is None:
        raise ValueError(
            f"number plan with the rule {rule} is not understood; take the phonenumbers package of"
            " uv.lock"
        )
    for state, (end, groups) in enumerate(machine.results):
        results[state, 0] = end
        if form is not None and groups and groups[-1] >= 0:
            group = int(form[2])
            results[state, 1:] = (
                int(form[1] or 0),
                len(form[1]),
                max(0, groups[2 * group - 2]),
                max(0, groups[2 * group - 1]),
            )
    return machine.step, results, machine.settled.view(np.uint8)


def _plain(machine: tuple[Any, ...]) -> int:
    """Bits of the digits with which no prefix begins."""
    step, results, settled = machine[:3]
    return sum(
        1 << digit
        for digit in range(10)
        if settled[step[0, digit]] and results[step[0, digit], 0] < 0
    )


def _written(form: Any, digits: int, front: str, with_prefix: bool) -> list[list[int]]:
    """Groups of digits in which a format writes a number of so many digits; none where it does
    not."""
    pattern = re.fullmatch(form.pattern, "0" * digits)
    if pattern is None or not re.fullmatch(r"(\(\\d(\{\d+(,\d+)?\})?\))+", form.pattern):
        assert pattern is None, form.pattern
        return []
    rule = form.format
    if with_prefix and form.national_prefix_formatting_rule:
        rule = re.sub(r"(\\\d)", form.national_prefix_formatting_rule, rule, count=1)
    groups: list[list[int]] = [[-1 - int(d) for d in front], []]
    for place, literal, other in re.findall(r"\\(\d)|(\d)|(.)", rule):
        if place:
            groups[-1].extend(range(*pattern.span(int(place))))
        elif literal:
            groups[-1].append(-1 - int(literal))
        else:
            assert other
            groups.append([])
    return [group for group in groups if group]


def _fill(
    groups: Sequence[list[int]], shapes: np.ndarray, written: np.ndarray, digits: int
) -> None:
    places = [place for group in groups for place in group]
    if not 0 < len(places) <= MAX_FORM_DIGITS:
        return
    for group in groups:
        shapes[digits] = shapes[digits] << GROUP_BITS | len(group)
    written[digits, : len(places)] = places
