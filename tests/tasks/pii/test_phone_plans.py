"""Telephone numbers judged together, and by classes, get the verdicts that the package gives each
of them."""

from __future__ import annotations

import random
import re
from collections import defaultdict

import numpy as np
import phonenumbers
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from phonenumbers import COUNTRY_CODE_TO_REGION_CODE

from tasks.kernels.pii.phones import NORTH_AMERICAN_DIGITS
from tasks.pii import phone_classes, phone_plans
from tasks.pii.config import PiiConfig
from tasks.pii.digit_classes import DigitClasses
from tasks.pii.phone_classes import are_international, are_national
from tasks.pii.phone_plans import plan_of
from tasks.pii.phones import MANY, is_international, phone_shapes
from tasks.pii.spans import find_spans
from tests.support.data import pii_oracles
from tests.support.data.phone_numbers import CODES, REGIONS, phone_groups, phone_number


def _wrong_international(rng: random.Random, codes: list[int], count: int) -> tuple[list, int]:
    written = {(str(code) + phone_number(rng, code))[:15] for code in rng.choices(codes, k=count)}
    written |= {str(rng.randrange(1, 10 ** rng.randrange(1, 16))) for _ in range(count // 10)}
    numbers = sorted(number for number in written if number[0] != "0")
    values = np.array(numbers).astype(np.int64)
    wanted = np.array([pii_oracles.is_international(number) for number in numbers])
    are_wrong = phone_plans.are_international(values) != wanted
    are_wrong |= phone_classes.are_international(values) != wanted
    return [numbers[n] for n in np.flatnonzero(are_wrong)], int(wanted.sum())


def _wrong_national(rng: random.Random, regions: list[str], count: int) -> tuple[list, int]:
    wrong, num_valid = [], 0
    for region in regions:
        by_shape = defaultdict(list)
        for groups in (phone_groups(rng, region) for _ in range(count)):
            by_shape[tuple(map(len, groups))].append(groups)
        for shape, rows in by_shape.items():
            if shape not in phone_shapes((region,)):
                continue
            digits = pa.array(["".join(groups) for groups in rows])
            wanted = np.array([pii_oracles.is_national(groups, region) for groups in rows])
            are_wrong = phone_plans.are_national(digits, shape, region) != wanted
            # Few numbers are judged one by one.
            many = np.tile(digits.cast(pa.int64()).to_numpy(), MANY)
            by_class = phone_classes.are_national(many, shape, (region,))
            are_wrong |= (by_class.reshape(MANY, -1) != wanted).any(0)
            wrong += [(region, rows[n]) for n in np.flatnonzero(are_wrong).tolist()]
            num_valid += sum(wanted)
    return wrong, num_valid


def test_numbers_judged_together_are_those_of_the_package() -> None:
    rng = random.Random(0)
    wrong, num_valid = _wrong_international(rng, list(CODES), 1_000)
    assert wrong == [] and num_valid > 200
    wrong, num_valid = _wrong_national(rng, list(REGIONS), 100)
    assert wrong == [] and num_valid > 150


@pytest.mark.slow
def test_numbers_judged_together_are_those_of_the_package_everywhere() -> None:
    rng = random.Random(1)
    wrong, num_valid = _wrong_international(rng, list(COUNTRY_CODE_TO_REGION_CODE), 100_000)
    assert wrong == [] and num_valid > 30_000
    wrong, num_valid = _wrong_national(rng, sorted(phonenumbers.SUPPORTED_REGIONS), 250)
    assert wrong == [] and num_valid > 15_000


def test_numbers_that_only_some_forms_of_a_plan_have_are_judged_by_all_of_them() -> None:
    """A German one that fits a kind and not the general form, of regions that share a code, of a
    rule that rewrites a prefix, of digits that a prefix must not take, and a local number behind a
    prefix."""
    numbers = [4949791877, 15145550199, 77012345678, 390669812345, 44020, 67210660, 3758011234567]
    numbers.append(113103383)
    wanted = [pii_oracles.is_international(str(number)) for number in numbers]
    assert phone_plans.are_international(np.array(numbers)).tolist() == wanted
    assert sum(wanted) == 5


@pytest.mark.parametrize(
    ("region", "written", "is_one"),
    [
        ("GA", "060 31 23 44", True),
        ("BY", "375 801 123 4565", True),
        ("BQ", "599 9 556 1234", True),
        ("JE", "44 1461 256769", True),
        ("AD", "376 310", True),
        ("AR", "011 15 2345 6789", True),
        ("GB", "020 7946 0018", True),
        ("GB", "0207 946 0018", False),
    ],
)
def test_dialled_numbers_are_read_as_the_package_reads_them(region, written, is_one) -> None:
    groups = tuple(written.split())
    assert pii_oracles.is_national(groups, region) == is_one
    shape = tuple(map(len, groups))
    assert phone_plans.are_national(pa.array(["".join(groups)]), shape, region).tolist() == [is_one]


def test_numbers_of_one_class_are_judged_once() -> None:
    """Ten thousand numbers of one exchange are alike to every plan, and so is the next ten
    thousand."""
    asked: list[int] = []

    def judge(numbers: np.ndarray) -> np.ndarray:
        asked.extend(numbers.tolist())
        return np.ones(len(numbers), np.bool_)

    whole = r"^(?:[2-9]\d{2}(?:55|66)\d{5}|3\d{6,7})$"
    classes = DigitClasses([whole], [], ["21"], ["4"])
    numbers = 3_125_500_000 + np.arange(100_000)
    assert classes.judged(numbers, 10, judge).all() and asked == [3_125_500_000]
    assert classes.judged(numbers + 10**7, 10, judge).all() and len(asked) == 1
    assert classes.judged(numbers - 10**9, 10, judge).all() and len(asked) == 2  # begins with 21
    assert classes.judged(numbers + 10**9, 10, judge).all()
    assert len(asked) == 100_002, "each of those that may have a prefix"
    assert not classes.judged(numbers + 2 * 10**5, 10, judge).any() and len(asked) == 100_002


@given(
    st.from_regex(r"(?:[1-9]|\[[0-4]{1,2}\]|\\d|\(\?:[12]{1,2}\|3[0-4]\))"
                  r"(?:[1-9]|\[^[5-9]\]|\\d\{1,3\}|\(\?:4\|5\[67\]\)\?){0,4}", fullmatch=True),
    st.lists(st.integers(0, 9_999), min_size=1, max_size=50),
    st.sampled_from(["", "1", "42"]),
)  # fmt: skip
def test_classes_match_what_the_expression_matches(
    expression: str, some: list[int], prefix: str
) -> None:
    expression = f"{prefix}(?:{expression})" if prefix else expression
    numbers = np.array(some)
    whole = [re.fullmatch(expression, f"{n:04d}") is not None for n in some]
    begun = [re.match(expression, f"{n:04d}") is not None for n in some]

    def judge(asked: np.ndarray) -> np.ndarray:
        return np.array([wanted[some.index(n)] for n in asked.tolist()])

    for wanted, classes in (
        (whole, DigitClasses([expression])),
        (begun, DigitClasses([r"\d{4}"], [], [expression])),
    ):
        assert classes.judged(numbers, 4, judge).tolist() == wanted


def test_few_numbers_and_many_get_the_same_verdicts() -> None:
    numbers = np.arange(12_125_550_000, 12_125_550_000 + 3 * MANY, 3)
    numbers[::2] -= 10**9
    together = are_international(numbers)
    assert together.tolist() == [is_international(number) for number in numbers.tolist()]
    assert 0 < together.sum() < len(numbers)
    local, regions = numbers % 10**10, ("DE", "JP", "US")
    alone = [are_national(local[n : n + 1], (3, 3, 4), regions)[0] for n in range(len(local))]
    assert are_national(local, (3, 3, 4), regions).tolist() == alone
    assert 0 < sum(alone) < len(local)


def test_text_of_many_numbers_has_the_spans_of_its_lines() -> None:
    rng = random.Random(2)
    lines = [
        f"+1 {rng.randrange(1000)} 555 {rng.randrange(10**4):04}, {rng.randrange(1000)}-555-0199"
        for _ in range(2 * MANY)
    ]
    config, wanted, start = PiiConfig(types=("PHONE",)), [], 0
    for line in lines:
        wanted += [(start + a, start + b, kind) for a, b, kind in find_spans(line.encode(), config)]
        start += len(line) + 1
    assert find_spans("\n".join(lines).encode(), config) == wanted and len(wanted) > MANY


def test_shortest_number_of_north_america_has_as_many_digits_as_the_search_asks_for() -> None:
    assert len("1") + plan_of(1).min_digits == NORTH_AMERICAN_DIGITS
    assert find_spans(b"see +1 310-1234", PiiConfig(types=("PHONE",))) == [(4, 15, "PHONE")]
