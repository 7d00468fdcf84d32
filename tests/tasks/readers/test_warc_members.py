"""A damaged member of a compressed web archive costs its own records and no others."""

from __future__ import annotations

import gzip
import io
import itertools
import random
from pathlib import Path

import pytest
import zstandard
from hypothesis import assume, given
from hypothesis import strategies as st

from tasks.ingest.sources import SourceConfig
from tasks.ingest.stage import ingest
from tasks.readers import Fault, Record
from tasks.readers.bytestreams import DamagedStream, read_blocks
from tests.support.data.input_files import read_items
from tests.support.data.make_artifacts import empty_dir
from tests.support.data.web_archives import (
    FRAMES,
    FUZZED,
    PAGES,
    check_others,
    offsets_of,
    page,
    with_length,
)


def unpack(data: bytes, suffix: str) -> bytes | None:
    try:
        return b"".join(read_blocks(io.BytesIO(data), suffix))
    except DamagedStream:
        return None


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@FUZZED
@given(st.data())
def test_a_damaged_member_costs_only_itself(
    suffix: str, tmp_path: Path, data: st.DataObject
) -> None:
    records = [
        page(i, noise, embeds)
        for i, (noise, embeds) in enumerate(data.draw(st.lists(PAGES, min_size=1, max_size=6)))
    ]
    members = [bytearray(FRAMES[suffix](record)) for record in records]
    hit = data.draw(st.integers(0, len(records) - 1))
    # Behind the header, whose fields a reader may pass over, and before the length that the member
    # states.
    place = data.draw(st.integers(18, len(members[hit]) - 9))
    bits = data.draw(st.integers(1, 255))
    members[hit][place] ^= bits
    assume(
        unpack(bytes(members[hit]), suffix) != records[hit]
    )  # the last byte of deflate data has bits of no meaning
    path = tmp_path / f"a.warc{suffix}"
    path.write_bytes(b"".join(members))
    fault = check_others(path, records, hit, offsets_of(records))
    assert fault.error.startswith("damaged file: ")
    assert fault.ends == (hit == len(records) - 1)


@pytest.mark.parametrize("place", range(18, 220))
def test_a_damaged_byte_of_a_member_costs_its_record_wherever_it_is(
    place: int, tmp_path: Path
) -> None:
    records = [page(0, b"3", embeds=True), page(1, b"\0\0\0\0\0\x05$%048\\d", embeds=True)]
    for suffix, hit, bits in itertools.product((".gz", ".zst"), (0, 1), (2, 4, 104)):
        members = [bytearray(FRAMES[suffix](record)) for record in records]
        if place > len(members[hit]) - 9:
            continue
        members[hit][place] ^= bits
        if unpack(bytes(members[hit]), suffix) != records[hit]:
            (tmp_path / f"a.warc{suffix}").write_bytes(b"".join(members))
            check_others(tmp_path / f"a.warc{suffix}", records, hit, offsets_of(records))


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2", ".xz"])
@pytest.mark.parametrize("hit", [0, 2, 3])
@pytest.mark.parametrize("keep", [2, 30, -4])
def test_a_member_that_is_cut_off_costs_only_itself(
    suffix: str, hit: int, keep: int, tmp_path: Path
) -> None:
    records = [page(i, bytes(range(i, 90 + i))) for i in range(4)]
    members = [FRAMES[suffix](record) for record in records]
    members[hit] = members[hit][:keep]
    (tmp_path / f"a.warc{suffix}").write_bytes(b"".join(members))
    items = read_items(tmp_path / f"a.warc{suffix}")
    texts = [item.values["id"] for item in items if isinstance(item, Record)]
    assert texts == [f"urn:uuid:{i}" for i in range(4) if i != hit]
    positions = [item.position for item in items if isinstance(item, Record)]
    assert positions == sorted(set(positions)) and positions[:hit] == offsets_of(records)[:hit]
    assert [item.byte_offset for item in items if isinstance(item, Fault)] == [
        offsets_of(records)[hit]
    ]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_junk_between_members_costs_no_record_and_moves_no_offset(
    suffix: str, tmp_path: Path
) -> None:
    records = [page(i) for i in range(4)]
    for at, junk in (
        (0, b"junk"),
        (2, b"junk that is not a member"),
        (2, bytes(range(1, 256)) * 9000),
        (4, b"junk"),
    ):
        members = [*map(FRAMES[suffix], records)]
        (tmp_path / f"a.warc{suffix}").write_bytes(b"".join([*members[:at], junk, *members[at:]]))
        items = read_items(tmp_path / f"a.warc{suffix}")
        assert [item.position for item in items if isinstance(item, Record)] == offsets_of(records)
        assert [type(item) for item in items].index(Fault) == at and len(items) == 5


