"""Personal data: what is found, what only looks alike, and that scrubbing holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from tasks.corpus.documentset import text_buffers
from tasks.definitions.pii_kinds import TYPE_NAMES
from tasks.kernels.pii.rows import MAX_LOOK_BYTES
from tasks.pii.config import PiiConfig
from tasks.pii.scrub import apply_spans, scrub
from tasks.pii.spans import find_all_spans, find_spans
from tasks.pii.stage import find_pii
from tests.support.data.make_artifacts import empty_dir, ingest_files, read_documents, write_jsonl

SAMPLE = Path(__file__).parents[3] / "data" / "sample"
DEFAULT = PiiConfig()

FOUND = [
    ("write to alice@example.com", "write to <EMAIL>"),  # up to the end of the text
    ("<alice.b+list@mail.example.co.uk>,", "<<EMAIL>>,"),
    ("Bob at bob@x.org. Or mailto:bob@x.org!", "Bob at <EMAIL>. Or mailto:<EMAIL>!"),
    ("üser@exämple.com 用户@例子.中国", "<EMAIL> <EMAIL>"),
    ("请联系foo@bar.com谢谢", "请联系<EMAIL>谢谢"),
    ("12345@163.com, x@y.org-based", "<EMAIL>, <EMAIL>-based"),
    ("8.8.4.4 and (93.184.216.34:80)", "<IP> and (<IP>:80)"),
    ("http://203.0.113.7/a 203.0.113.0/24", "http://<IP>/a <IP>/24"),
    ("10.0.0.1-10.0.0.9", "<IP>-<IP>"),
    ("[2001:db8::a00:20ff:fea7:ccea]:80 fe80::1", "[<IP>]:80 <IP>"),
    ("+1 (212) 555-0199 card 4111 1111 1111 1111", "<PHONE> card <CARD>"),
    ("call +49 30 901820 or +86 138 1234 5678.", "call <PHONE> or <PHONE>."),
    ("(212) 555-0199; 212-555-0199; 212.555.0199", "<PHONE>; <PHONE>; <PHONE>"),
    ("电话：138 1234 5678", "电话：<PHONE>"),
    (
        "4111111111111111 or\n5555-5555-5555-4444 or\n3782 822463 10005",
        "<CARD> or\n<CARD> or\n<CARD>",
    ),
    ("Visa 4111111111111111, 5555-5555-5555-4444", "Visa <CARD>, <CARD>"),
    ("Mir 2200700000000009 Maestro 6759649826438453", "Mir <CARD> Maestro <CARD>"),
    ("8.8.8.8, host 4.4.0.3, [4.4.0.3], 4.4.0.3:80", "<IP>, host <IP>, [<IP>], <IP>:80"),
    ("192.168.1.10 2001 times", "<IP> 2001 times"),
    (
        "see 192.168.1.10 and 8.8.4.4; from 8.8.4.4, 9.9.9.9 (10.1.1.1)",
        "see <IP> and <IP>; from <IP>, <IP> (<IP>)",
    ),
]

KEPT = [
    "git@github.com:org/repo git clone git@gitlab.com:a/b.git git@host.example:repo.git",
    "ssh://git@host.example.com/x ftp://anon:word@ftp.example.org/",
    "@app.route('/') @property npm i @a/b@1.2 @types/node@latest x@2.1.0 left-pad@1.3.0",
    "logo@2x.png getty@tty1.service A@B.dot(C) a @ b.c user@localhost @@ -1,7 +1,7 @@",
    "1.3.6.1.4.1.311.21.20 OID 1.3.6.1 OID: 2.5.4.3",
    (
        "libfoo-4.15.0.112 v8.0.33.21 version 8.0.33.21 Version: 8.0.33.21 (>= 8.0.33.21)"
        " pkg==1.2.3.4 1.2.3.4-5ubuntu 1.2.3.4+dfsg sudo@1.8.4.1 Workload.Android.11.0.200.245"
    ),
    (
        "section 4.2.2.1, Sec. 4.2.2.1, § 4.2.2.1, §4.2.2.1; Standards-Version to 4.6.0.1;"
        " boost/1.74.0.1"
    ),
    (
        "an error (see 4.2.3.9), Sections 3.2.2.9 and 3.3.1.1, Section\n      4.2.1.1 for it,"
        " sections 1.2.3.4, 1.2.3.5 or 1.2.3.6"
    ),
    "第 4.11.19.1 节 第 10.1.2.3 節 内核 2.6.22.16 • 7.12.3.2 The isfinite 49.6.4.11. Stream",
    "debian-policy (4.4.0.0) unstable, zlib1g (>= 1:1.2.3.3.dfsg), be sure to run 4.4.0.3",
    "codes 4012 4013 4014 4019 or 4012888888881881 4111111111111111, order 4111111111111111",
    "Numbers 2200700000000009 and 6759649826438453 and http://guest:guest@x.org",
    "9911.1.2.3 300.1.1.1 1.2.3 1.2.3.4.5 01.2.3.4 127.0.0.1 0.0.0.0 255.255.255.0",
    "`26.5`, `26.5.7-jammy`, `26.5.7.64`; 10.1.1, 10.1.1.0; 6-Jul-2015::20:47:02",
    'FileVersion: 7.5.0.101, version="[3.3.12.1]", Get\\1.0.0.1\\a.psd1, - [2.2.9.1 Types][01]',
    "c1.69 2.74 6.74.39.45-.77 6.8%209.7.51.51",
    "<version>8.1.3.140</version> <jackson.version>2.9.10.80</jackson.version>",
    "128.0.0.0 192.0.0.0 std::abs a::b 12:34:56 ::1 http://[::]:80",
    "05.10.1986 03.06.15 2023-11-27 10:00:00 1986-10-05 +0000 +02:00",
    "ISBN 978-3-16-148410-0, ISBN 0-306-40615-2, 550e8400-e29b-41d4-a716-446655440000",
    "1700000000000 1700000000 3.14159265358979323846 order 123-4567890-1234567 DFARS 252.227-7014",
    "'fecha':'231018191116348'",  # a time stamp, with the check digits of a French number
    "4111 1111 1111 1112 1234567812345670 41111111111111111111111 0x4111111111111111 9780306406157",
    "1000 4111 1111 1111 1111 2000 3000",  # a row of a table
    "2125550199 12.5 1,234,567,890 100 200 300 400 500 212-555-0199-1234 212 555 0199 333",
]


@pytest.mark.parametrize(("text", "want"), FOUND)
def test_personal_data_is_found(text, want) -> None:
    assert scrub(text) == want


@pytest.mark.parametrize("text", KEPT)
def test_what_only_looks_alike_stays(text) -> None:
    assert scrub(text) == text


PIECES = st.sampled_from(
    [
        *"@.:-+/ ()<>\n_a1",
        "bob@x.org",
        "1.2.3.4",
        "4111 1111 1111 1111",
        "+1 212 555 0199",
        "212-555-0199",
        "fe80::1",
        "version",
        "é",
        "例",
        "10.0.0.1-",
        "see ",
        "\r\n",
        "\u00a0",
        "\u2011",
        "\u202e",
        "\u0661\uff11",  # digits of other scripts
        "\U0001f600",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.lists(PIECES, max_size=14).map("".join), st.text(max_size=60)))
def test_scrubbing_twice_changes_nothing(text) -> None:
    once = scrub(text)
    assert scrub(once) == once


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, max_size=14).map("".join))
def test_spans_are_ordered_disjoint_and_at_character_borders(text) -> None:
    data, end = text.encode(), 0
    for start, stop, kind in find_spans(data, DEFAULT):
        assert end <= start < stop <= len(data) and kind in TYPE_NAMES
        data[:start].decode(), data[start:stop].decode()
        end = stop


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(PIECES, max_size=8).map("".join), min_size=1, max_size=5))
@example(["212 555 0199", "-1"])
@example(["bob@x", ".org"])
def test_documents_in_one_buffer_are_judged_alone(texts) -> None:
    values, begins = text_buffers(pa.array(texts, pa.large_string()))
    found = find_all_spans(values, begins, DEFAULT)
    shifts = begins[found.documents]
    together = list(
        zip(found.documents, found.starts - shifts, found.ends - shifts, found.types, strict=True)
    )
    alone = [
        (number, start, end, TYPE_NAMES.index(kind))
        for number, text in enumerate(texts)
        for start, end, kind in find_spans(text.encode(), DEFAULT)
    ]
    assert together == alone


@settings(max_examples=60, deadline=None)
@given(
    st.lists(PIECES, max_size=10).map("".join),
    st.lists(PIECES, max_size=10).map("".join),
    st.sampled_from(["a", "1", " ", ".", "/", "@", "1 "]),
)
def test_nothing_further_than_the_look_around_decides(text, other, filler) -> None:
    """Linear time by structure: beyond a fixed distance no byte is looked at, so any change there
    changes nothing here."""
    gap = (filler * MAX_LOOK_BYTES)[:MAX_LOOK_BYTES].encode()
    quiet = (
        b"\n" * 8
    )  # stands between the text and the hostile filler, so that the filler is not a neighbour
    middle = gap + quiet + text.encode() + quiet + gap
    left, right = other.encode() + b"\n", b"\n" + other.encode()

    def inside(data: bytes, shift: int) -> list:
        low, high = len(gap) + len(quiet), len(gap) + len(quiet) + len(text.encode())
        return [
            (s - shift, e - shift, k)
            for s, e, k in find_spans(data, DEFAULT)
            if low <= s - shift and e - shift <= high
        ]

    assert inside(middle, 0) == inside(left + middle + right, len(left))


@pytest.mark.parametrize(
    "pattern",
    [
        "a/",
        "a.",
        "@@",
        "((((",
        "4111 ",
        "a.b-",
        "aa@bb.cc ",
        "123-456-7890 ",
        "1.1.1.1.",
        "::",
        "1 ",
        "+1",
        "\u4f8b@",
    ],
)
def test_hostile_repetition_gives_the_same_spans_at_any_length(pattern) -> None:
    """Away from both ends a repeated pattern is judged alike everywhere: no state grows with the
    text."""
    unit = pattern.encode()
    counts = []
    for repeats in (2_000, 4_000, 6_000):
        counts.append(len(find_spans(unit * repeats, DEFAULT)))
    assert counts[2] - counts[1] == counts[1] - counts[0]


def test_chain_of_addresses_that_free_each_other_is_found_to_its_end() -> None:
    # One side of each is a letter until its neighbour is a tag.
    text = "x" + "@x.org@y.org" * 200
    assert scrub(scrub(text)) == scrub(text)


def sample_lines(name: str) -> Iterator[dict[str, Any]]:
    with (SAMPLE / name).open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def test_every_marked_address_of_the_sample_is_found() -> None:
    truth = {d["id"]: d["spans"] for d in sample_lines("truth_pii.jsonl")}
    found = wanted = extra = 0
    for record in sample_lines("sample.jsonl"):
        if record["id"] not in truth:
            continue
        data = record["text"].encode()
        got = {
            (len(data[:s].decode()), len(data[:e].decode()))
            for s, e, k in find_spans(data, DEFAULT)
            if k == "EMAIL"
        }
        want = {(s, e) for kind, s, e in truth[record["id"]] if kind == "email"}
        found, wanted, extra = found + len(got & want), wanted + len(want), extra + len(got - want)
    assert wanted == 649 and found == wanted
    assert extra <= 5  # addresses in the text that the truth does not mark


def test_region_without_a_number_plan_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=r"regions \(UK\) has no number plan"):
        PiiConfig(regions=("US", "UK"))
    assert PiiConfig(regions=("GB", "US")).regions == ("GB", "US")


def test_stage_writes_byte_spans_and_counts_types(tmp_path) -> None:
    records = [{"text": "é bob@x.org 8.8.4.4"}, {"text": "nothing"}, {"text": "a@x.org b@x.org"}]
    write_jsonl(tmp_path / "a.jsonl", records)
    source = ingest_files(tmp_path, "in", [tmp_path / "a.jsonl"])
    artifact = find_pii(source, empty_dir(tmp_path / "out"), PiiConfig())
    rows = pq.read_table(artifact.file("part-00000.parquet")).to_pylist()
    assert [row["id"] for row in rows] == [row["id"] for row in read_documents(source)]
    assert rows[0]["spans"] == [
        {"start": 3, "end": 12, "type": "EMAIL", "replacement": "<EMAIL>"},
        {"start": 13, "end": 20, "type": "IP", "replacement": "<IP>"},
    ]
    assert rows[1]["spans"] == []
    assert artifact.metrics["types"]["EMAIL"] == {"spans": 3, "documents": 2}
    assert artifact.metrics["types"]["CARD"] == {"spans": 0, "documents": 0}
    assert artifact.counters == {"read": 3, "kept": 3, "dropped": {}, "quarantined": 0}
    only_ip = find_pii(source, empty_dir(tmp_path / "ip"), PiiConfig(types=("IP",)))
    assert only_ip.metrics["types"] == {"IP": {"spans": 1, "documents": 1}}


def test_regions_decide_which_national_numbers_are_found() -> None:
    text = b"030 901820 und 020 7946 0958"
    assert find_spans(text, PiiConfig(regions=())) == []
    assert [text[s:e] for s, e, _ in find_spans(text, PiiConfig(regions=("GB",)))] == [
        b"020 7946 0958"
    ]


def test_config_names_unknown_types_and_regions() -> None:
    with pytest.raises(ConfigError, match="EMAIL"):
        PiiConfig(types=("EMIAL",))
    with pytest.raises(ConfigError, match=r"types \(CRYPTO\) .*; known: API_KEY, CARD"):
        PiiConfig(types=("CRYPTO",))
    with pytest.raises(ConfigError, match="ISO 3166"):
        PiiConfig(regions=("germany",))


def test_applied_spans_replace_bytes_exactly() -> None:
    assert apply_spans("aébc".encode(), [(1, 3, "IP"), (4, 5, "CARD")]) == b"a<IP>b<CARD>"
    with pytest.raises(AssertionError):
        apply_spans(b"abc", [(1, 3, "IP"), (2, 3, "IP")])
    assert scrub("lone \ud800 surrogate bob@x.org") == "lone \ud800 surrogate <EMAIL>"
    assert np.array_equal(find_spans(b"", DEFAULT), [])


def test_span_is_found_wherever_it_stands_among_blocks_of_64_bytes() -> None:
    for before in range(70):
        for behind in (0, 1, 70):
            text = b" " * before + b"a@b.de" + b" " * behind
            assert find_spans(text, DEFAULT) == [(before, before + 6, "EMAIL")]
