"""A JSON file is read as what it is, lines, array or objects over lines, and one without records is
one fault that says so."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.readers import Fault, Item, Record, jsonfiles, jsonvalues
from tasks.readers.recordlimits import Limits
from tests.support.data.input_files import COLUMNS, COMPRESS, read_items

FUZZED = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
RECORD = st.fixed_dictionaries(
    {"id": st.integers(0, 99), "text": st.text(max_size=30)}, optional={"more": VALUES}
)
RECORDS = st.lists(RECORD, min_size=1, max_size=6)
STYLES: Mapping[str, Callable[[list[Any]], str]] = {
    "one line": json.dumps,
    "compact": lambda records: json.dumps(records, separators=(",", ":"), ensure_ascii=False),
    "indented": lambda records: json.dumps(records, indent=1),
    "indented more": lambda records: json.dumps(records, indent=4, ensure_ascii=False),
    "a record per line": lambda records: "[" + ",\n".join(map(json.dumps, records)) + "]\n",
    "commas first": lambda records: "[" + "\n,".join(map(json.dumps, records)) + "\n]",
    "trailing comma": lambda records: json.dumps(records, indent=2)[:-2] + ",\n]",
    "objects over lines": lambda records: "\n".join(json.dumps(r, indent=2) for r in records),
    "objects over lines, apart": lambda records: (
        "\n\n".join(json.dumps(r, indent="\t") for r in records) + "\n"
    ),
    "several arrays": lambda records: "\n".join(json.dumps([r], indent=2) for r in records),
    "carriage returns": lambda records: json.dumps(records, indent=2).replace("\n", "\r\n"),
    "lines": lambda records: "\n".join(map(json.dumps, records)),
}


def write(path: Path, text: str, suffix: str = "") -> Path:
    path.write_bytes(COMPRESS[suffix](text.encode("utf-8", "surrogatepass")))
    return path


def values_of(items: list[Item]) -> list[Any]:
    return [item.values for item in items if isinstance(item, Record)]


def faults_of(items: list[Item]) -> list[Fault]:
    return [item for item in items if isinstance(item, Fault)]


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


def broken(text: str, how: str) -> str:
    """A record as text with one defect."""
    return {
        "no brace": text.rstrip()[:-1],
        "no quote": text.replace('"text": "', '"text": ', 1),
        "no comma": text.replace(",", "", 1),
        "a word": text.replace('"id": ', '"id": what', 1),
        "a sign": text.replace('"text":', '"text"', 1),
        "an open text": text.replace('marker"', "marker", 1),
        "an open list": text.replace('"more": [', '"more": [[', 1),
    }[how]


@pytest.mark.parametrize(
    "how", ["no brace", "no quote", "no comma", "a word", "a sign", "an open text", "an open list"]
)
@pytest.mark.parametrize(
    "style", ["one line", "indented", "indented more", "a record per line", "objects over lines"]
)
@pytest.mark.parametrize("hit", [1, 3, 5])
def test_a_broken_record_of_an_array_costs_itself(
    style: str, how: str, hit: int, tmp_path: Path
) -> None:
    records = [
        {"id": i, "text": f"number {i}: {{[ marker", "more": [{"id": i}, {"key": [i]}]}
        for i in range(6)
    ]
    text = STYLES[style](records)
    written = [
        json.dumps(
            r, indent={"indented": 1, "indented more": 4, "objects over lines": 2}.get(style)
        )
        for r in records
    ]
    indent = {"indented": 1, "indented more": 4}.get(style, 0)
    written = [one.replace("\n", "\n" + " " * indent) for one in written]
    assert all(text.count(one) == 1 for one in written)
    place = len(text[: text.index(written[hit])].encode())
    harmed = text.replace(written[hit], broken(written[hit], how))
    assert harmed != text
    items = read_items(write(tmp_path / "a.json", harmed))
    assert values_of(items) == records[:hit] + records[hit + 1 :]
    (fault,) = faults_of(items)
    assert fault.byte_offset == place and fault.line == text[:place].count("\n") + 1
    assert fault.error.startswith(("broken JSON", "damaged file"))


@pytest.mark.parametrize("style", ["one line", "indented", "objects over lines"])
@FUZZED
@given(records=RECORDS, frac=st.floats(0, 1, exclude_max=True))
def test_an_array_that_is_cut_off_keeps_its_whole_records(
    style: str, tmp_path: Path, records: list[Any], frac: float
) -> None:
    text = STYLES[style](records)
    cut = text[: 2 + int((len(text) - 2) * frac)]
    items = read_items(write(tmp_path / "a.json", cut))
    got = values_of(items)
    assert got == [json.loads(json.dumps(r)) for r in records][: len(got)]
    assert (
        len(got) == len(records)
        or faults_of(items)
        or style == "objects over lines"
        or cut.strip() == "[]"
    )
    assert len(faults_of(items)) <= 1


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


@pytest.mark.parametrize("form", ["{0}\n{1}\n", "[{0},\n{1}]", "{0}\n{1}\n\n"])
def test_a_number_of_too_many_digits_costs_its_record_and_the_rule_is_said(
    form: str, tmp_path: Path
) -> None:
    records = [f'{{"text": "a", "n": {sign}{"9" * 5000}}}' for sign in ("", "-")]
    text = form.format(*records) + f'{{"text": "b", "n": {"9" * 4300}}}'
    *faults, record = read_items(write(tmp_path / "a.json", text))
    said = "over the limit: a whole number of more than 4,300 digits; write it as a text"
    assert [fault.error for fault in faults if isinstance(fault, Fault)] == [said] * 2
    assert isinstance(record, Record) and record.values["text"] == "b"


WITHOUT_END = ['{"id": 0, "text": "a",', '{"id": 0, "tags": ["a",', '{"id": 0, "text": "a,']


@pytest.mark.parametrize("start", WITHOUT_END)
def test_records_without_an_end_take_no_longer_together_than_apart(
    start: str, tmp_path: Path
) -> None:
    text = "[\n" + f"{start}\n" * 4000 + '{"id": 1, "text": "last"}\n]'
    file = write(tmp_path / "a.json", text)
    started = time.process_time()
    items = read_items(file)
    assert time.process_time() - started < 5
    assert values_of(items) == [{"id": 1, "text": "last"}]
    (fault,) = faults_of(items)
    assert "4,000 value(s) before the first record" in fault.error and "broken JSON" in fault.error


def test_records_on_one_line_that_lack_a_quote_take_no_longer_together_than_apart(
    tmp_path: Path,
) -> None:
    sound = '{"id": 0, "text": "a"},{"id": 1, "text": "b"},'
    file = write(tmp_path / "a.json", f"[\n{sound}" + '{"id": 0, "text": "a,' * 6000)
    started = time.process_time()
    items = read_items(file)
    assert time.process_time() - started < 5
    assert [values["id"] for values in values_of(items)] == [0, 1] and len(faults_of(items)) == 6000


@pytest.mark.parametrize("start", WITHOUT_END)
def test_a_record_without_an_end_costs_itself_however_much_is_held(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonvalues, "MAX_HELD_BYTES", 200)
    sound = [f'{{"id": {i}, "text": "{i}"}}' for i in range(100)]
    lines = [*sound[:50], start, *sound[50:]]
    items = read_items(write(tmp_path / "a.json", "[\n" + ",\n".join(lines) + "\n]"))
    assert values_of(items) == [json.loads(one) for one in sound]
    assert [fault.line for fault in faults_of(items)] == [52]


def test_a_record_that_is_refused_as_a_whole_is_not_searched_for_others(tmp_path: Path) -> None:
    deep = (
        '{"id": 1, "text": "deep", "more": '
        + "[" * 2000
        + ', {"id": 7, "text": "inner"}'
        + "]" * 2000
        + "}"
    )
    deep = deep.replace("[,", "[1,")
    data = (
        b'[{"id": 0, "text": "a"}, {"id": 5, "text": "caf\xe9", "more": [1, {"id": 8, "text":'
        b' "inner"}]}, ' + deep.encode()
    )
    (tmp_path / "a.json").write_bytes(data + b', {"id": 2, "text": "b"}]')
    items = read_items(tmp_path / "a.json")
    assert [values["id"] for values in values_of(items)] == [0, 2]
    assert [fault.error.partition(":")[0] for fault in faults_of(items)] == [
        "invalid UTF-8",
        "nested too deeply",
    ]


def test_a_damaged_stream_keeps_the_records_before_the_damage(tmp_path: Path) -> None:
    text = json.dumps([{"id": i, "text": f"{i * 7919 % 1000} words"} for i in range(3000)])
    data = COMPRESS[".gz"](text.encode())
    (tmp_path / "a.json.gz").write_bytes(data[: len(data) // 2])
    *records, fault = read_items(tmp_path / "a.json.gz")
    assert len(records) > 500 and all(isinstance(item, Record) for item in records)
    assert (
        isinstance(fault, Fault)
        and fault.ends
        and fault.error == "damaged file: truncated gzip stream"
    )


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
