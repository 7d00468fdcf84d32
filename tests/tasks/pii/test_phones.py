"""Telephone numbers are those that `phonenumbers` calls valid, written as their region writes
them."""

from __future__ import annotations

import random
import re

import phonenumbers
import pytest
from phonenumbers import (
    COUNTRY_CODE_TO_REGION_CODE,
    PhoneMetadata,
    PhoneNumberFormat,
    PhoneNumberType,
)

from tasks.pii.config import PiiConfig
from tasks.pii.phones import is_international, is_national, phone_shapes
from tasks.pii.spans import find_spans
from tests.support.data import pii_oracles

# Shared codes, prefixes that are rewritten (AR, BR, JP, SM), carrier codes, local numbers, and a
# code of no country.
REGIONS = ("US", "BB", "GB", "JE", "AR", "BR", "CN", "JP", "SM", "AU")
CODES = (1, 44, 54, 55, 61, 81, 86, 378, 800)


def _numbers(rng: random.Random, code: int) -> str:
    """An example of some region with this code, changed in a few places, perhaps too short, too
    long or with a prefix."""
    plan = PhoneMetadata.metadata_for_region_or_calling_code(
        code, rng.choice(COUNTRY_CODE_TO_REGION_CODE[code])
    )
    kinds = [
        getattr(plan, name)
        for name in ("fixed_line", "mobile", "toll_free", "premium_rate", "voip", "pager", "uan")
    ]
    digits = list(
        rng.choice(
            [kind.example_number for kind in kinds if kind and kind.example_number] or ["123456"]
        )
    )
    for _ in range(rng.choice([0, 1, 2, 4, 9])):
        digits[rng.randrange(len(digits))] = rng.choice("0123456789")
    number = "".join(digits)[: -1 if rng.random() < 0.15 else None] + (
        rng.choice("0123456789") if rng.random() < 0.15 else ""
    )
    if plan.national_prefix_for_parsing and rng.random() < 0.3:
        number = (
            rng.choice(
                [
                    *re.findall(r"\d+", plan.national_prefix_for_parsing),
                    "0",
                    "1",
                    "011",
                    "0011",
                    "0915",
                ]
            )
            + number
        )
    return number


def _differing(rng: random.Random, codes, regions, count: int) -> tuple[list, int]:
    """Numbers on which verdicts and the package differ, and how many were valid."""
    numbers = [
        (str(code) + _numbers(rng, code))[:15] for code in (rng.choice(codes) for _ in range(count))
    ]
    numbers += [str(rng.randrange(10**6, 10**15)) for _ in range(count // 10)]
    verdicts = [is_international(int(number)) for number in numbers]
    wrong: list = [
        number
        for number, verdict in zip(numbers, verdicts, strict=True)
        if verdict != pii_oracles.is_international(number)
    ]
    for region in regions:
        for _ in range(max(20, count // len(regions))):
            groups = _groups(rng, region)
            verdict = is_national(int("".join(groups)), tuple(map(len, groups)), region)
            wrong += [] if verdict == pii_oracles.is_national(groups, region) else [groups]
            verdicts.append(verdict)
    return wrong, sum(verdicts)


def _groups(rng: random.Random, region: str) -> tuple[str, ...]:
    """A number as the region, or somebody who dials it from there, may write it; now and then only
    its shape."""
    code = phonenumbers.country_code_for_region(region)
    while True:
        number, shapes = _numbers(rng, code), phone_shapes((region,))
        if shapes and rng.random() < 0.3:
            sizes = rng.choice(shapes)
            rest = iter((rng.choice(["", str(code)]) + number).ljust(sum(sizes), "5"))
            return tuple("".join(next(rest) for _ in range(size)) for size in sizes)
        try:
            parsed = phonenumbers.parse(number, region)
        except phonenumbers.NumberParseException:
            continue
        style = rng.choice(
            [PhoneNumberFormat.NATIONAL, PhoneNumberFormat.INTERNATIONAL, PhoneNumberFormat.E164]
        )
        written = phonenumbers.format_number(parsed, style)
        if rng.random() < 0.1:
            written = phonenumbers.format_out_of_country_calling_number(parsed, region)
        groups = tuple(re.findall("[0-9]+", written))
        if sum(map(len, groups)) <= 15:
            return groups


def test_verdicts_are_those_of_the_package() -> None:
    wrong, num_valid = _differing(random.Random(0), CODES, REGIONS, 500)
    assert wrong == [] and num_valid > 250


@pytest.mark.slow
def test_verdicts_are_those_of_the_package_everywhere() -> None:
    rng = random.Random(1)
    wrong, num_valid = _differing(
        rng, list(COUNTRY_CODE_TO_REGION_CODE), sorted(phonenumbers.SUPPORTED_REGIONS), 100_000
    )
    assert wrong == [] and num_valid > 50_000


def _found(written: str, region: str) -> bool:
    """Is the number, between words, found as a whole?"""
    text = f"saw {written} now".encode()
    spans = find_spans(text, PiiConfig(types=("PHONE",), regions=(region,)))
    return spans == [(4, len(text) - 4, "PHONE")]


@pytest.mark.parametrize("kind", [PhoneNumberType.MOBILE, PhoneNumberType.FIXED_LINE])
def test_example_numbers_of_every_region_are_found_as_it_writes_them(kind) -> None:
    """National ones where they have two groups and 9 to 12 digits, and international ones in one
    group where they have more than seven; others could be anything."""
    for region in sorted(phonenumbers.SUPPORTED_REGIONS):
        number = phonenumbers.example_number_for_type(region, kind)
        if number is None:
            continue
        assert _found(phonenumbers.format_number(number, PhoneNumberFormat.INTERNATIONAL), region)
        written = phonenumbers.format_number(number, PhoneNumberFormat.E164)
        assert _found(written, region) == (len(written) > 8), written
        written = phonenumbers.format_number(number, PhoneNumberFormat.NATIONAL)
        groups = re.findall("[0-9]+", written)
        in_reach = len(groups) > 1 and 9 <= sum(map(len, groups)) <= 12
        assert _found(written, region) == in_reach, (region, written)


@pytest.mark.parametrize(
    "written",
    ["(111) 555-0199", "2125 550 199", "21 25 55 01 99", "+1 111 555 0199", "+999 212 555 0199"],
)
def test_numbers_of_no_plan_and_other_groupings_stay(written) -> None:
    assert _found("(212) 555-0199", "US") and not _found(written, "US")


def test_number_that_comes_again_is_not_looked_up_again() -> None:
    is_international.cache_clear()
    text = b"+49 30 901820 or +4930901820, " * 3
    assert len(find_spans(text, PiiConfig(types=("PHONE",)))) == 6
    assert is_international.cache_info().misses == 1


@pytest.mark.parametrize(
    ("groups", "region"),
    [
        (("247", "62889"), "AC"),
        (("350", "57123456"), "GI"),
        (("011", "15", "2345", "6789"), "AR"),
    ],
)
def test_numbers_are_found_where_the_plan_has_no_format_or_one_that_changes_their_order(
    groups: tuple[str, ...], region: str
) -> None:
    assert is_national(int("".join(groups)), tuple(map(len, groups)), region)
    assert not is_national(62889, (5,), "AC"), "five digits alone could be anything"
