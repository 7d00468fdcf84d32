"""A record of a web archive with a wrong length or junk around it costs itself, and no others."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tasks.readers import Fault, Record
from tests.support.data.input_files import read_items, warc_record
from tests.support.data.web_archives import (
    EMBEDDED,
    FRAMES,
    FUZZED,
    PAGES,
    check_others,
    offsets_of,
    page,
    with_length,
)

LENGTHS: Mapping[str, Callable[[bytes], bytes]] = {
    "too short": lambda record: with_length(record, lambda n: n - 9),
    "zero": lambda record: with_length(record, lambda n: 0),
    "too long": lambda record: with_length(record, lambda n: n + 60),
    "beyond several records": lambda record: with_length(record, lambda n: n + 900),
    "huge": lambda record: with_length(record, lambda n: 1 << 62),
    "beyond the file": lambda record: with_length(record, lambda n: 1 << 20),
    "negative": lambda record: with_length(record, lambda n: -n),
    "no number": lambda record: with_length(record, lambda n: "many"),
    "empty": lambda record: with_length(record, lambda n: ""),
    "missing": lambda record: re.sub(rb"Content-Length: \d+\r\n", b"", record, count=1),
    "cut": lambda record: record[: -len(record) // 3],
}


@pytest.mark.parametrize("suffix", FRAMES)
@pytest.mark.parametrize("how", LENGTHS)
def test_a_wrong_content_length_costs_its_record(how: str, suffix: str, tmp_path: Path) -> None:
    records = [page(i, b"abc" * i, embeds=i % 2 > 0) for i in range(5)]
    for hit in (0, 2, 4):
        stored = list(records)
        stored[hit] = LENGTHS[how](records[hit])
        path = tmp_path / f"a.warc{suffix}"
        path.write_bytes(b"".join(map(FRAMES[suffix], stored)))
        check_others(path, records, hit, offsets_of(stored))


@pytest.mark.parametrize("suffix", ["", ".gz"])
@FUZZED
@given(st.data())
def test_any_wrong_length_of_one_record_leaves_the_others(
    suffix: str, tmp_path: Path, data: st.DataObject
) -> None:
    drawn = data.draw(st.lists(PAGES, min_size=1, max_size=6))
    hit = data.draw(st.integers(0, len(drawn) - 1))
    # A record that is damaged itself may be split at what looks like a header; the sound ones may
    # not.
    records = [page(i, noise, embeds and i != hit) for i, (noise, embeds) in enumerate(drawn)]
    length = int(re.search(rb"Content-Length: (\d+)", records[hit])[1])  # type: ignore[index]
    wrong = data.draw(
        st.integers(0, 3 * length).filter(
            lambda n: n > length + 4 or length - 25 < n < length or n < 16
        )
    )
    stored = list(records)
    stored[hit] = with_length(records[hit], lambda n: wrong)
    stream = b"".join(stored)
    end = offsets_of(stored)[hit] + stored[hit].index(b"\r\n\r\n") + 4 + wrong
    # A wrong length that leads to what a page holds of a record cannot be told from a right one.
    assume(
        not any(
            end <= m.start() + len(b"<pre>\r\n\r\n") <= end + 4
            for m in re.finditer(re.escape(EMBEDDED), stream)
        )
    )
    path = tmp_path / f"a.warc{suffix}"
    path.write_bytes(b"".join(map(FRAMES[suffix], stored)))
    check_others(path, records, hit, offsets_of(stored))


def test_a_wrong_length_that_leads_to_an_empty_line_of_the_next_record_costs_its_record(
    tmp_path: Path,
) -> None:
    records = [page(0, b"noise" * 20), page(1)]
    to_body_of_next = (
        len(records[0]) - records[0].index(b"\r\n\r\n") - 4 + records[1].index(b"\r\n\r\n")
    )
    stored = [with_length(records[0], lambda n: to_body_of_next), records[1]]
    path = tmp_path / "a.warc"
    path.write_bytes(b"".join(stored))
    check_others(path, records, 0, offsets_of(stored))


def test_junk_between_records_costs_no_record(tmp_path: Path) -> None:
    records = [page(i) for i in range(3)]
    (tmp_path / "a.warc").write_bytes(
        b"junk\r\n" + records[0] + b"junk" * 99 + records[1] + records[2] + b"WAR"
    )
    items = read_items(tmp_path / "a.warc")
    assert [item.values["id"] for item in items if isinstance(item, Record)] == [
        "urn:uuid:0",
        "urn:uuid:1",
        "urn:uuid:2",
    ]
    assert [item.byte_offset for item in items if isinstance(item, Fault)] == [
        0,
        6 + len(records[0]),
        6 + 396 + sum(map(len, records)),
    ]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_http_headers_may_end_their_lines_without_carriage_return(
    line_end: bytes, tmp_path: Path
) -> None:
    head = line_end.join(
        [b"HTTP/1.1 200 OK", b"Content-Type: text/html", b"X-Folded: a", b" b", b"", b""]
    )
    body = b"<p>a page\r\n\r\nin lines\n\nof both kinds"
    (tmp_path / "a.warc").write_bytes(
        warc_record("response", head + body, Content_Type="application/http")
    )
    (record,) = read_items(tmp_path / "a.warc")
    assert isinstance(record, Record) and record.values["http_status"] == 200
    assert record.values["text"].data == body
