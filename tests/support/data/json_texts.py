"""Records as JSON files of every style, and the records and faults that are read of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tasks.readers import Fault, Item, Record
from tests.support.data.input_files import COMPRESS

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
