"""Each type of personal data: what is found, what only looks alike, and that plain Python
agrees."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stdnum import luhn
from stdnum.iban import calc_check_digits
from stdnum.it import codicefiscale

from tasks.corpus.documentset import text_buffers
from tasks.definitions import pii_kinds as kinds
from tasks.definitions.pii_kinds import TYPE_NAMES
from tasks.kernels.pii.numbers import IBAN_LENGTHS
from tasks.pii.checks import Checks
from tasks.pii.config import DEFAULT_TYPES, PiiConfig
from tasks.pii.scrub import apply_spans, scrub
from tasks.pii.spans import find_all_spans, find_spans
from tests.support.data.pii_oracles import (
    is_card,
    is_iban,
    is_ip4,
    is_ip6,
    is_mac,
    is_national_id,
    stdnum_iban_length,
)

EVERYTHING = PiiConfig(types=TYPE_NAMES, addresses_in_words=True)
# Made for these tests; no key of anybody. Written in two pieces, so that scanners of repositories
# stay quiet.
WORD = "aB3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xY1zA2"
KEYS = [
    "AKIA" + "IOSFODNN7EXAMPLE",
    "ghp_" + WORD,
    "glpat-" + WORD[:20],
    "xoxb-" + "123456789012-" + WORD[:24],
    "AIza" + WORD[:35],
    "sk_live_" + WORD[:24],
    "npm_" + WORD,
    "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH",
    "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0." + WORD,
]
PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n"
    + "MIIEpAIBAAKCAQEA0Z3VS5JJcds3xfn\n" * 3
)
END = "-----END RSA PRIVATE KEY-----"

FOUND = [
    *((f"key={key};", "key=<API_KEY>;") for key in KEYS),
    (f"a {PEM}{END} b", "a <PRIVATE_KEY> b"),
    (f"cut off: {PEM}", "cut off: <PRIVATE_KEY>\n"),
    ("IBAN DE89 3704 0044 0532 0130 00, GB82WEST12345698765432.", "IBAN <IBAN>, <IBAN>."),
    ("身份证11010519491231002X。", "身份证<NATIONAL_ID>。"),
    ("SSN 078-05-1121; ssn: 536904399", "SSN <NATIONAL_ID>; ssn: <NATIONAL_ID>"),
    ("Steuer-ID: 36 574 261 809", "Steuer-ID: <NATIONAL_ID>"),
    ("NIR 2 95 10 99 126 111 93, 295109912611193", "NIR <NATIONAL_ID>, <NATIONAL_ID>"),
    ("DNI 54362315K, NIE X2482300W", "DNI <NATIONAL_ID>, NIE <NATIONAL_ID>"),
    ("Aadhaar 2341 2341 2346", "Aadhaar <NATIONAL_ID>"),
    ("CPF 390.533.447-05; cpf 39053344705", "CPF <NATIONAL_ID>; cpf <NATIONAL_ID>"),
    ("codice RCCMNL83S18D969H.", "codice <NATIONAL_ID>."),
    (
        "971013-9019902 PESEL 44051401359 BSN: 111222333",
        "<NATIONAL_ID> PESEL <NATIONAL_ID> BSN: <NATIONAL_ID>",
    ),
    ("ether 00:16:3e:c2:07:ee, 08-00-2B-4C-59-23", "ether <MAC>, <MAC>"),
]

KEPT = [
    (
        "AKIAXXXXXXXXXXXXXXXX ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx sk_live_ is a prefix,"
        " task-list-of-many-words-in-a-slug"
    ),
    (
        "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA\n-----END PUBLIC"
        " KEY-----"
    ),
    "it begins with -----BEGIN RSA PRIVATE KEY----- and goes on",
    "DE89 3704 0044 0532 0130 01 XX82WEST12345698765432 GB82WEST1234569876543",
    (
        "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNb d41d8cd98f00b204e9800998ecf8427e"
        " 3da541559918a808c2402bba5012f6c60b27661c"
    ),
    "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAeD 0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed",
    "110105194912310021 20231127101530123 11999919491231002X 119999194912310029",
    "000-12-3456 666-12-3456 078-05-1120 123-45-67890 part 12-345-6789",
    "36574261809 36 574 261 809 39053344705 44051401359 111222333 234123412346",
    "20230101T 12345678A X1234567A 54362315L 1954362315K",
    "00:00:00:00:00:00 ff:ff:ff:ff:ff:ff 01:00:5e:00:01:01 10-20-30-40-50-60 de:ad:be:ef:00:11:22",
    "ff02::1 224.0.0.251 239.1.2.3 2.5.18.2",
    (
        "12:34:56:78:90:12 1:2:3:4:5:6:7:8 50:01:43:80:12:34:56:78 00:02:c9:03:00:0a:bc:de"
        " abc::de12 dec::d128"
    ),
    "4.2.2.1. Configuring\n  5.2.7.4 The route\n| 3.2.2.5 | x\n4.3.17.2  job-impressions",
    (
        "@media (min-width: 768px) and (max-width: 1024px) { @import url(a.css); } .a{margin:0 12px"
        " 16px 20px}"
    ),
    "2023-11-27T10:15:30Z 27.11.2023 11/27/2023 20231127 1700000000 1700000000123",
]


@pytest.mark.parametrize(("text", "want"), FOUND)
def test_each_type_is_found_and_tagged(text, want) -> None:
    assert scrub(text) == want


@pytest.mark.parametrize("text", KEPT)
def test_what_only_looks_like_a_type_stays(text) -> None:
    assert scrub(text) == text


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("john dot doe at gmail dot com, please", "<EMAIL>, please"),
        ("john [at] x.org; jane(at)mail(dot)example(dot)net", "<EMAIL>; <EMAIL>"),
        ("look at example.com or meet at the dot", "look at example.com or meet at the dot"),
        (
            "From: Jane Doe <jane@x.org>\nName: Max Müller\n",
            "From: <NAME> <<EMAIL>>\nName: <NAME>\n",
        ),
        (
            "written by Jane van Doe, jane@x.org (Jane Doe)",
            "written by Jane van Doe, <EMAIL> (<NAME>)",
        ),
        (
            "姓名：王小明\nFrom: the beginning\nName: foo",
            "姓名：<NAME>\nFrom: the beginning\nName: foo",
        ),
    ],
)
def test_addresses_in_words_and_names_are_found_where_asked_for(text, want) -> None:
    data = text.encode()
    assert apply_spans(data, find_spans(data, EVERYTHING)).decode() == want
    assert "NAME" not in DEFAULT_TYPES and not PiiConfig().addresses_in_words


def test_types_and_ids_that_are_not_asked_for_stay() -> None:
    text = b"SSN 078-05-1121, DNI 54362315K, bob@x.org"
    only = PiiConfig(types=("NATIONAL_ID",), national_ids=("ES_DNI",))
    assert [(text[s:e], k) for s, e, k in find_spans(text, only)] == [(b"54362315K", "NATIONAL_ID")]


def _found(value: str, kind: str) -> bool:
    """Is the value, alone between quotes, found as a whole?"""
    data = f'"{value}"'.encode()
    return find_spans(data, PiiConfig(types=(kind,))) == [(1, len(data) - 1, kind)]


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
            assert _found(number, "CARD") == is_card(number), number


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
    assert _found(text, "IP") == is_ip4(text), text


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


PIECES = st.sampled_from(
    [
        *"@.:-+/ ()<>*\n_a1",
        *(text for text, _ in FOUND),
        *KEPT,
        "例",
        "at",
        " dot ",
        "From: Jane Doe",
        "\r\n",
        "\u202e\u0661",
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.lists(PIECES, max_size=8).map("".join), st.text(max_size=80), st.binary(max_size=80)
    )
)
def test_spans_of_anything_are_ordered_disjoint_and_at_character_borders(text) -> None:
    data, end = text if isinstance(text, bytes) else text.encode("utf-8"), 0
    for start, stop, kind in find_spans(
        data, PiiConfig() if isinstance(text, bytes) else EVERYTHING
    ):
        assert end <= start < stop <= len(data) and kind in TYPE_NAMES
        if not isinstance(text, bytes):
            data[:start].decode(), data[start:stop].decode()
        end = stop


def test_slice_of_a_column_has_the_spans_of_its_own_documents_only() -> None:
    texts = pa.array(
        [f"before {PEM}{END}", "jane@example.com", f"mine {PEM}{END}", f"after {PEM}{END}"],
        pa.large_string(),
    )
    part = texts.slice(1, 2)
    spans = find_all_spans(*text_buffers(part), EVERYTHING)
    alone = find_all_spans(*text_buffers(pa.array(part.to_pylist(), pa.large_string())), EVERYTHING)
    before = len(texts[0].as_py().encode())
    assert spans.documents.tolist() == alone.documents.tolist() == [0, 1]
    assert (spans.starts - before).tolist() == alone.starts.tolist()
