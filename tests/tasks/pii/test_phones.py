"""Telephone numbers are those that `phonenumbers` calls valid, written as their region writes
them."""

from __future__ import annotations

import random
import re

import phonenumbers
import pytest
from phonenumbers import COUNTRY_CODE_TO_REGION_CODE, PhoneNumberFormat, PhoneNumberType

from tasks.pii.config import PiiConfig
from tasks.pii.phones import is_international, is_national
from tasks.pii.spans import find_spans
from tests.support.data import pii_oracles
from tests.support.data.phone_numbers import CODES, REGIONS, phone_groups, phone_number


def _differing(rng: random.Random, codes, regions, count: int) -> tuple[list, int]:
    """Numbers on which verdicts and the package differ, and how many were valid."""
    numbers = [
        (str(code) + phone_number(rng, code))[:15]
        for code in (rng.choice(codes) for _ in range(count))
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
            groups = phone_groups(rng, region)
            verdict = is_national(int("".join(groups)), tuple(map(len, groups)), region)
            wrong += [] if verdict == pii_oracles.is_national(groups, region) else [groups]
            verdicts.append(verdict)
    return wrong, sum(verdicts)


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
