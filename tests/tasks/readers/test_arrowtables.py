"""Tables of Arrow: what becomes of values that Python has no form for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.readers import Fault, Item, Record
from tests.support.data.input_files import read_items

FAR = 2**62
"""More than every calendar holds, in any unit."""
END_OF_TIME = 253_402_300_799
"""The last second of 9999, which dumps of databases write for "never"."""


def times(kind: pa.DataType, *counts: int) -> pa.Array:
    return pa.array(counts, pa.int64()).view(kind)


def read_table(folder: Path, **columns: pa.Array) -> list[Item]:
    """The items of an Arrow file with these columns."""
    table = pa.table(columns)
    with pa.ipc.new_file(folder / "t.arrow", table.schema) as writer:
        writer.write_table(table)
    return read_items(folder / "t.arrow")


def as_text(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else value


@pytest.mark.parametrize(
    ("column", "first"),
    [
        (times(pa.timestamp("us"), FAR, 1), FAR),
        (times(pa.timestamp("s"), FAR, 1), FAR),
        (times(pa.duration("s"), FAR, 1), FAR),
        (pa.array([2**31 - 1, 1], pa.int32()).view(pa.date32()), 2**31 - 1),
        (times(pa.timestamp("s", "Asia/Tokyo"), END_OF_TIME, 1), "9999-12-31T23:59:59+00:00"),
        (times(pa.timestamp("s", "No/Where"), 0, 1), "1970-01-01T00:00:00+00:00"),
        (times(pa.timestamp("s", "No/Where"), FAR, 1), FAR),
        (times(pa.timestamp("us"), FAR, 1).dictionary_encode(), FAR),
    ],
    ids=[
        "time",
        "seconds",
        "duration",
        "date",
        "end of time",
        "no zone",
        "far and no zone",
        "dictionary",
    ],
)
def test_time_that_python_has_no_form_for_costs_no_document(
    column: pa.Array, first: Any, tmp_path: Path
) -> None:
    items = read_table(tmp_path, text=pa.array(["a", "b"]), at=column)
    rows = [item.values for item in items if isinstance(item, Record)]
    assert [row["text"] for row in rows] == ["a", "b"] and as_text(rows[0]["at"]) == first
    assert rows[1]["at"] != 1, "a row beside it keeps its form"


@pytest.mark.parametrize("kind", ["list", "large_list", "struct", "map"])
def test_such_a_time_within_a_value_leaves_the_rest_of_it(kind: str, tmp_path: Path) -> None:
    stamp = pa.timestamp("us")
    types, values = {
        "list": (pa.list_, [FAR, 0]),
        "large_list": (pa.large_list, [FAR, 0]),
        "struct": (lambda t: pa.struct([("far", t), ("near", t)]), {"far": FAR, "near": 0}),
        "map": (lambda t: pa.map_(pa.string(), t), [("far", FAR), ("near", 0)]),
    }[kind]
    column = pa.array([values], types(pa.int64())).cast(types(stamp))
    (item,) = read_table(tmp_path, text=pa.array(["a"]), at=column)
    assert isinstance(item, Record)
    found = item.values["at"]
    members = (
        list(found.values())
        if kind == "struct"
        else [m[1] for m in found]
        if kind == "map"
        else found
    )
    assert list(map(as_text, members)) == [FAR, "1970-01-01T00:00:00"]


def test_table_with_two_columns_of_one_name_is_a_fault_as_in_csv(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(table, tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("text,text\na,b\n")
    for name in ("t.parquet", "t.csv"):
        (fault,) = read_items(tmp_path / name)
        assert isinstance(fault, Fault) and fault.error.endswith("a column is named twice")
