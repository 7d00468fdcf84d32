"""Tables made of number plans give the verdicts of the package that the plans come from."""

from __future__ import annotations

import random
import re

import numpy as np
import phonenumbers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phonenumbers import COUNTRY_CODE_TO_REGION_CODE, PhoneMetadata, PhoneNumberFormat

from tasks.pii.digit_automata import Automaton, PrefixMachine
from tasks.pii.phone_plans import GROUP_BITS, PhonePlans, phone_shapes
from tests.support.data.pii_oracles import is_international, is_national

PLANS = PhonePlans()
# Shared codes, prefixes that are rewritten (AR, BR, JP, SM), carrier codes, local numbers, and a
# code of no country.
REGIONS = ("US", "BB", "GB", "JE", "AR", "BR", "CN", "JP", "SM", "AU")
CODES = (1, 44, 54, 55, 61, 81, 86, 378, 800)

PIECES = st.sampled_from(
    [
        "1",
        "[2-5]",
        r"\d",
        "(?:0|90)",
        "(?:1[245]|2)?",
        r"\d{2,3}",
        "(3|4)?",
        r"(5\d{2})",
        "6*",
        "(?:78?|7)",
    ]
)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(PIECES, min_size=1, max_size=5).map("".join), min_size=1, max_size=3),
    st.text("0123456789", max_size=9),
)
def test_automata_match_what_regular_expressions_match(patterns, row) -> None:
    automaton, state = Automaton(patterns, patterns), 1
    for digit in row:
        state = int(automaton.step[state, int(digit)])
    for pattern in patterns:
        matched = automaton.matched[state]
        assert bool(matched & automaton.bits[pattern, False]) == bool(re.fullmatch(pattern, row))
        assert bool(matched & automaton.bits[pattern, True]) == bool(re.match(pattern, row))
        for choice in (f"{pattern}|1", f"({pattern})$|[12]"):
            machine, place = PrefixMachine(choice), 0
            for digit in row:
                place = int(machine.step[place, int(digit)])
            found = re.match(choice, row)
            spans = (
                [place for k in range(1, found.re.groups + 1) for place in found.span(k)]
                if found
                else None
            )
            assert (
                machine.results[place] == (found.end(), tuple(spans))
                if found
                else machine.results[place][0] == -1
            )


def test_pattern_that_is_no_part_of_number_plans_is_an_error() -> None:
    for pattern in (r"(?=1)2", r"[^1]2", r"1(?!2)"):
        with pytest.raises(ValueError, match="number plan"):
            Automaton([pattern])


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
    """Numbers on which the tables and the package differ, and how many were valid."""
    numbers = [
        (str(code) + _numbers(rng, code))[:15] for code in (rng.choice(codes) for _ in range(count))
    ]
    numbers += [str(rng.randrange(10**6, 10**15)) for _ in range(count // 10)]
    found = PLANS.are_international(np.array(numbers, np.int64)).tolist()
    wrong = [
        number
        for number, verdict in zip(numbers, found, strict=True)
        if verdict != is_international(number)
    ]
    num_valid = sum(found)
    for region in regions:
        rows = [_groups(rng, region) for _ in range(max(20, count // len(regions)))]
        codes_of_rows = [
            sum(len(group) << GROUP_BITS * k for k, group in enumerate(reversed(row)))
            for row in rows
        ]
        values = np.array([int("".join(row)) for row in rows], np.int64)
        verdicts = PLANS.are_national(values, np.array(codes_of_rows, np.int64), region).tolist()
        wrong += [
            (region, row)
            for row, verdict in zip(rows, verdicts, strict=True)
            if verdict != is_national(row, region)
        ]
        num_valid += sum(verdicts)
    return wrong, num_valid


def _groups(rng: random.Random, region: str) -> tuple[str, ...]:
    """A number as the region, or somebody who dials it from there, may write it; now and then only
    its shape."""
    code = phonenumbers.country_code_for_region(region)
    while True:
        number, shapes = _numbers(rng, code), phone_shapes((region,)).tolist()
        if shapes and rng.random() < 0.3:
            sizes, shape = [], rng.choice(shapes)
            while shape:
                sizes.insert(0, shape & 31)
                shape >>= GROUP_BITS
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