def test_an_archive_in_one_member_keeps_what_is_before_the_damage_and_behind_a_wrong_length(
    tmp_path: Path,
) -> None:
    records = [page(i, bytes(range(200))) for i in range(9)]
    stored = list(records)
    stored[3] = with_length(records[3], lambda n: 1 << 25)
    (tmp_path / "a.warc.gz").write_bytes(gzip.compress(b"".join(stored)))
    check_others(tmp_path / "a.warc.gz", records, 3, offsets_of(stored))
    data = gzip.compress(b"".join(records), compresslevel=0)
    cut = data.index(records[6]) + 100
    (tmp_path / "a.warc.gz").write_bytes(data[:cut] + b"\0" * 300)
    items = read_items(tmp_path / "a.warc.gz")
    assert [item.position for item in items if isinstance(item, Record)][:6] == offsets_of(records)[
        :6
    ]


def test_records_of_several_in_a_member_are_kept_up_to_the_damage(tmp_path: Path) -> None:
    records = [page(i, random.Random(i).randbytes(900)) for i in range(12)]
    members = [bytearray(gzip.compress(b"".join(records[i : i + 4]))) for i in (0, 4, 8)]
    members[1][len(members[1]) * 2 // 5 : len(members[1]) * 2 // 5 + 9] = b"\xff" * 9
    (tmp_path / "a.warc.gz").write_bytes(b"".join(members))
    items = read_items(tmp_path / "a.warc.gz")
    ids = [int(item.values["id"].rpartition(":")[2]) for item in items if isinstance(item, Record)]
    assert set(ids) >= {0, 1, 2, 3, 8, 9, 10, 11} and 4 in ids
    assert [item.position for item in items if isinstance(item, Record)] == [
        offsets_of(records)[i] for i in ids
    ]
    config = SourceConfig(name="s", paths=(str(tmp_path / "a.warc.gz"),))
    counters = ingest(empty_dir(tmp_path / "out"), config).counters
    assert counters["quarantined"] == 1 and counters["files_damaged"] == 1
    assert counters["kept"] + counters["quarantined"] < 12
    assert 11 <= counters["read"] + counters["lost_estimate"] <= 13


def test_zeros_over_members_of_a_lone_file_count_as_the_records_they_held(tmp_path: Path) -> None:
    members = [gzip.compress(page(i, random.Random(i).randbytes(300))) for i in range(40)]
    size = sum(map(len, members[:10]))
    data = b"".join(members[:10]) + bytes(sum(map(len, members[10:20]))) + b"".join(members[20:])
    data = (
        data[: size - 40] + bytes(40) + data[size:]
    )  # zeros alone are padding, which is not damage
    (tmp_path / "a.warc.gz").write_bytes(data)
    config = SourceConfig(name="s", paths=(str(tmp_path / "a.warc.gz"),))
    counters = ingest(empty_dir(tmp_path / "out"), config).counters
    assert counters["kept"] == 29 and counters["quarantined"] == 1
    assert 38 <= counters["read"] + counters["lost_estimate"] <= 42


def test_a_damaged_record_of_a_lone_file_is_in_no_estimate_twice(tmp_path: Path) -> None:
    records = [page(i, random.Random(i).randbytes(300)) for i in range(8)]
    members = [bytearray(gzip.compress(record)) for record in records]
    members[5][60] ^= 0xFF
    (tmp_path / "a.warc.gz").write_bytes(b"".join(members))
    config = SourceConfig(name="s", paths=(str(tmp_path / "a.warc.gz"),))
    counters = ingest(empty_dir(tmp_path / "out"), config).counters
    assert (counters["read"], counters["kept"], counters["quarantined"]) == (8, 7, 1)
    assert counters["lost_estimate"] == 0 and counters["files_damaged"] == 1


def test_offsets_behind_damage_do_not_depend_on_where_in_the_member_it_is(tmp_path: Path) -> None:
    records = [page(i, bytes(range(200))) for i in range(3)]
    member = gzip.compress(records[1])
    for harmed in (
        b"\xff" * 40 + member[40:],
        member[:40] + b"\0\0\0\0" + member[44:],
        member[:-8] + bytes(4) + member[-4:],
    ):
        (tmp_path / "a.warc.gz").write_bytes(
            gzip.compress(records[0]) + harmed + gzip.compress(records[2])
        )
        _, fault, last = read_items(tmp_path / "a.warc.gz")
        assert isinstance(fault, Fault) and fault.byte_offset == len(records[0])
        # A member without its magic number is junk of no length.
        moved = -len(records[1]) * harmed.startswith(b"\xff")
        assert isinstance(last, Record) and last.position == offsets_of(records)[2] + moved


def test_frames_that_state_no_length_count_as_what_could_be_decompressed(tmp_path: Path) -> None:
    records = [page(i, bytes(range(200))) for i in range(3)]
    unsized = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True)
    frames = [bytearray(unsized.compress(record)) for record in records]
    frames[1][-1] ^= 1
    (tmp_path / "a.warc.zst").write_bytes(b"".join(frames))
    _, _, last = read_items(tmp_path / "a.warc.zst")
    assert isinstance(last, Record) and last.position > len(records[0])
