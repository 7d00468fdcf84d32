"""Data in the forms that other trainers write is read, and what is damaged costs itself."""

from __future__ import annotations

import tracemalloc
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


@pytest.mark.parametrize("json_first", [True, False])
def test_a_sample_is_named_by_its_place_unless_a_member_has_its_id(json_first: bool) -> None:
    members = {"0.txt": b"a", "0.json": b'{"id": "7", "text": null}', "1.txt": b"b"}
    names = sorted(members, key=lambda name: (name[0], name.endswith("n") != json_first))
    data = as_tar({name: members[name] for name in names})
    items = read_bytes("s.tar", data, layout=Layout(archive_unit="sample"))
    assert values(items) == [{"id": "7", "text": "a"}, {"id": "s.tar!1", "text": "b"}]


@pytest.mark.parametrize(
    ("members", "error"),
    [
        ({"0.txt": b"a", "0.alt.txt": b"b"}, "members '.txt' and '.alt.txt' differ in a column"),
        ({"0.txt": b"a", "0.json": b'{"text": "b"}'}, "members '.txt' and '.json' differ"),
        ({"0.a.json": b'{"n": 1}', "0.b.json": b'{"n": 2}'}, "members '.a.json' and '.b.json'"),
        ({"0.txt": b"a", "0.html": b"<p>a"}, "members '.txt' and '.html' differ"),
    ],
)
def test_members_that_differ_in_a_column_are_a_fault_that_names_them(
    members: dict[str, bytes], error: str
) -> None:
    data = as_tar(members | {"1.txt": b"next", "1.json": b'{"text": "next"}'})
    first, second = read_bytes("s.tar", data, layout=Layout(archive_unit="sample"))
    assert isinstance(first, Fault) and first.error.startswith(f"unreadable sample: {error}")
    assert isinstance(second, Record) and second.values["text"] == "next"


def test_a_sample_is_held_up_to_the_limit_of_a_record() -> None:
    limit = 1 << 20
    parts = {f"0.{n}.json": b'{"c%d": ["%s"]}' % (n, b"x" * (limit // 4)) for n in range(99)}
    lines = b"".join(b'{"n": "%s"}\n' % (b"x" * (limit // 4)) for _ in range(99))
    data = as_tar(parts | {"1.txt": b"next", "2.jsonl": lines})
    tracemalloc.start()
    items = read_bytes("s.tar", data, Limits(limit), Layout(archive_unit="sample"))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    first, second, third = items
    assert isinstance(first, Fault) and first.error.startswith("over the limit: a sample of more")
    assert isinstance(second, Record) and isinstance(third, Fault)
    assert peak_bytes < 9 * limit < len(lines) / 2


def test_damage_of_an_archive_is_known_where_its_last_sample_is_lost_already() -> None:
    data = as_tar({"0.json": b"{", "0.txt": b"x" * 5000})
    cut = read_bytes("s.tar", data[:2500], layout=Layout(archive_unit="sample"))
    (fault,) = cut
    assert isinstance(fault, Fault) and fault.ends


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
