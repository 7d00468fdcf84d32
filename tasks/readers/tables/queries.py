"""Reads SQLite databases, and Parquet files by a query: every row of the result is a record.

SQLite comes with Python, and opens a file as it is, unchanged and without writing. Where the
source has no query, the only table with the text column is read in the order of its rows. With
one, DuckDB runs it over a Parquet file, as table `input`. A query is one SELECT statement, since
others could write. It sees nothing but its file: what else it would read is not in the key. Without
`order by`, DuckDB keeps the order of the file.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import quote

from tasks.readers.items import Columns, Fault, Item, Record
from tasks.readers.recordlimits import Limits
from tasks.readers.tables.parquetfooters import OverLimit, batch_rows

ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, 33)
"""What a query may do; 33 is a recursive one."""
STEPS, MAX_STEPS_BETWEEN_ROWS = 1_000_000, 2_000
"""Of SQLite's machine: so many millions without a row are a query that does not end."""
ROWS_AT_ONCE = 256
DUCKDB_SETTINGS = {"threads": 1, "memory_limit": "2GB", "autoinstall_known_extensions": False}
NOT_ONE_SELECT = "source.query is not one SELECT statement"


class _NotUtf8(bytes):
    """A text of a database that is not UTF-8."""


def may_be_one_select(query: str) -> bool:
    """Whether a query is one SELECT, or in a dialect that only SQLite can judge."""
    import duckdb

    with duckdb.connect(config=DUCKDB_SETTINGS) as database:
        try:
            statements = database.extract_statements(query)
        except duckdb.Error:
            return True
    return [one.type for one in statements] == [duckdb.StatementType.SELECT]


def read_sqlite(
    stream: BinaryIO,
    compression: str,
    name: str,
    columns: Columns,
    limits: Limits,
    query: str | None,
) -> Iterator[Item]:
    """Records at the number of their row in the result."""
    row = 0
    if query is not None and not may_be_one_select(query):
        yield Fault(1, None, f"unreadable SQLite: {NOT_ONE_SELECT}", ends=True)
        return
    with _as_file(stream) as path:
        if changes := unsaved_changes(path):
            yield Fault(1, None, f"unreadable SQLite: {changes}", ends=True)
            return
        database = sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)
        with contextlib.closing(database):
            database.text_factory = _as_text
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limits.record_bytes)
            try:
                found = _only_table(database, columns.text) if query is None else query
                if isinstance(found, Fault):
                    yield found
                    return
                database.set_authorizer(
                    lambda action, *_: (
                        sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY
                    )
                )
                steps = _Steps()
                database.set_progress_handler(steps.take, STEPS)
                cursor = database.execute(found)
                if cursor.description is None:
                    yield Fault(1, None, f"unreadable SQLite: {NOT_ONE_SELECT}", ends=True)
                    return
                names = [column[0] for column in cursor.description]
                for values in cursor:
                    steps.count = 0
                    yield _record(names, values, row)
                    row += 1
            except (sqlite3.Error, sqlite3.Warning, UnicodeError, MemoryError) as error:
                yield Fault(row + 1, None, _why("SQLite", row, error), ends=True)


def query_parquet(
    stream: BinaryIO, compression: str, name: str, columns: Columns, limits: Limits, query: str
) -> Iterator[Item]:
    """Records at the number of their row in the result."""
    import duckdb

    row = 0
    if not may_be_one_select(query):
        yield Fault(1, None, f"unreadable Parquet: {NOT_ONE_SELECT}", ends=True)
        return
    try:
        batch_rows(stream, limits)
    except OverLimit as error:
        yield Fault(1, None, str(error), ends=True)
        return
    with _as_file(stream) as path, duckdb.connect(config=DUCKDB_SETTINGS) as database:
        try:
            place = str(path).replace("'", "''")
            database.execute(f"set allowed_paths = ['{place}']")
            database.execute("set enable_external_access = false")
            database.execute(f"create view input as from read_parquet('{place}')")
            database.execute("set lock_configuration = true")
            cursor = database.execute(query)
            names = [column[0] for column in cursor.description or ()]
            while rows := cursor.fetchmany(ROWS_AT_ONCE):
                for values in rows:
                    yield _record(names, values, row)
                    row += 1
        except (duckdb.Error, UnicodeError) as error:
            yield Fault(row + 1, None, _why("Parquet", row, error), ends=True)


class _Steps:
    """Counts what SQLite does until the next row."""

    count = 0

    def take(self) -> int:
        self.count += 1
        return self.count > MAX_STEPS_BETWEEN_ROWS


def _as_text(data: bytes) -> str | bytes:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return _NotUtf8(data)


def _record(names: list[str], values: tuple[Any, ...], row: int) -> Item:
    if len(set(names)) < len(names):
        return Fault(row + 1, None, "wrong type: a column of the query is named twice")
    if any(isinstance(value, _NotUtf8) for value in values):
        return Fault(row + 1, None, "invalid UTF-8: in a text of the row")
    return Record(row, row + 1, None, dict(zip(names, values, strict=True)))


def _only_table(database: sqlite3.Connection, text: str) -> str | Fault:
    """The query for the only table that has the text column."""
    tables = database.execute("select name from sqlite_master where type = 'table'").fetchall()
    found = []
    for (table,) in tables:
        quoted = '"' + str(table).replace('"', '""') + '"'
        if text in [column[1] for column in database.execute(f"pragma table_info({quoted})")]:
            found.append(quoted)
    if len(found) == 1:
        return f"select * from {found[0]}"
    return Fault(
        1,
        None,
        f"unreadable SQLite: {len(found)} of {len(tables)} tables have column {text}; say what to"
        " read with source.query",
        ends=True,
    )


def unsaved_changes(path: Path) -> str | None:
    """Why the file alone is not the state of its database: a log beside it holds further changes,
    or a journal undoes an unfinished transaction (SQLite, File Format, 3 and 4)."""
    real = path.resolve()
    log, journal = (real.with_name(real.name + end) for end in ("-wal", "-journal"))
    if log.is_file() and log.stat().st_size:
        return (
            "its -wal file holds changes that are not in it; run `pragma wal_checkpoint(truncate)`"
        )
    if journal.is_file():
        with journal.open("rb") as file:
            # After the transaction a journal is empty, or its header is zeros.
            if file.read(1).strip(b"\0"):
                return "its -journal file undoes an unfinished transaction; open it with `sqlite3`"
    return None


def _why(kind: str, row: int, error: BaseException) -> str:
    return f"unreadable {kind}: from row {row + 1} on ({type(error).__name__})"


@contextlib.contextmanager
def _as_file(stream: BinaryIO) -> Iterator[Path]:
    """The file of a stream, or a copy of what is a member of an archive."""
    name = getattr(stream, "name", None)
    if isinstance(name, str) and Path(name).is_file():
        yield Path(name)
        return
    with tempfile.NamedTemporaryFile() as copied:
        stream.seek(0)
        shutil.copyfileobj(stream, cast(BinaryIO, copied))
        copied.flush()
        yield Path(copied.name)
