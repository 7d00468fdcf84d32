"""Tables of artifacts: a damaged one is named, and never taken for another."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from tasks.artifact import ArtifactMismatch
from tasks.documentset import read_table, write_table


def test_damaged_table_is_named_in_one_line(tmp_path: Path) -> None:
    file, rng = tmp_path / "part.parquet", random.Random(0)
    write_table(pa.table({"id": [b"%d" % i for i in range(99)], "text": [f"text {i}" * 9 for i in range(99)]}), file)
    data = file.read_bytes()
    for begin in range(0, len(data), len(data) // 12):
        zeroed = data[:begin] + bytes(len(data) // 12) + data[begin + len(data) // 12 :]
        for harmed in (data[:begin], zeroed, data[:begin] + rng.randbytes(40) + data[begin + 40 :]):
            file.write_bytes(harmed)
            try:
                read_table(file)
            except ArtifactMismatch as error:
                assert str(file) in str(error) and "\n" not in str(error)
    file.write_bytes(b"")
    with pytest.raises(ArtifactMismatch, match="is damaged"):
        read_table(file, ["id"])
    with pytest.raises(FileNotFoundError):
        read_table(tmp_path / "none.parquet")
