"""Damaged files of other engines are refused in one line that names the file."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.shards.exchange import read_datasets
from tasks.shards.foreign import ExchangeError
from tasks.shards.megatron import read_megatron
from tests.support.data.foreign_shards import write_megatron


@pytest.mark.parametrize("keep", [0, 20, 40, -4])
def test_damaged_files_are_named(keep: int, tmp_path: Path) -> None:
    write_megatron(tmp_path / "in", [[5, 6], [7, 8]])
    whole = (tmp_path / "in" / "train.idx").read_bytes()
    (tmp_path / "in" / "train.idx").write_bytes(whole[:keep])
    with pytest.raises(ExchangeError, match=r"train\.idx is"):
        list(read_megatron(tmp_path / "in", "train"))
    (tmp_path / "in" / "train.idx").write_bytes(whole)
    (tmp_path / "in" / "train.bin").write_bytes(b"\0\0")
    with pytest.raises(ExchangeError, match=r"train\.bin does not hold what train\.idx says"):
        list(read_megatron(tmp_path / "in", "train"))


def test_an_arrow_file_whose_column_has_no_name_in_utf_8_is_refused(tmp_path: Path) -> None:
    table = pa.table({"column": [1]})
    (tmp_path / "train").mkdir()
    with pa.ipc.new_stream(tmp_path / "train" / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    file = tmp_path / "train" / "a.arrow"
    file.write_bytes(file.read_bytes().replace(b"column", b"colum\xc9"))
    (tmp_path / "train" / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}]}')
    with pytest.raises(ExchangeError, match="a.arrow cannot be read .*utf-8"):
        list(read_datasets(tmp_path, "train"))


def test_a_state_that_names_a_file_with_a_lone_surrogate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    state = '{"_data_files": [{"filename": "\\ud800.arrow"}]}'
    (tmp_path / "train" / "state.json").write_text(state)
    with pytest.raises(ExchangeError, match="cannot be read .*surrogates not allowed"):
        list(read_datasets(tmp_path, "train"))


def write_dataset(folder: Path, table: pa.Table, name: str = "data.arrow") -> Path:
    """A split `train` as `load_from_disk` reads it; its data file."""
    (folder / "train").mkdir(parents=True)
    file = folder / "train" / "data.arrow"
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    (folder / "train" / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    return file


FOREIGN = pa.table(
    {
        "input_ids": pa.array([[5, 6], [7, 8, 9]], pa.large_list(pa.int32())),
        "source": ["first", "second"],
    }
)


@pytest.mark.parametrize(
    ("offsets", "changed"),
    [
        (struct.pack("<3q", 0, 2, 5), struct.pack("<3q", 0, 2, 2**40)),
        (struct.pack("<3q", 0, 2, 5), struct.pack("<3q", -4000, 2, 5)),
        (struct.pack("<3q", 0, 2, 5), struct.pack("<3q", 0, 9, 5)),
        (struct.pack("<3i", 0, 5, 11), struct.pack("<3i", 0, 5, 2**31 - 1)),
        (struct.pack("<3i", 0, 5, 11), struct.pack("<3i", -(2**30), 5, 11)),
    ],
)
def test_offsets_that_leave_their_buffer_are_one_line(
    offsets: bytes, changed: bytes, tmp_path: Path
) -> None:
    file = write_dataset(tmp_path, FOREIGN)
    assert [d.tokens.tolist() for d in read_datasets(tmp_path, "train")] == [[5, 6], [7, 8, 9]]
    assert file.read_bytes().count(offsets) == 1
    file.write_bytes(file.read_bytes().replace(offsets, changed))
    with pytest.raises(
        ExchangeError, match=r"data\.arrow cannot be read \(In column . ?: Invalid: .*[Oo]ffset"
    ):
        list(read_datasets(tmp_path, "train"))


def test_facts_in_two_columns_of_one_name_are_not_taken(tmp_path: Path) -> None:
    write_dataset(tmp_path, FOREIGN.append_column("source", pa.array([1, 2])))
    assert [d.source for d in read_datasets(tmp_path, "train")] == [None, None]


def test_a_batch_that_expands_like_a_bomb_is_one_line(tmp_path: Path) -> None:
    file = write_dataset(tmp_path, FOREIGN)
    tokens = pa.ListArray.from_arrays(
        pa.array([0, 1 << 26], pa.int32()), pa.array(np.zeros(1 << 26, np.int64))
    )
    table = pa.table({"input_ids": tokens})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(file, table.schema, options=options) as writer:
        writer.write_table(table)
    with pytest.raises(ExchangeError, match=r"data\.arrow has a batch that expands like a bomb"):
        list(read_datasets(tmp_path, "train"))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2]),
        pa.array(["a", "b"]),
        pa.array([["a"], ["b"]]),
        pa.array([[1], [2]], pa.list_(pa.int32(), 1)),
    ],
)
def test_tokens_that_are_not_lists_of_numbers_are_one_line(
    column: pa.Array, tmp_path: Path
) -> None:
    write_dataset(tmp_path, pa.table({"input_ids": column}))
    with pytest.raises(ExchangeError, match="must have one column input_ids of lists of whole"):
        list(read_datasets(tmp_path, "train"))


@pytest.mark.parametrize(
    "column", [pa.array([1, 2]), pa.array([b"x", b"y"]), pa.array([None, None])]
)
def test_facts_of_documents_that_are_not_texts_are_passed_over(
    column: pa.Array, tmp_path: Path
) -> None:
    write_dataset(tmp_path, FOREIGN.set_column(1, "source", column).append_column("id", column))
    assert [(d.id, d.source) for d in read_datasets(tmp_path, "train")] == [(None, None)] * 2


@pytest.mark.parametrize(
    "name",
    [
        "../../other/train/data.arrow",
        "/etc/passwd",
        "..",
        "",
        "sub/data.arrow",
        "data.bin",
        3,
        None,
    ],
)
def test_a_state_names_arrow_files_of_its_own_folder(name: str, tmp_path: Path) -> None:
    write_dataset(tmp_path / "other", FOREIGN)
    write_dataset(tmp_path / "saved", FOREIGN, name)
    with pytest.raises(
        ExchangeError, match=r"state\.json names .*, which is not an \.arrow file of its folder"
    ):
        list(read_datasets(tmp_path / "saved", "train"))


@pytest.mark.parametrize(
    "state", ["[" * 100_000, "[]", "{}", '{"_data_files": 3}', '{"_data_files": [3]}']
)
def test_a_state_that_cannot_be_read_is_one_line(state: str, tmp_path: Path) -> None:
    write_dataset(tmp_path, FOREIGN)
    (tmp_path / "train" / "state.json").write_text(state)
    with pytest.raises(ExchangeError, match="is not the state of a saved dataset"):
        list(read_datasets(tmp_path, "train"))


@pytest.mark.parametrize(
    ("sequences", "borders", "lengths", "pointers"),
    [
        (1, 2, [4], [2**63 - 4]),
        (1, 2, [2**31 - 1], [2**63 - 2**31]),
        (2, 3, [1, 4], [0, 2**62]),
        (2**62, 2, [4], [0]),
        (2**61, 2**61, [4], [0]),
        (1, 2**62, [4], [0]),
        (2**64 - 1, 2**64 - 1, [4], [0]),
    ],
)
def test_numbers_of_an_index_that_pass_their_type_are_one_line(
    sequences: int, borders: int, lengths: list[int], pointers: list[int], tmp_path: Path
) -> None:
    (tmp_path / "train.bin").write_bytes(bytes(16))
    places = list(range(len(lengths) + 1))
    body = struct.pack(
        f"<{len(lengths)}i{len(lengths)}q{len(places)}q", *lengths, *pointers, *places
    )
    (tmp_path / "train.idx").write_bytes(
        struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, sequences, borders) + body
    )
    with pytest.raises(ExchangeError, match="is cut off|does not hold what"):
        list(read_megatron(tmp_path, "train"))
