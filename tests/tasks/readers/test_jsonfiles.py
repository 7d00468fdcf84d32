"""A JSON file is read as what it is, lines, array or objects over lines, and one without records is
one fault that says so."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.readers import Fault, Record, jsonfiles, jsonvalues
from tasks.readers.recordlimits import Limits
from tests.support.data.input_files import COLUMNS, COMPRESS, read_items
from tests.support.data.json_texts import FUZZED, RECORDS, STYLES, faults_of, values_of, write


@pytest.mark.parametrize("style", STYLES)
@FUZZED
@given(
    records=RECORDS, suffix=st.sampled_from(list(COMPRESS)), bom=st.booleans(), few=st.booleans()
)
def test_the_same_records_come_of_every_way_to_write_them(
    style: str, tmp_path: Path, records: list[Any], suffix: str, bom: bool, few: bool
) -> None:
    text = "\ufeff" * bom + STYLES[style](records)
    for name in ("a.json", "a.jsonl"):
        with pytest.MonkeyPatch.context() as patch:
            if few:  # so that values go over blocks
                patch.setattr("tasks.readers.codecs.BLOCK_BYTES", 7)
                patch.setattr("tasks.readers.bytestreams.BLOCK_BYTES", 7)
                patch.setattr("tasks.readers.jsonfiles.BEGINNING_BYTES", 64)
            items = read_items(write(tmp_path / f"{name}{suffix}", text, suffix))
        assert values_of(items) == [json.loads(json.dumps(r)) for r in records] and not faults_of(
            items
        )
        data = text.encode("utf-8", "surrogatepass")
        for item in items:
            assert isinstance(item, Record) and item.position == item.byte_offset
            assert item.line == data.count(b"\n", 0, item.position) + 1
            start = data[item.position :].removeprefix(b"\xef\xbb\xbf")
            assert start.startswith(b"{")
        assert ["BOM" in item.repaired for item in items if isinstance(item, Record)] == [
            bom,
            *[False] * (len(records) - 1),
        ]


NO_OBJECT = "value(s), none of them a JSON object (the first: wrong type: the record is"


NO_COLUMN = "no records: one JSON object without column text, in which 1 array(s) hold"


@pytest.mark.parametrize(
    ("text", "at", "said"),
    [
        ("[1, 2, 3]", 1, f"no records: 3 {NO_OBJECT} a number"),
        ('[\n "a",\n "b"\n]', 3, f"no records: 2 {NO_OBJECT} text"),
        ('[[{"text": "a"}], [{"text": "b"}]]', 1, f"no records: 2 {NO_OBJECT} a list"),
        ("[]", 0, "no records: an empty JSON array"),
        (" [\n]\n", 0, "no records: an empty JSON array"),
        ("[null]", 1, f"no records: 1 {NO_OBJECT} null"),
        ("[" + "1," * 5000 + "1]", 1, f"no records: 5,001 {NO_OBJECT} a number"),
        (
            '{"data": [{"text": "a"}, {"text": "b"}]}',
            0,
            f"{NO_COLUMN} 2 objects; write those as an array or as lines",
        ),
        (
            '{\n "version": 1,\n "data": [\n  {\n   "text": "a"\n  }\n ]\n}',
            0,
            f"{NO_COLUMN} 1 objects",
        ),
        (
            "plain text\n" * 200,
            0,
            "no records: 200 line(s), none of them a JSON object (the first: broken JSON",
        ),
        ("42", 0, "wrong type: the record is a number, not an object"),
    ],
)
def test_a_file_without_records_is_one_fault_that_says_what_it_is(
    text: str, at: int, said: str, tmp_path: Path
) -> None:
    for suffix in ("", ".gz"):
        (fault,) = read_items(write(tmp_path / f"a.json{suffix}", text, suffix))
        assert isinstance(fault, Fault) and fault.error.startswith(said) and fault.byte_offset == at


def test_values_that_are_no_objects_among_records_cost_themselves(tmp_path: Path) -> None:
    items = read_items(
        write(tmp_path / "a.json", '[1, {"text": "a"}, null, [2], {"text": "b"}, "c"]')
    )
    assert [
        i.values["text"] if isinstance(i, Record) else i.byte_offset
        for i in items
        if isinstance(i, (Record, Fault))
    ] == [
        1,
        "a",
        19,
        25,
        "b",
        45,
    ]


def test_lines_before_the_first_record_are_one_fault_where_they_are_many_and_no_record_is_lost(
    tmp_path: Path,
) -> None:
    first, second, *rest = read_items(
        write(tmp_path / "a.jsonl", "-- a header\n" * 300 + '{"text": "a"}\nbad\n{"text": "b"}\n')
    )
    assert isinstance(first, Fault) and "300 line(s) before the first record" in first.error
    assert (
        values_of([second, *rest]) == [{"text": "a"}, {"text": "b"}] and len(faults_of(rest)) == 1
    )


@pytest.mark.parametrize(
    "text",
    [
        '{"text": "cut o\n{"text": "b"}\n',
        '{"text": "a", \n{"text": "b"}\n',
        '{"text": "a", "more": {\n{"text": "b"}\n',
        '[1]\n{"text": "b"}\n',
        '[1, 2\n{"text": "b"}\n',
        '"x"\n{"text": "b"}\n',
    ],
)
def test_a_first_line_that_is_bad_costs_only_itself_in_json_lines(
    text: str, tmp_path: Path
) -> None:
    fault, record = read_items(write(tmp_path / "a.jsonl", text))
    assert isinstance(fault, Fault) and (fault.line, fault.byte_offset) == (1, 0)
    assert isinstance(record, Record) and record.values == {"text": "b"} and record.line == 2


def test_an_array_takes_the_memory_of_a_block_and_not_of_the_file(tmp_path: Path) -> None:
    held: list[int] = []

    class Watched(jsonvalues.Values):
        def _more(self) -> bool:
            more = super()._more()
            held.append(len(self._data))
            return more

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.readers.jsonfiles.Values", Watched)
        items = read_items(
            write(
                tmp_path / "a.json", "[" + ",".join(['{"text": "%s"}' % ("x" * 500)] * 20_000) + "]"
            )
        )
    assert len(items) == 20_000 and max(held) < 3 << 20


def test_numbers_and_surrogates_are_kept_or_repaired_as_in_lines(tmp_path: Path) -> None:
    text = '[{"text": "a\\ud800", "n": 12345678901234567890123, "x": NaN}]'
    (record,) = read_items(write(tmp_path / "a.json", text))
    assert isinstance(record, Record) and record.repaired == ("LONE_SURROGATE",)
    assert record.values == {"text": "a\ufffd", "n": 12345678901234567890123, "x": None}


def test_blanks_after_the_first_line_are_not_gathered() -> None:
    class Blanks(io.RawIOBase):
        given = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            line = b'{"text": "a"}\n' if not self.given else b""
            buffer[:] = line.ljust(len(buffer))
            self.given += len(buffer)
            return len(buffer) if self.given <= 1 << 26 else 0

    stream = Blanks()
    first = next(jsonfiles.read_json(cast(BinaryIO, stream), "", "r.jsonl", COLUMNS, Limits()))
    assert isinstance(first, Record) and stream.given < 1 << 23
