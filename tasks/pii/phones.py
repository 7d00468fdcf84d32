"""Decides which digits are telephone numbers, by the number plans of `phonenumbers`.

An international number must be valid in the plan of its country code. A national one must be valid
in the plan of a configured region, and grouped as that plan writes it (STRICT_GROUPING in
libphonenumber), so that dates, ISBNs, ids and rows of numbers stay; regions that share a country
code share a plan. Behind a word that goes with telephones (`tasks.kernels.pii.labels`) any
groups will do, and the plans of `LARGEST` count too. `phone_shapes` gives the groupings to the
kernel, which passes few candidates. Cost: tens of microseconds a candidate, and verdicts are
remembered, since real text has a few candidates a megabyte. Where there are many, as in text of
nothing but numbers, `tasks.pii.phone_classes` asks for one of each class, and
`tasks.pii.phone_plans` judges in a microsecond.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.definitions.pii_kinds import MAX_PHONE_SHAPES
from tasks.pii import phone_plans

MAX_REMEMBERED = 1 << 16
"""Verdicts of each function; one takes some 200 bytes."""

MANY = 128
"""How many numbers are judged together; fewer take longer to prepare than to judge one by one."""

LARGEST = (
    *("CN", "IN", "US", "ID", "PK", "NG", "BR", "BD", "RU", "MX", "JP", "PH", "EG", "VN", "TR"),
    *("IR", "DE", "TH", "GB", "FR", "IT", "ZA", "KR", "ES", "AR", "CO", "SA", "AE", "MA", "PL"),
    *("UA", "PT", "NL", "CH", "AT", "BE", "CL", "PE", "TW", "HK", "MY", "AU"),
)
"""Regions whose national numbers are found behind a word that goes with telephones: the twenty
with most people that have a plan of their own, and those with most text."""

Shape = tuple[int, ...]
"""How many digits each group of a number has."""


def are_international(numbers: np.ndarray, many: int = MANY) -> np.ndarray:
    """`is_international` of numbers (int64), as booleans. many: how many are judged together."""
    if len(numbers) < many:
        return np.array([is_international(number) for number in numbers.tolist()], np.bool_)
    return phone_plans.are_international(numbers)


def are_national(
    numbers: np.ndarray, shape: Shape, regions: Sequence[str], many: int = MANY
) -> np.ndarray:
    """`is_national` in one of the regions, of numbers (int64), as booleans. many: how many are
    judged together."""
    verdicts = np.zeros(len(numbers), np.bool_)
    for region in regions:
        if shape not in shapes_of(region):
            continue
        left = np.flatnonzero(~verdicts)
        if len(left) < many:
            verdicts[left] = [is_national(n, shape, region) for n in numbers[left].tolist()]
        else:
            digits = pc.utf8_lpad(pa.array(numbers[left]).cast(pa.string()), sum(shape), "0")
            verdicts[left] = phone_plans.are_national(digits, shape, region)
    return verdicts


@functools.lru_cache(maxsize=MAX_REMEMBERED)
def is_international(number: int) -> bool:
    """Whether all digits after a +, country code first, are a valid number."""
    from phonenumbers import NumberParseException, is_valid_number, parse

    try:
        return is_valid_number(parse(f"+{number}"))
    except NumberParseException:
        return False


@functools.lru_cache(maxsize=MAX_REMEMBERED)
def is_national(number: int, shape: Shape, region: str) -> bool:
    """Whether digits in groups are a valid number of the region, and grouped as it groups them."""
    if shape not in shapes_of(region):
        return False
    import phonenumbers
    from phonenumbers import PhoneNumberFormat

    digits = f"{number:0{sum(shape)}d}"
    try:
        parsed = phonenumbers.parse(digits, region)
    except phonenumbers.NumberParseException:
        return False
    if parsed.country_code != phonenumbers.country_code_for_region(
        region
    ) or not phonenumbers.is_valid_number(parsed):
        return False
    ends = list(itertools.accumulate(shape, initial=0))
    # Grouped as the plan prints it, nationally or behind the country code.
    groups = [digits[start:end] for start, end in itertools.pairwise(ends)]
    return any(
        groups == re.findall("[0-9]+", phonenumbers.format_number(parsed, style))
        for style in (PhoneNumberFormat.NATIONAL, PhoneNumberFormat.INTERNATIONAL)
    )


def are_planned(numbers: Sequence[str], regions: tuple[str, ...]) -> np.ndarray:
    """Which digits are a number of one of the plans, as dialled there or from abroad, booleans."""
    # RE2 walks once over each number, however many plans there are.
    found = pc.match_substring_regex(pa.array(numbers, pa.string()), f"^(?:{_plans(regions)})$")
    verdicts: np.ndarray = found.to_numpy(zero_copy_only=False).astype(np.bool_)
    return verdicts


@functools.lru_cache(maxsize=8)
def _plans(regions: tuple[str, ...]) -> str:
    from phonenumbers import PhoneMetadata, PhoneNumberFormat, format_number, parse

    # One expression: to ask the package for each region takes three milliseconds a number.
    kinds = ("fixed_line", "mobile", "toll_free", "shared_cost", "premium_rate", "voip", "uan")
    forms = []
    for region in dict.fromkeys(regions):
        plan = PhoneMetadata.metadata_for_region(region, None)
        assert plan is not None, region
        for kind in (getattr(plan, name) for name in (*kinds, "personal_number")):
            if kind is None or not kind.national_number_pattern or not kind.example_number:
                continue
            example = parse(kind.example_number, region)
            written = re.sub("[^0-9]", "", format_number(example, PhoneNumberFormat.NATIONAL))
            # The trunk prefix may be left out where numbers are written without.
            prefixes = [f"(?:00|011)?{plan.country_code}", plan.national_prefix or ""]
            if not plan.national_prefix or written == kind.example_number:
                prefixes.append("")
            forms.append(f"(?:{'|'.join(prefixes)})(?:{kind.national_number_pattern})")
    return "|".join(forms) or "[^0-9]"


@functools.lru_cache(maxsize=8)
def phone_shapes(regions: tuple[str, ...]) -> tuple[Shape, ...]:
    """How these regions group the digits of telephone numbers, nationally and with the country
    code, sorted."""
    shapes = sorted({shape for region in regions for shape in shapes_of(region)})
    assert len(shapes) <= MAX_PHONE_SHAPES
    return tuple(shapes)


@functools.cache
def shapes_of(region: str) -> frozenset[Shape]:
    from phonenumbers import COUNTRY_CODE_TO_REGION_CODE, PhoneMetadata, country_code_for_region

    # Regions that share a country code are written as the first of them says.
    first = COUNTRY_CODE_TO_REGION_CODE[country_code_for_region(region)][0]
    plan = PhoneMetadata.metadata_for_region(first, None)
    assert plan is not None and plan.general_desc is not None, region
    shapes: set[Shape] = set()
    for form in plan.number_format:
        # The rule is for the first group written, which need not be the first of the pattern.
        prefixed = form.national_prefix_formatting_rule or r"\1"
        written = re.sub(r"(\\\d)", prefixed, form.format or "", count=1)
        shapes |= _shapes(form.pattern or "", written)
    for form in [*plan.number_format, *plan.intl_number_format]:
        shapes |= _shapes(form.pattern or "", f"{plan.country_code} {form.format}")
    # What no format fits is written unbroken. Alone it could be anything, so it needs its code.
    shapes |= {(len(str(plan.country_code)), n) for n in plan.general_desc.possible_length}
    return frozenset(shapes)


def _shapes(pattern: str, written: str) -> set[Shape]:
    r"""The groupings that a format like `(\d{2})(\d{3,4})`, written as `0\1 \2`, can make."""
    widths = [
        range(int(fewest or 1), int(most or fewest or 1) + 1)
        for fewest, most in re.findall(r"\(\\d(?:\{(\d+)(?:,(\d+))?\})?\)", pattern)
    ]
    shapes = set()
    for sizes in itertools.product(*widths):
        form = re.sub(r"\\(\d)", lambda found, sizes=sizes: "9" * sizes[int(found[1]) - 1], written)  # type: ignore[misc]
        shapes.add(tuple(map(len, re.findall("[0-9]+", form))))
    return shapes
