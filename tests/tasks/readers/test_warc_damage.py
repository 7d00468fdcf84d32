"""A damaged record of a web archive costs itself: the others are read as they were, and it is
quarantined with its place."""

from __future__ import annotations

import gzip
import io
import itertools
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tasks.ingest.sources import SourceConfig
from tasks.ingest.stage import ingest
from tasks.readers import Fault, Record
from tasks.readers.bytestreams import DamagedStream, read_blocks
from tests.support.data.input_files import COMPRESS, http_response, read_items, warc_record
from tests.support.data.make_artifacts import empty_dir

EMBEDDED = (
    b"<pre>\r\n\r\nWARC/1.0\r\nWARC-Type: response\r\nContent-Length:"
    b" 7\r\n\r\nexample\r\n\r\n</pre>"
)
FUZZED = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
PAGES = st.tuples(st.binary(max_size=300), st.booleans())
FRAMES: Mapping[str, Callable[[bytes], bytes]] = {
    suffix: COMPRESS[suffix] for suffix in ("", ".gz", ".zst", ".bz2", ".xz")
}


def page(number: int, noise: bytes = b"", embeds: bool = False) -> bytes:
    """A record whose text may hold what looks like a record."""
    body = (
        b"<p>page %d " % number + noise.hex().encode() + EMBEDDED * embeds + b" is at its end</p>"
    )
    block = http_response(body, "Content-Type: text/html")
    named = {
        "WARC_Record_ID": f"<urn:uuid:{number}>",
        "WARC_Target_URI": f"https://x.example/{number}",
    }
    return warc_record(
        "response", block, Content_Type="application/http; msgtype=response", **named
    )


def with_length(record: bytes, say: Callable[[int], object]) -> bytes:
    """The record with another Content-Length of its own."""
    return re.sub(
        rb"Content-Length: (\d+)",
        lambda m: b"Content-Length: %s" % str(say(int(m[1]))).encode(),
        record,
        count=1,
    )


