"""A damaged record of a JSON file costs itself, in time that grows with the file and no faster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.readers import Fault, Record, jsonvalues
from tests.support.data.input_files import COMPRESS, read_items
from tests.support.data.json_texts import FUZZED, RECORDS, STYLES, faults_of, values_of, write


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
    text = "[\n" + f"{start}\n" * 40_000 + '{"id": 1, "text": "last"}\n]'
    file = write(tmp_path / "a.json", text)
    items = read_items(file)
    assert values_of(items) == [{"id": 1, "text": "last"}]
    (fault,) = faults_of(items)
    assert "40,000 value(s) before the first record" in fault.error and "broken JSON" in fault.error


def test_records_on_one_line_that_lack_a_quote_take_no_longer_together_than_apart(
    tmp_path: Path,
) -> None:
    sound = '{"id": 0, "text": "a"},{"id": 1, "text": "b"},'
    file = write(tmp_path / "a.json", f"[\n{sound}" + '{"id": 0, "text": "a,' * 60_000)
    items = read_items(file)
    assert [values["id"] for values in values_of(items)] == [0, 1]
    assert len(faults_of(items)) == 60_000


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
