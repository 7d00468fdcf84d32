"""Chooses rows of documents by a condition, as example texts of classifiers and language models.

A condition is a DuckDB expression over the columns of a document, such as `source = 'wiki'` or
`metadata->>'kind' = 'prose' and language = 'en'`. It must be a function of the row alone, so that
the choice is the same for any division into parts: names of other columns, subqueries, aggregates,
windows, and functions that differ from call to call or from day to day are refused before anything
is read. Where it is null it does not choose. Columns: `text, source, source_id, url, added_at,
metadata` as ingested, `language` as identified, `declared_language` as the input says. Cost: one
vectorised pass per condition; the text is only looked at where the condition names it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from llm_core.config import ConfigError, nearest

INGESTED = ("text", "source", "source_id", "url", "added_at", "metadata")
COLUMNS = (*INGESTED, "language", "declared_language")
EXAMPLE = (
    "write one over the columns of a document, e.g. \"source = 'wiki'\" or \"metadata->>'kind' ="
    " 'prose'\""
)


def check_condition(name: str, condition: str) -> None:
    """Raise a ConfigError about `name` unless `condition` is an expression over one document."""
    parsed = _parsed(condition)
    if parsed.get("error"):
        raise ConfigError(
            f"{name} ({condition}) is not a condition: {parsed['error_message']}; {EXAMPLE}"
        )
    node = parsed["statements"][0]["node"] if len(parsed["statements"]) == 1 else {}
    # A condition that ends the SELECT and begins something else has other clauses than SELECT …
    # FROM documents.
    is_plain = (
        node.get("type") == "SELECT_NODE"
        and len(node["select_list"]) == 1
        and node["from_table"].get("table_name") == "documents"
        and not (node["where_clause"] or node["modifiers"] or node["group_expressions"])
    )
    if not is_plain:
        raise ConfigError(
            f"{name} ({condition}) must be one condition without other clauses; {EXAMPLE}"
        )
    for part in _walk(node["select_list"][0]):
        if why := _refusal(part):
            raise ConfigError(f"{name} ({condition}) {why}; {EXAMPLE}")
    empty = {column: pa.array([], pa.string()) for column in COLUMNS}
    chosen_rows(pa.table(empty), condition, name)


def compared_values(condition: str, column: str) -> list[str]:
    """The texts that a valid condition compares a column with, by =, <>, IN and similar."""
    found = []
    for part in _walk(_parsed(condition)["statements"]):
        sides = [part["left"], part["right"]] if part.get("class") == "COMPARISON" else []
        sides += part["children"] if part.get("type") in ("COMPARE_IN", "COMPARE_NOT_IN") else []
        columns = [s["column_names"][0].lower() for s in sides if s["class"] == "COLUMN_REF"]
        if column not in columns:
            continue
        for side in sides:
            if side["class"] == "CONSTANT":
                # DuckDB 2 gives a literal with its kind and text, older ones a value with its type.
                constant = side.get("literal") or side["value"]
                text = constant.get("text", constant.get("value"))
                if constant.get("kind", "STRING") == "STRING" and isinstance(text, str):
                    found.append(text)
    return found


def chosen_rows(documents: pa.Table, condition: str, name: str = "condition") -> np.ndarray:
    """bool per row of a table with `COLUMNS`.

    Raises ConfigError where the condition fails on a row, as a cast can.
    """
    import duckdb

    # A connection of its own: parts may be worked on by threads.
    connection = _connection().cursor()
    connection.register("documents", documents)
    try:
        found = connection.execute(
            f"SELECT coalesce(CAST(({condition}) AS BOOLEAN), false) AS chosen FROM documents"
        )
        return np.asarray(found.fetchnumpy()["chosen"], bool)
    except duckdb.Error as error:
        # The first line only, and no value of a row: the rest quotes data or the statement.
        reason = type(error).__name__.removesuffix("Exception")
        detail = "" if documents.num_rows else f": {str(error).splitlines()[0]}"
        raise ConfigError(
            f"{name} ({condition}) fails on documents ({reason} error{detail}); {EXAMPLE}"
        ) from error
    finally:
        connection.close()


def condition_table(documents: pa.Table, languages: pa.ChunkedArray) -> pa.Table:
    """The columns that conditions see. `documents` holds those of ingest."""
    columns = {name: documents[name] for name in INGESTED}
    return pa.table(columns | {"language": languages, "declared_language": documents["language"]})


@functools.cache
def _connection() -> Any:
    import duckdb

    # A condition may neither read files nor allow itself to.
    limits = {"threads": 1, "enable_external_access": False, "lock_configuration": True}
    return duckdb.connect(config=limits)


def _parsed(condition: str) -> dict[str, Any]:
    """DuckDB's syntax tree of a query of one condition; its `error` is true where there is none."""
    [(tree,)] = _rows("SELECT json_serialize_sql(?)", f"SELECT {condition} FROM documents")
    return json.loads(tree)  # type: ignore[no-any-return]


def _rows(query: str, *values: str) -> list[tuple[Any, ...]]:
    with _connection().cursor() as cursor:
        return cursor.execute(query, list(values)).fetchall()  # type: ignore[no-any-return]


@functools.cache
def _unfit_functions() -> dict[str, str]:
    """Function name → what it is that makes it unfit."""
    rows = _rows("SELECT function_name, function_type, stability FROM duckdb_functions()")
    unfit = {name: "sums up many rows" for name, kind, _ in rows if kind == "aggregate"}
    return unfit | {
        name: "may differ from run to run"
        for name, kind, how in rows
        if kind == "scalar" and how != "CONSISTENT"
    }


def _refusal(part: Mapping[str, Any]) -> str | None:
    kind = part.get("class")
    if kind in ("SUBQUERY", "WINDOW", "STAR", "PARAMETER"):
        return f"holds a {kind.lower()}, which is not a function of one document"
    if kind == "FUNCTION" and (why := _unfit_functions().get(str(part["function_name"]).lower())):
        return f"calls {part['function_name']}, which {why}"
    if kind == "COLUMN_REF" and (column := part["column_names"][0]).lower() not in COLUMNS:
        return f"names {column}, which is not a column; {nearest(column, list(COLUMNS))}"
    return None


def _walk(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
        for member in value.values():
            yield from _walk(member)
    elif isinstance(value, list):
        for member in value:
            yield from _walk(member)
