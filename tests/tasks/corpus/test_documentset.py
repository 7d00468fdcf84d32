"""Tables of artifacts: a damaged one is named, and never taken for another."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.corpus.documentset import read_table, text_buffers, write_table
from tasks.runtime.artifact import ArtifactMismatch


def test_damaged_table_is_named_in_one_line(tmp_path: Path) -> None:
    file, rng = tmp_path / "part.parquet", random.Random(0)
    write_table(
        pa.table(
            {"id": [b"%d" % i for i in range(99)], "text": [f"text {i}" * 9 for i in range(99)]}
        ),
        file,
    )
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


def test_texts_of_one_chunk_are_read_where_they_lie() -> None:
    texts = pa.array(["", "één", "two", "文"], pa.large_string())
    lying = np.frombuffer(texts.buffers()[2], np.uint8)
    assert np.shares_memory(text_buffers(pa.chunked_array([texts]))[0], lying)
    for chunks in ([], [texts], [texts[1:3]], [texts[:1], texts[2:], texts[1:2]]):
        column = pa.chunked_array(chunks, pa.large_string())
        for kind in (pa.large_string(), pa.string()):
            values, begins = text_buffers(column.cast(kind))
            read = [values[a:b].tobytes().decode() for a, b in itertools.pairwise(begins)]
            assert read == column.to_pylist()
