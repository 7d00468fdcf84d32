"""Telephone numbers for tests: examples of the plans, changed a little, as people write them."""

from __future__ import annotations

import random
import re

import phonenumbers
from phonenumbers import COUNTRY_CODE_TO_REGION_CODE, PhoneMetadata, PhoneNumberFormat

from tasks.pii.phones import phone_shapes

# Shared codes, prefixes that are rewritten (AR, BR, JP, SM), carrier codes, local numbers, and a
# code of no country.
REGIONS = ("US", "BB", "GB", "JE", "AR", "BR", "CN", "JP", "SM", "AU")
CODES = (1, 44, 54, 55, 61, 81, 86, 378, 800)


def phone_number(rng: random.Random, code: int) -> str:
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


def phone_groups(rng: random.Random, region: str) -> tuple[str, ...]:
    """A number as the region, or somebody who dials it from there, may write it; now and then only
    its shape."""
    code = phonenumbers.country_code_for_region(region)
    while True:
        number, shapes = phone_number(rng, code), phone_shapes((region,))
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
