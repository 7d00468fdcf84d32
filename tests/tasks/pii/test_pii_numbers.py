"""Cards, accounts, addresses and ids are found where plain Python and stdnum accept them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stdnum import luhn
from stdnum.iban import calc_check_digits
from stdnum.it import codicefiscale

from tasks.definitions import pii_kinds as kinds
from tasks.kernels.pii.numbers import IBAN_LENGTHS
from tasks.pii.checks import Checks
from tasks.pii.config import PiiConfig
from tasks.pii.spans import find_spans
from tests.support.data.pii_oracles import (
    is_card,
    is_iban,
    is_ip4,
    is_ip6,
    is_mac,
    is_national_id,
    stdnum_iban_length,
)


def _found(value: str, kind: str, word: str = "") -> bool:
    """Is the value, alone between quotes behind a word, found as a whole?"""
    data = f'{word}"{value}"'.encode()
    start = len(word) + 1
    return find_spans(data, PiiConfig(types=(kind,))) == [(start, len(data) - 1, kind)]


ISSUERS = [
    "4",
    "51",
    "55",
    "2221",
    "2720",
    "2721",
    "34",
    "37",
    "300",
    "36",
    "38",
    "6011",
    "64",
    "65",
    "3528",
    "3589",
    "62",
    "2200",
    "2205",
    "58",
    "6759",
    "6760",
    "9",
]
SEPARATED = st.sampled_from(["", " ", "-"])


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(ISSUERS), st.integers(0, 10**18), SEPARATED)
def test_cards_are_those_that_plain_python_accepts(prefix, rest, separator) -> None:
    for length in (14, 15, 16, 19):
        body = (prefix + str(rest).zfill(18))[: length - 1]
        for last in (luhn.calc_check_digit(body), "7"):
            digits = body + last
            sizes = {14: (4, 6, 4), 15: (4, 6, 5), 16: (4, 4, 4, 4), 19: (4, 4, 4, 4, 3)}[length]
            groups = [digits[sum(sizes[:k]) : sum(sizes[: k + 1])] for k in range(len(sizes))]
            number = separator.join(groups)
            assert _found(number, "CARD", "card") == is_card(number), number


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(IBAN_LENGTHS)), st.integers(0, 10**30), st.booleans(), st.booleans())
def test_ibans_are_those_that_plain_python_accepts(country, number, letters, grouped) -> None:
    account = str(number).zfill(30)[: IBAN_LENGTHS[country] - 4]
    account = "ABCD" + account[4:] if letters else account
    for check in (calc_check_digits(country + "00" + account), "42"):
        compact = country + check + account
        text = (
            " ".join(compact[i : i + 4] for i in range(0, len(compact), 4)) if grouped else compact
        )
        assert _found(text, "IBAN") == is_iban(text), text


def test_lengths_of_ibans_are_those_of_the_registry() -> None:
    differing = {
        c: (n, stdnum_iban_length(c))
        for c, n in IBAN_LENGTHS.items()
        if stdnum_iban_length(c) not in (n, None)
    }
    assert differing == {}


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from([0, 1, 2, 5, 16, 39, 127, 223, 224, 255, 256, 300]), min_size=4, max_size=4
    )
)
def test_ip4_addresses_are_those_that_plain_python_accepts(octets) -> None:
    text = ".".join(map(str, octets))
    assert _found(text, "IP", "ip ") == is_ip4(text), text


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["", "0", "1", "fe80", "2001", "64", "ff9b", "abcd", "12345", "1.2.3.4", "g"]
        ),
        min_size=2,
        max_size=9,
    )
)
def test_ip6_addresses_are_those_that_plain_python_accepts(groups) -> None:
    text = ":".join(groups)
    assert _found(text, "IP") == is_ip6(text), text


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.sampled_from(["00", "02", "0F", "a4", "Ff", "1", "3g", "10"]), min_size=5, max_size=7
    ),
    st.sampled_from(":-"),
)
def test_mac_addresses_are_those_that_plain_python_accepts(pairs, separator) -> None:
    text = separator.join(pairs)
    assert _found(text, "MAC") == is_mac(text), text


def _passed(kind: int, words: list[bytes]) -> list[bool]:
    """What the checks say of words, each a candidate of the kind."""
    ends = np.cumsum([len(word) for word in words])
    rows = np.array(
        [
            (0, end - len(word), end, kind, 0)
            for word, end in zip(words, ends.tolist(), strict=True)
        ],
        np.int64,
    )
    return Checks(()).passed(np.frombuffer(b"".join(words), np.uint8), rows).tolist()


def _ids(rng: random.Random, kind: int) -> list[int]:
    """Values of a kind, many of them with everything right but the check digits."""
    sizes = {
        kinds.DE_IDNR: 11,
        kinds.FR_NIR: 15,
        kinds.IN_AADHAAR: 12,
        kinds.BR_CPF: 11,
        kinds.KR_RRN: 13,
        kinds.PL_PESEL: 11,
    }
    values = [rng.randrange(10 ** sizes.get(kind, 9)) for _ in range(300)]
    if kind in (kinds.ES_DNI, kinds.ES_NIE):
        return [
            rng.randrange(10**8 if kind == kinds.ES_DNI else 3 * 10**7) * 32 + n % 26 + 1
            for n in range(600)
        ]
    if kind == kinds.US_SSN:
        return [*values, 78051120, 219099999, 666010001, 123000001, 123010000, 900010001, 10001]
    for _ in range(60):
        date = f"{rng.randrange(100):02d}{rng.randrange(14) + rng.choice((0, 20, 80)):02d}{rng.randrange(33):02d}"  # noqa: E501
        if kind == kinds.CN_RIC:
            area = rng.choice(
                ("110101", "110103", "110110", "119999", "429006", "990000", "710000", "310230")
            )
            front = int(
                f"{area}{rng.choice((18, 19, 20))}{date[:2]}{rng.randrange(14):02d}{date[4:]}{rng.randrange(1000):03d}"  # noqa: E501
            )
            values = (values if values[0] > 10**9 else []) + [
                front * 16 + check for check in range(11)
            ]
        elif kind in (kinds.KR_RRN, kinds.PL_PESEL):
            front = int(date + str(rng.randrange(10 ** (sizes[kind] - 7))).zfill(sizes[kind] - 7))
            values += [front * 10 + check for check in range(10)]
        elif kind == kinds.DE_IDNR:
            front = rng.sample("0123456789", 9)
            front.insert(rng.randrange(9), rng.choice(front))
            values += [int("".join(front)) * 10 + check for check in range(10)]
        elif kind in (kinds.FR_NIR, kinds.BR_CPF):
            front = (
                rng.randrange(10 ** (sizes[kind] - 2))
                if kind == kinds.BR_CPF
                else int("2" + date[:4] + str(rng.randrange(10**8)).zfill(8))
            )
            values += [front * 100 + check for check in range(100)]
    return values


@pytest.mark.parametrize("kind", sorted(set(kinds.NATIONAL_IDS.values()) - {kinds.IT_CF}))
def test_national_ids_are_those_of_stdnum(kind) -> None:
    values = _ids(random.Random(kind), kind)
    rows = np.array([(0, 0, 0, kind, value) for value in values], np.int64)
    found = Checks(()).passed(np.zeros(0, np.uint8), rows).tolist()
    assert [
        v for v, verdict in zip(values, found, strict=True) if verdict != is_national_id(kind, v)
    ] == [] and sum(found) >= 5


def test_italian_tax_codes_are_those_of_stdnum() -> None:
    rng = random.Random(0)
    letters, months = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "ABCDEHLMPRSTQ"
    fronts = [
        "".join(rng.choices(letters, k=6))
        + f"{rng.randrange(100):02d}{rng.choice(months)}{rng.randrange(75):02d}H{rng.randrange(1000):03d}"  # noqa: E501
        for _ in range(50)
    ]
    words = [front + last for front in fronts for last in letters]
    found = _passed(kinds.IT_CF, [word.encode() for word in words])
    assert found == [codicefiscale.is_valid(word) for word in words] and sum(found) > 20
