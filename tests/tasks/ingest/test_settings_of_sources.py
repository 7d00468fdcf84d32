"""Every setting of a source changes what is read, and arrives at the readers."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.ingest.sources import InputConfig
from tasks.readers.formats import Layout
from tests.support.data.ingested import quarantine
from tests.support.data.input_files import as_tar
from tests.support.data.make_artifacts import ingest_files, read_documents, write_jsonl

RECORD: dict[str, Any] = {"text": "<p>one", "body": "two", "key": "k", "lang": "de"}
RECORD |= {"date": "2020-01-01", "link": "https://a.example", "from": "talk"}
JSON = json.dumps(RECORD).encode()
CASES: dict[str, tuple[str, bytes, Any]] = {
    "paths": ("a.jsonl", JSON, ()),
    "root": ("a/b.txt", b"one", "."),
    "format": ("part-0", JSON, "txt"),
    "delimiter": ("a.csv", b"id,text\n1,a;b\n", ";"),
    "quote": ("a.csv", b"id,text\n1,'a,b'\n", "'"),
    "query": ("a.parquet", b"", "select upper(text) as text from input"),
    "encoding": ("a.txt", "größer".encode("cp1252"), "cp1252"),
    "text_unit": ("a.txt", b"one\ntwo", "line"),
    "archive_unit": ("a.tar", as_tar({"0.txt": b"a", "0.json": b'{"n": 1}'}), "sample"),
    "text_column": ("a.jsonl", JSON, "body"),
    "text_kind": ("a.jsonl", JSON, "code"),
    "id_column": ("a.jsonl", JSON, "key"),
    "url_column": ("a.jsonl", JSON, "link"),
    "language_column": ("a.jsonl", JSON, "lang"),
    "added_column": ("a.jsonl", JSON, "date"),
    "source_column": ("a.jsonl", JSON, "from"),
    "exclude": ("a.jsonl", JSON, {"lang": ("de",)}),
    "include": ("a.jsonl", JSON, {"lang": ("en",)}),
}
"""{setting: (name of a file, its content, a value other than the default)}."""
OTHER_NAMES = {"unit": "text_unit", "wanted": "text_kind"}
"""{field of a layout: the setting}, where they differ."""


def test_every_setting_has_a_case() -> None:
    assert set(CASES) == {field.name for field in fields(InputConfig)}


@pytest.mark.parametrize("setting", sorted(set(CASES) - {"paths"}))
def test_every_setting_changes_what_a_run_reads(setting: str, tmp_path: Path) -> None:
    name, data, value = CASES[setting]
    kept = write_jsonl(tmp_path / "in" / "z.jsonl", [{"text": "in every run", "lang": "en"}])
    path = tmp_path / "in" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    if name.endswith(".parquet"):
        pq.write_table(pa.table({"id": ["1"], "text": ["a"]}), path)
    usual = {"format": "jsonl"} if setting == "format" else {}
    changed = {setting: tmp_path if setting == "root" else value}
    read = []
    for out, settings in (("usual", usual), ("changed", changed)):
        made = ingest_files(tmp_path, out, [path, kept], **settings)
        read.append((read_documents(made), quarantine(made), made.counters))
    assert read[0] != read[1]


@pytest.mark.parametrize("name", Layout._fields)
def test_every_field_of_a_layout_is_set_by_a_setting(name: str) -> None:
    setting = OTHER_NAMES.get(name, name)
    changed = InputConfig(**{setting: CASES[setting][2]}).layout
    assert getattr(changed, name) != getattr(InputConfig().layout, name)
