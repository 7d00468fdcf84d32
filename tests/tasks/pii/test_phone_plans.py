"""Telephone numbers judged together get the verdicts that the package gives each of them."""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import phonenumbers
import pyarrow as pa
import pytest
from phonenumbers import COUNTRY_CODE_TO_REGION_CODE

from tasks.pii import phone_plans
from tasks.pii.config import PiiConfig
from tasks.pii.phones import MANY, are_international, are_national, is_international, phone_shapes
from tasks.pii.spans import find_spans
from tests.support.data import pii_oracles
from tests.support.data.phone_numbers import CODES, REGIONS, phone_groups, phone_number


def _wrong_international(rng: random.Random, codes: list[int], count: int) -> tuple[list, int]:
    written = {(str(code) + phone_number(rng, code))[:15] for code in rng.choices(codes, k=count)}
    written |= {str(rng.randrange(1, 10 ** rng.randrange(1, 16))) for _ in range(count // 10)}
    numbers = sorted(number for number in written if number[0] != "0")
    verdicts = phone_plans.are_international(np.array(numbers).astype(np.int64))
    wanted = np.array([pii_oracles.is_international(number) for number in numbers])
    return [numbers[n] for n in np.flatnonzero(verdicts != wanted)], int(wanted.sum())


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
            verdicts = phone_plans.are_national(digits, shape, region)
            wanted = [pii_oracles.is_national(groups, region) for groups in rows]
            may = phone_plans.may_be_national(digits.cast(pa.int64()).to_numpy(), shape, region)
            assert may[np.array(wanted)].all()
            wrong += [
                (region, rows[n]) for n in np.flatnonzero(verdicts != np.array(wanted)).tolist()
            ]
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
    rule that rewrites a prefix, and of digits that a prefix must not take."""
    numbers = [4949791877, 15145550199, 77012345678, 390669812345, 44020, 67210660, 3758011234567]
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
