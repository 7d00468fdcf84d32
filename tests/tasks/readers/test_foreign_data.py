"""Data in the forms that other trainers write is read, and what is damaged costs itself."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.readers import Fault, Item, Layout, Record, Skipped
from tasks.readers.recordlimits import Limits
from tests.support.data.document_files import mds
from tests.support.data.ingested import quarantine, texts
from tests.support.data.input_files import COMPRESS, as_tar, as_zip, read_bytes
from tests.support.data.make_artifacts import empty_dir, ingest_files

ROWS = [
    {"id": i, "text": f"größere 数据 {i}", "meta": {"a": [i]}, "score": i / 2} for i in range(5)
]
COLUMNS = {"id": "int", "meta": "json", "score": "float64", "text": "str"}
SHARD = mds(COLUMNS, ROWS)


def values(items: list[Item]) -> list[dict[str, Any]]:
    return [item.values for item in items if isinstance(item, Record)]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zstd", ".bz2"])
def test_samples_of_an_mds_shard_are_records(suffix: str) -> None:
    data = COMPRESS[suffix.replace("zstd", "zst")](SHARD)
    assert values(read_bytes(f"shard.00000.mds{suffix}", data)) == ROWS


def test_columns_of_other_types_are_null_and_pickles_are_not_loaded() -> None:
    row = {"a": b"\x80\x04N.", "text": "x"}
    assert values(read_bytes("s.mds", mds({"a": "pkl", "text": "str"}, [row]))) == [
        {"a": None, "text": "x"}
    ]


@given(st.integers(0, len(SHARD) - 1))
def test_a_shard_that_is_cut_off_keeps_its_whole_samples(length: int) -> None:
    items = read_bytes("s.mds", SHARD[:length])
    read = values(items)
    assert read == ROWS[: len(read)] and isinstance(items[-1], Fault) and items[-1].ends


@given(st.integers(0, len(SHARD) - 1), st.integers(0, 7))
def test_a_flipped_bit_of_a_shard_is_survived(place: int, bit: int) -> None:
    data = bytearray(SHARD)
    data[place] ^= 1 << bit
    items = read_bytes("s.mds", bytes(data))
    is_whole_lost = any(isinstance(item, Fault) and item.ends for item in items)
    assert len(items) >= len(ROWS) or is_whole_lost


def test_a_sample_over_the_limit_is_a_fault_and_the_next_is_read() -> None:
    rows = [{"text": "one"}, {"text": "x" * 5000}, {"text": "two"}]
    items = read_bytes("s.mds", mds({"text": "str"}, rows), Limits(1000))
    assert values(items) == [rows[0], rows[2]] and len(items) == 3


SAMPLES: dict[str, bytes] = {
    "a/0.txt": b"one",
    "a/0.json": b'{"url": "u0", "n": 1}',
    "a/0.jpg": b"\xff\xd8\xff",
    "a/1.meta.json": b'{"url": "u1"}',
    "a/1.txt": b"two",
    "a/2.json": b'{"url": ',
    "a/2.txt": b"three",
    "a/3.json": b'{"text": "four"}',
    "a/4.jpg": b"\xff\xd8\xff",
}


@pytest.mark.parametrize("pack", [as_tar, as_zip])
def test_members_of_one_name_are_one_sample(pack: Any) -> None:
    name = "s.tar" if pack is as_tar else "s.zip"
    items = read_bytes(name, pack(SAMPLES), layout=Layout(archive_unit="sample"))
    found = [{k: v for k, v in one.items() if k != "id"} for one in values(items)]
    assert found == [
        {"text": "one", "url": "u0", "n": 1},
        {"text": "two", "url": "u1"},
        {"text": "four"},
    ]
    (fault,) = [item for item in items if isinstance(item, Fault)]
    assert fault.error.startswith("broken JSON")
    assert items.count(Skipped("archive_member")) == 2


def test_a_member_of_several_records_is_no_part_of_a_sample() -> None:
    data = as_tar({"0.jsonl": b'{"text": "a"}\n{"text": "b"}\n', "1.txt": b"c"})
    first, second = read_bytes("s.tar", data, layout=Layout(archive_unit="sample"))
    assert isinstance(first, Fault) and isinstance(second, Record)


def test_lists_of_what_is_beside_them_are_not_read(tmp_path: Any) -> None:
    empty_dir(tmp_path / "in" / "train")
    (tmp_path / "in" / "shard.00000.mds").write_bytes(SHARD)
    (tmp_path / "in" / "index.json").write_text('{"shards": []}')
    table = pa.table({"text": ["a", "b"]})
    with pa.ipc.new_stream(str(tmp_path / "in" / "train" / "data-0.arrow"), table.schema) as out:
        out.write_table(table)
    for name in ("train/state.json", "train/dataset_info.json", "dataset_dict.json"):
        (tmp_path / "in" / name).write_text("{}")
    made = ingest_files(tmp_path, "out", [tmp_path / "in"])
    assert texts(made) == [*(row["text"] for row in ROWS), "a", "b"] and not quarantine(made)
    assert made.metrics["files_left_out"]["by_ending"] == {".json": 4}
