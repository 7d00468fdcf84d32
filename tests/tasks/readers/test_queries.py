"""Rows of a database, or of a query over a file, are records; a query sees nothing else."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.readers import Fault, Item, Layout, Record
from tests.support.data.input_files import as_zip, read_bytes, read_items

ROWS = [{"id": i, "text": f"größere 数据 {i}"} for i in range(300)]


def database(path: Path, more: str = "") -> bytes:
    with sqlite3.connect(path) as made:
        made.execute("create table documents (id integer primary key, text text)")
        made.executemany("insert into documents values (:id, :text)", ROWS)
        made.executescript(more)
    made.close()
    return path.read_bytes()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return database(tmp_path_factory.mktemp("made") / "a.sqlite")


def values(items: list[Item]) -> list[dict[str, Any]]:
    return [item.values for item in items if isinstance(item, Record)]


def errors(items: list[Item]) -> list[str]:
    return [item.error for item in items if isinstance(item, Fault)]


def test_rows_of_a_database_are_records_also_in_archives(made: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.sqlite").write_bytes(made)
    assert values(read_items(tmp_path / "a.sqlite")) == ROWS
    assert values(read_bytes("a.zip", as_zip({"in/a.sqlite": made}))) == ROWS
    assert values(read_bytes("a.txt", made)) == ROWS
    assert not list(tmp_path.glob("a.sqlite?*")), "nothing is written beside it"


def test_a_query_gives_the_records(made: bytes, tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "it's.parquet")
    (tmp_path / "a.sqlite").write_bytes(made)
    for name, table in (("a.sqlite", "documents"), ("it's.parquet", "input")):
        query = f"select id, upper(text) as text from {table} where id >= 298"
        items = read_items(tmp_path / name, Layout(query=query))
        assert [one["id"] for one in values(items)] == [298, 299] and not errors(items)


@pytest.mark.parametrize(
    "query",
    [
        "select * from nowhere",
        "attach 'other.sqlite' as other",
        "with recursive x(a) as (select 1 union all select a + 1 from x) select max(a) from x",
        "select 1 as text, 2 as text",
        "/* a comment that does not end",
    ],
)
def test_a_query_that_cannot_be_run_is_a_fault(
    query: str, made: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.readers.tables.queries.MAX_STEPS_BETWEEN_ROWS", 3)
    items = read_bytes("a.sqlite", made, layout=Layout(query=query))
    assert len(errors(items)) == len(items) == 1


@pytest.mark.parametrize(
    "query",
    [
        "",
        "-- only a comment",
        "/* a */ ;",
        "select 1 as text; select 2 as text",
        "delete from documents",
        "pragma journal_mode = wal",
        "copy (select 42 as text) to '{path}' (format parquet, use_tmp_file false)",
        "copy (select 42 as text) to '{path}' (format csv, use_tmp_file false)",
    ],
)
def test_a_query_that_is_not_one_select_is_refused_and_changes_nothing(
    query: str, made: bytes, tmp_path: Path
) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    (tmp_path / "a.sqlite").write_bytes(made)
    for path in (tmp_path / "a.parquet", tmp_path / "a.sqlite"):
        before = path.read_bytes()
        (error,) = errors(read_items(path, Layout(query=query.format(path=path))))
        assert error.endswith(": source.query is not one SELECT statement")
        assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("mode", ["wal", "delete", "persist"])
def test_a_database_with_unsaved_changes_is_refused_until_they_are_in_it(
    mode: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.sqlite"
    database(path, f"pragma journal_mode = {mode}")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.executescript("pragma cache_spill = 1; pragma cache_size = 1")
        writer.execute("begin")
        writer.executemany("insert into documents(text) values (?)", [("x" * 5000,)] * 99)
        if mode == "wal":
            writer.execute("commit")
        (tmp_path / "link.sqlite").symlink_to(path)
        files = {file: file.read_bytes() for file in tmp_path.glob("a.sqlite*")}
        for name in ("a.sqlite", "link.sqlite"):
            (error,) = errors(read_items(tmp_path / name))
            assert error.startswith("unreadable SQLite: its -")
        assert files == {file: file.read_bytes() for file in tmp_path.glob("a.sqlite*")}
        if mode == "wal":
            writer.execute("pragma wal_checkpoint(truncate)")
        else:
            writer.execute("rollback")
        read = values(read_items(path))
    assert read[:300] == ROWS and len(read) == (399 if mode == "wal" else 300)


def test_a_query_over_a_file_reads_no_other_file(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet"):
        pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / name)
    other = tmp_path / "b.parquet"
    for query in (
        f"select * from '{other}'",
        f"copy input to '{tmp_path}/c.parquet'",
        "install httpfs",
        "set enable_external_access = true",
    ):
        items = read_items(tmp_path / "a.parquet", Layout(query=query))
        assert [error[:19] for error in errors(items)] == ["unreadable Parquet:"], query
    assert not (tmp_path / "c.parquet").exists()


def test_without_one_table_of_texts_a_query_is_asked_for(tmp_path: Path) -> None:
    data = database(tmp_path / "a.sqlite", "create table more (text text)")
    (error,) = errors(read_bytes("a.sqlite", data))
    assert "2 of 2 tables have column text; say what to read with source.query" in error
    bad = database(
        tmp_path / "b.sqlite", "update documents set text = cast(x'ff' as text) where id = 3"
    )
    items = read_bytes("b.sqlite", bad)
    assert errors(items) == ["invalid UTF-8: in a text of the row"] and len(values(items)) == 299


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), max_size=8))
def test_a_damaged_database_is_survived(made: bytes, flips: list[tuple[float, int]]) -> None:
    data = bytearray(made)
    for frac, bit in flips:
        data[int(len(data) * frac)] ^= 1 << bit
    items = read_bytes("a.sqlite", bytes(data))
    assert items and all(isinstance(item, (Record, Fault)) for item in items)
