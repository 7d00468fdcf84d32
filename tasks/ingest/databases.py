"""Fetches the rows of a query from PostgreSQL into a local cache, each state of the database once.

The server writes every row as JSON, so that arrays, dates and nested values are as it has them, and
the rows become a file of JSON lines that is read like any other. The query is one SELECT by the
server's own grammar: it stands in parentheses in a statement that is prepared, which takes one
command. It runs in a transaction that reads one state and cannot write. The name of the file holds
address, query and that state, the transactions that were finished: as long as nobody writes to the
server, nothing is fetched again.

Passwords come from where libpq finds them (PGPASSWORD, ~/.pgpass); addresses with one are refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString, cast
from urllib.parse import urlsplit

from llm_core.config import ConfigError
from llm_core.durable import write_durably
from llm_core.printing import get_logger

logger = get_logger("tasks.ingest.databases")

SCHEMES = ("postgresql://", "postgres://")
STATE = (
    "select system_identifier, (select oid from pg_database where datname = current_database()),"
    " pg_current_snapshot()::text from pg_control_system()"
)
CONNECT_TIMEOUT_S = 10
ROWS_AT_ONCE = 1000


def is_database(path: str) -> bool:
    """Whether an entry of a source is the address of a database."""
    return path.startswith(SCHEMES)


def list_rows(paths: Sequence[str], query: str | None, cache: Path, where: str) -> tuple[str, Path]:
    """(name, file of JSON lines) of the rows of the only entry of a source. Raises ConfigError."""
    address, asked = _checked(paths, query, where)
    with _open(address, where) as connection:
        target = _target(connection, address, asked, cache)
        if not target.exists():
            cache.mkdir(parents=True, exist_ok=True)
            logger.info("fetching the rows of a query from %s", shown(address))
            write_durably(target, _rows(connection, asked, where))
        database = str(connection.info.dbname).replace("/", "_")
    return f"{database}.jsonl", target


def are_fetched(paths: Sequence[str], query: str | None, cache: Path, where: str) -> bool:
    """Whether the rows are in the cache as the database has them now. Raises ConfigError."""
    address, asked = _checked(paths, query, where)
    with _open(address, where) as connection:
        return _target(connection, address, asked, cache).exists()


def shown(address: str) -> str:
    """An address for people and records: without user and settings."""
    try:
        parts = urlsplit(address)
    except ValueError:  # a malformed address may hold a password anywhere
        return SCHEMES[0]
    return f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _checked(paths: Sequence[str], query: str | None, where: str) -> tuple[str, str]:
    address = next(path for path in paths if is_database(path))
    if len(paths) > 1:
        raise ConfigError(
            f"{where}.paths: {shown(address)} must be the only entry; make each database a source"
            " of its own under source.sources"
        )
    if query is None:
        raise ConfigError(
            f"{where}.paths: {shown(address)} needs a query; set {where}.query='select id, text"
            " from documents order by id'"
        )
    return address, query.rstrip().rstrip(";")


@contextmanager
def _open(address: str, where: str) -> Iterator[Any]:
    """A connection in a transaction that reads one state of the database."""
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    except ImportError as error:
        raise ConfigError(
            f"{where}.paths: PostgreSQL needs a package; pip install 'textmill[postgres]'"
        ) from error
    try:
        # libpq's own message of a malformed address would quote all of it.
        settings = conninfo_to_dict(address)
    except psycopg.Error:
        raise ConfigError(
            f"{where}.paths: not an address of PostgreSQL; write postgresql://USER@HOST:PORT/NAME"
        ) from None
    if secret := sorted(name for name in settings if "password" in name):
        raise ConfigError(
            f"{where}.paths: {shown(address)} comes with a {secret[0]}, which would get into"
            " records; set PGPASSWORD, or write it in ~/.pgpass"
        )
    try:
        timeout = {"connect_timeout": CONNECT_TIMEOUT_S} | settings
        with psycopg.connect("", **timeout, client_encoding="utf8") as connection:  # type: ignore[arg-type]
            connection.read_only = True
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            yield connection
    except psycopg.Error as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"{where}.paths: {shown(address)} fails ({reason}); check the server, the user and"
            f" {where}.query"
        ) from None


def _target(connection: Any, address: str, query: str, cache: Path) -> Path:
    state = connection.execute(STATE).fetchone()
    told = "\0".join([shown(address), str(connection.info.user), query, *map(str, state)])
    return cache / f"{hashlib.blake2b(told.encode(), digest_size=16).hexdigest()}.jsonl"


def _rows(connection: Any, query: str, where: str) -> Iterator[str]:
    """The rows as lines of JSON, in the order of the query."""
    # A line of its own ends a comment of the query.
    records = cast(LiteralString, f"from (\n{query}\n) as record")
    checked = connection.execute(f"select record.* {records} limit 0", prepare=True)
    names = [column.name for column in checked.description]
    if len(set(names)) < len(names):
        raise ConfigError(f"{where}.query names a column twice; rename one with `as`")
    with connection.cursor("rows") as cursor:
        cursor.itersize = ROWS_AT_ONCE
        cursor.execute(f"select row_to_json(record)::text {records}")
        for (row,) in cursor:
            # Line ends between the tokens of a `json` column; in strings they are escaped.
            yield row.replace("\r", " ").replace("\n", " ") + "\n"
