"""Rows of a PostgreSQL server become documents, by one SELECT that cannot write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from llm_core.config import ConfigError
from tasks.ingest.sources import SourceConfig
from tasks.ingest.stage import ingest
from tests.support.data.make_artifacts import empty_dir, read_documents
from tests.support.postgres import PASSWORD, postgres_server, server_programs

pytestmark = pytest.mark.skipif(server_programs() is None, reason="no PostgreSQL server programs")

ROWS = [
    (1, "grün \\ \t „x“\nnext", '{"a":\n [1, 2]}'),
    (2, "漢字 \U0001f600", '{"b": null}'),
    (3, "plain", None),
]
QUERY = "select id, body as text, tags, told, at from posts order by id -- the end"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server("texts") as address:
        with psycopg.connect(f"postgresql://{address}/texts") as connection:
            connection.execute(
                "create table posts (id int, body text, told json, tags text[] default '{x,y}',"
                " at timestamp default '2026-01-02 03:04:05')"
            )
            for row in ROWS:
                connection.execute("insert into posts values (%s, %s, %s)", row)
        yield address.replace(f":{PASSWORD}", "")


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)


def source(server: str, cache: Path, query: str | None = QUERY) -> SourceConfig:
    paths = (f"postgresql://{server}/texts",)
    return SourceConfig(name="db", paths=paths, query=query, cache=cache)


def test_rows_become_documents_with_their_values(server: str, tmp_path: Path) -> None:
    made = ingest(empty_dir(tmp_path / "out"), source(server, tmp_path / "cache"))
    rows = read_documents(made)
    assert [(int(r["source_id"]), r["text"]) for r in rows] == [(i, t) for i, t, _ in ROWS]
    told = [json.loads(row["metadata"]) for row in rows]
    assert [one.get("told") for one in told] == [{"a": [1, 2]}, {"b": None}, None]
    assert all(one["tags"] == ["x", "y"] for one in told)
    assert all(one["at"] == "2026-01-02T03:04:05" for one in told)


def test_a_state_of_the_database_is_fetched_once(server: str, tmp_path: Path) -> None:
    one = source(server, tmp_path)
    assert [file.address for file in one.unfetched()] == [
        f"postgresql://{server.partition('@')[2]}/texts"
    ]
    (first,) = one.data_files().values()
    stamp = first.stat().st_mtime_ns
    assert one.unfetched() == [] and list(one.data_files()) == ["texts.jsonl"]
    assert first.stat().st_mtime_ns == stamp
    with psycopg.connect(f"postgresql://{server}/texts") as connection:
        connection.execute("insert into posts values (9, 'new')")
    assert len(one.unfetched()) == 1
    (second,) = one.data_files().values()
    assert second != first and len(second.read_bytes().splitlines()) == len(ROWS) + 1
    with psycopg.connect(f"postgresql://{server}/texts") as connection:
        connection.execute("delete from posts where id = 9")


@pytest.mark.parametrize(
    ("query", "line"),
    [
        (None, r"needs a query; set source.query"),
        ("select id from nowhere", r'relation "nowhere" does not exist'),
        ("select 1) x; drop table posts; select * from (select 2", "syntax|multiple commands"),
        ("select id, body as id from posts", "names a column twice"),
        ("select nextval('made')", "read-only transaction"),
        ("with d as (delete from posts returning id) select id from d", "must be at the top|fails"),
    ],
)
def test_a_query_that_is_none_or_would_write_is_refused_in_one_line(
    server: str, tmp_path: Path, query: str | None, line: str
) -> None:
    with psycopg.connect(f"postgresql://{server}/texts") as connection:
        connection.execute("create sequence if not exists made")
    with pytest.raises(ConfigError, match=line) as refused:
        source(server, tmp_path, query).data_files()
    assert "\n" not in str(refused.value)
    with psycopg.connect(f"postgresql://{server}/texts") as connection:
        assert connection.execute("select count(*) from posts").fetchone() == (len(ROWS),)


def test_no_password_is_shown(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = server.partition("@")[2]
    for address in (
        f"postgresql://textmill:{PASSWORD}@{host}/texts",
        f"postgresql://textmill@{host}/texts?password={PASSWORD}",
        f"postgresql://textmill:{PASSWORD}@[::1/texts",
    ):
        one = SourceConfig(paths=(address,), query=QUERY, cache=tmp_path)
        with pytest.raises(ConfigError) as refused:
            one.data_files()
        assert PASSWORD not in str(refused.value)
    monkeypatch.setenv("PGPASSWORD", f"wrong{PASSWORD}")
    with pytest.raises(ConfigError, match="password authentication failed") as refused:
        source(server, tmp_path).data_files()
    assert PASSWORD not in str(refused.value) and "\n" not in str(refused.value)


def test_a_database_is_the_only_entry_of_its_source(tmp_path: Path) -> None:
    one = SourceConfig(paths=("postgresql://u@h/d", "a.jsonl"), query=QUERY, cache=tmp_path)
    with pytest.raises(ConfigError, match=r"postgresql://h/d must be the only entry"):
        one.data_files()