LENGTHS: Mapping[str, Callable[[bytes], bytes]] = {
    "too short": lambda record: with_length(record, lambda n: n - 9),
    "zero": lambda record: with_length(record, lambda n: 0),
    "too long": lambda record: with_length(record, lambda n: n + 60),
    "beyond several records": lambda record: with_length(record, lambda n: n + 900),
    "huge": lambda record: with_length(record, lambda n: 1 << 62),
    "beyond the file": lambda record: with_length(record, lambda n: 1 << 20),
    "negative": lambda record: with_length(record, lambda n: -n),
    "no number": lambda record: with_length(record, lambda n: "many"),
    "empty": lambda record: with_length(record, lambda n: ""),
    "missing": lambda record: re.sub(rb"Content-Length: \d+\r\n", b"", record, count=1),
    "cut": lambda record: record[: -len(record) // 3],
}


def check_others(path: Path, records: list[bytes], hit: int, offsets: list[int]) -> Fault:
    """Every record but one is read as from a sound file, and that one is the only fault; gives the
    fault."""
    (path.parent / "sound.warc").write_bytes(b"".join(records))
    wanted = [
        item.values for item in read_items(path.parent / "sound.warc") if isinstance(item, Record)
    ]
    items = read_items(path)
    assert len(wanted) == len(records) and len(items) == len(records)
    assert [item.values for item in items if isinstance(item, Record)] == wanted[:hit] + wanted[
        hit + 1 :
    ]
    assert [item.position for item in items if isinstance(item, Record)] == offsets[:hit] + offsets[
        hit + 1 :
    ]
    (fault,) = [item for item in items if isinstance(item, Fault)]
    assert (fault.line, fault.byte_offset) == (hit + 1, offsets[hit])
    return fault


def offsets_of(records: list[bytes]) -> list[int]:
    return [sum(map(len, records[:i])) for i in range(len(records))]


@pytest.mark.parametrize("suffix", FRAMES)
@pytest.mark.parametrize("how", LENGTHS)
def test_a_wrong_content_length_costs_its_record(how: str, suffix: str, tmp_path: Path) -> None:
    records = [page(i, b"abc" * i, embeds=i % 2 > 0) for i in range(5)]
    for hit in (0, 2, 4):
        stored = list(records)
        stored[hit] = LENGTHS[how](records[hit])
        path = tmp_path / f"a.warc{suffix}"
        path.write_bytes(b"".join(map(FRAMES[suffix], stored)))
        check_others(path, records, hit, offsets_of(stored))


@pytest.mark.parametrize("suffix", ["", ".gz"])
@FUZZED
@given(st.data())
def test_any_wrong_length_of_one_record_leaves_the_others(
    suffix: str, tmp_path: Path, data: st.DataObject
) -> None:
    drawn = data.draw(st.lists(PAGES, min_size=1, max_size=6))
    hit = data.draw(st.integers(0, len(drawn) - 1))
    # A record that is damaged itself may be split at what looks like a header; the sound ones may
    # not.
    records = [page(i, noise, embeds and i != hit) for i, (noise, embeds) in enumerate(drawn)]
    length = int(re.search(rb"Content-Length: (\d+)", records[hit])[1])  # type: ignore[index]
    wrong = data.draw(
        st.integers(0, 3 * length).filter(
            lambda n: n > length + 4 or length - 25 < n < length or n < 16
        )
    )
    stored = list(records)
    stored[hit] = with_length(records[hit], lambda n: wrong)
    stream = b"".join(stored)
    end = offsets_of(stored)[hit] + stored[hit].index(b"\r\n\r\n") + 4 + wrong
    # A wrong length that leads to what a page holds of a record cannot be told from a right one.
    assume(
        not any(
            end <= m.start() + len(b"<pre>\r\n\r\n") <= end + 4
            for m in re.finditer(re.escape(EMBEDDED), stream)
        )
    )
    path = tmp_path / f"a.warc{suffix}"
    path.write_bytes(b"".join(map(FRAMES[suffix], stored)))
    check_others(path, records, hit, offsets_of(stored))


def test_a_wrong_length_that_leads_to_an_empty_line_of_the_next_record_costs_its_record(
    tmp_path: Path,
) -> None:
    records = [page(0, b"noise" * 20), page(1)]
    to_body_of_next = (
        len(records[0]) - records[0].index(b"\r\n\r\n") - 4 + records[1].index(b"\r\n\r\n")
    )
    stored = [with_length(records[0], lambda n: to_body_of_next), records[1]]
    path = tmp_path / "a.warc"
    path.write_bytes(b"".join(stored))
    check_others(path, records, 0, offsets_of(stored))


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


def test_junk_between_records_costs_no_record(tmp_path: Path) -> None:
    records = [page(i) for i in range(3)]
    (tmp_path / "a.warc").write_bytes(
        b"junk\r\n" + records[0] + b"junk" * 99 + records[1] + records[2] + b"WAR"
    )
    items = read_items(tmp_path / "a.warc")
    assert [item.values["id"] for item in items if isinstance(item, Record)] == [
        "urn:uuid:0",
        "urn:uuid:1",
        "urn:uuid:2",
    ]
    assert [item.byte_offset for item in items if isinstance(item, Fault)] == [
        0,
        6 + len(records[0]),
        6 + 396 + sum(map(len, records)),
    ]


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


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_http_headers_may_end_their_lines_without_carriage_return(
    line_end: bytes, tmp_path: Path
) -> None:
    head = line_end.join(
        [b"HTTP/1.1 200 OK", b"Content-Type: text/html", b"X-Folded: a", b" b", b"", b""]
    )
    body = b"<p>a page\r\n\r\nin lines\n\nof both kinds"
    (tmp_path / "a.warc").write_bytes(
        warc_record("response", head + body, Content_Type="application/http")
    )
    (record,) = read_items(tmp_path / "a.warc")
    assert isinstance(record, Record) and record.values["http_status"] == 200
    assert record.values["text"].data == body


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
