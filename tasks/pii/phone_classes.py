"""Judges telephone numbers by classes that their plan cannot tell apart, one number for each class.

Numbers of a country code, or dialled in a region in groups of the same sizes, are sorted by what
the expressions of the plan read in them (`tasks.pii.digit_classes`). `tasks.pii.phones` judges the
first of each class, and each number with a prefix that can be taken off in several ways. Cost: some
50 nanoseconds a number, and milliseconds once for a plan.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from tasks.pii import phones
from tasks.pii.digit_classes import DigitClasses
from tasks.pii.phone_plans import codes_of, plan_of

MANY_CLASSES = 8
"""How many numbers of different classes are judged together. They ask for all that a plan has,
which the package compiles at a multiple of the cost of RE2."""
MAX_SIZE = 20
"""More than the digits of any number."""


def are_international(numbers: np.ndarray) -> np.ndarray:
    """Which numbers (int64, all digits after a +, country code first) are valid, as booleans."""
    if len(numbers) < phones.MANY:
        return phones.are_international(numbers)
    verdicts = np.zeros(len(numbers), np.bool_)
    codes, sizes = codes_of(numbers)
    for mine in _alike(codes * MAX_SIZE + sizes):
        code, size = int(codes[mine][0]), int(sizes[mine][0])
        plan, num_digits = plan_of(code) if code else None, size - len(str(code))
        if plan is not None and plan.min_digits <= num_digits <= plan.max_digits:
            judge = functools.partial(phones.are_international, many=MANY_CLASSES)
            verdicts[mine] = _classes(code).judged(numbers[mine], num_digits, judge)
    return verdicts


def are_national(numbers: np.ndarray, shape: phones.Shape, regions: Sequence[str]) -> np.ndarray:
    """Which numbers (int64) in groups of these sizes are valid in one of the regions and grouped as
    it groups them, as booleans."""
    if len(numbers) < phones.MANY:
        return phones.are_national(numbers, shape, regions)
    verdicts = np.zeros(len(numbers), np.bool_)
    for region in regions:
        if shape not in phones.shapes_of(region):
            continue
        judge = functools.partial(
            phones.are_national, shape=shape, regions=(region,), many=MANY_CLASSES
        )
        left = np.flatnonzero(~verdicts)
        verdicts[left] = _dialled(region).judged(numbers[left], sum(shape), judge, shape)
    return verdicts


def _alike(kinds: np.ndarray) -> list[slice] | list[np.ndarray]:
    """Places of the numbers of each kind."""
    if (kinds == kinds[0]).all():  # nothing to sort and to copy
        return [slice(None)]
    order = np.argsort(kinds, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(kinds[order])) + 1)


@functools.lru_cache(maxsize=512)
def _classes(code: int) -> DigitClasses:
    return DigitClasses(*plan_of(code).expressions(plan_of(code), written=False))


@functools.lru_cache(maxsize=512)
def _dialled(region: str) -> DigitClasses:
    from phonenumbers import country_code_for_region

    code = country_code_for_region(region)
    main, home = plan_of(code), plan_of(code, region)
    kinds, whole, beginnings, undecided = main.expressions(home, written=True)
    abroad = [f"(?:{home.abroad})[1-9]", str(code)]
    return DigitClasses(kinds, whole, beginnings, undecided + abroad)
