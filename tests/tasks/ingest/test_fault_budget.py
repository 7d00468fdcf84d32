"""Records and files that are lost count against the budget of faults."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from llm_core.printing import percent
from tasks.ingest.damagedfiles import FileExtent, estimate_lost
from tasks.ingest.sources import SourceConfig
from tasks.ingest.stage import ingest, require_budget
from tasks.runtime.artifact import Artifact
from tasks.runtime.keys import canonical_json, key_config
from tasks.runtime.stage import StageFailure
from tests.support.data.make_artifacts import empty_dir


def with_bad(tmp_path: Path, bad: int, good: int, **config: Any) -> tuple[Artifact, SourceConfig]:
    lines = ['{"text": "good"}'] * good + ["{broken"] * (bad - 1) + ['{"text": 1}'] * min(bad, 1)
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    settings = SourceConfig(name="s", paths=(str(tmp_path / "a.jsonl"),), **config)
    return ingest(empty_dir(tmp_path / "out"), settings), settings


def test_more_faults_than_the_budget_are_refused_with_their_kinds_and_places(
    tmp_path: Path,
) -> None:
    artifact, config = with_bad(tmp_path, 6, 94)
    with pytest.raises(StageFailure) as caught:
        require_budget(artifact, config)
    said = str(caught.value)
    assert (
        "6 of 100 records (6.0 %)" in said
        and "(broken JSON 5, wrong type 1)" in said
        and "source.max_bad_frac" in said
    )
    assert [f"a.jsonl line {n}" in said for n in (95, 96, 97, 98)] == [True, True, True, False]
    assert str(artifact.path / "quarantine.jsonl") in said and "\n" not in said


@pytest.mark.parametrize(("bad", "budget"), [(5, 0.05), (6, 0.06), (0, 0.0)])
def test_faults_within_the_budget_are_accepted(tmp_path: Path, bad: int, budget: float) -> None:
    require_budget(*with_bad(tmp_path, bad, 100 - bad, max_bad_frac=budget))


def lines_of(num_records: int) -> bytes:
    """Records as lines of JSON, of text that does not shrink to nothing."""
    rng = random.Random(num_records)
    return b"".join(
        b'{"text": "%s"}\n' % rng.randbytes(200).hex().encode() for _ in range(num_records)
    )


def harmed(tmp_path: Path, name: str, num_records: int = 40) -> None:
    """A file of so many records that cannot be read."""
    if name.endswith(".parquet"):
        path = tmp_path / "in" / name
        pq.write_table(
            pa.table(
                {
                    "text": [
                        line["text"] for line in map(json.loads, lines_of(num_records).splitlines())
                    ]
                }
            ),
            path,
        )
        path.write_bytes(path.read_bytes()[:-1] + b"X")
    else:
        (tmp_path / "in" / name).write_bytes(b"X" + gzip.compress(lines_of(num_records))[1:])


@pytest.mark.parametrize("bad", ["bad.jsonl.gz", "bad.parquet"])
def test_an_unreadable_file_counts_as_the_records_it_would_hold(tmp_path: Path, bad: str) -> None:
    (tmp_path / "in").mkdir()
    for i in range(3):
        (tmp_path / "in" / f"{i}.jsonl.gz").write_bytes(gzip.compress(lines_of(40)))
    harmed(tmp_path, bad)
    config = SourceConfig(name="s", paths=(str(tmp_path / "in"),))
    artifact = ingest(empty_dir(tmp_path / "out"), config)
    lost = artifact.counters["lost_estimate"]
    assert artifact.counters["read"] == 121 and artifact.counters["quarantined"] == 1
    assert 30 <= lost + 1 <= (41 if bad.endswith("gz") else 80), (
        "parquet takes another number of bytes for a record"
    )
    said = (
        rf"1 of 121 records and about {lost} more in 1 damaged file"
        rf" \({percent((1 + lost) / (121 + lost), '.1')}\)"
    )
    with pytest.raises(StageFailure, match=said):
        require_budget(artifact, config)


def test_a_lone_file_that_breaks_off_counts_what_is_behind_the_break(tmp_path: Path) -> None:
    frames = [
        zstandard.ZstdCompressor(write_checksum=True).compress(lines_of(50)) for _ in range(40)
    ]
    frames[10] = frames[10][:-1] + bytes([frames[10][-1] ^ 0xFF])
    (tmp_path / "a.jsonl.zst").write_bytes(b"".join(frames))
    config = SourceConfig(name="s", paths=(str(tmp_path / "a.jsonl.zst"),))
    counters = ingest(empty_dir(tmp_path / "out"), config).counters
    assert counters["read"] < 600 and 1600 <= counters["read"] + counters["lost_estimate"] <= 2400


def test_a_lone_gzip_that_is_corrupt_near_its_beginning_counts_the_rest(tmp_path: Path) -> None:
    data = bytearray(b"".join(gzip.compress(lines_of(50)) for _ in range(40)))
    data[len(data) // 4] ^= 0xFF
    (tmp_path / "a.jsonl.gz").write_bytes(data)
    config = SourceConfig(name="s", paths=(str(tmp_path / "a.jsonl.gz"),))
    counters = ingest(empty_dir(tmp_path / "out"), config).counters
    assert counters["read"] < 600 and 1200 <= counters["read"] + counters["lost_estimate"] <= 2800


def test_a_quotation_that_never_ends_counts_the_rows_it_swallows(tmp_path: Path) -> None:
    row = "some words of a row of text"
    (tmp_path / "a.csv").write_text("\n".join(["text", *[row] * 100, f'"{row}', *[row] * 900]))
    config = SourceConfig(name="s", paths=(str(tmp_path / "a.csv"),))
    counters = ingest(empty_dir(tmp_path / "out"), config).counters
    assert (
        counters["read"] == 101
        and counters["files_damaged"] == 1
        and 950 <= 101 + counters["lost_estimate"] <= 1050
    )


FILES = st.builds(
    FileExtent,
    st.sampled_from(["jsonl", "warc.gz"]),
    st.integers(1, 10**6),
    st.integers(1, 500),
    st.integers(0, 1),
    st.none(),
)


@given(st.lists(FILES))
def test_a_damaged_file_loses_no_more_than_the_densest_whole_one_would_hold(
    files: list[FileExtent],
) -> None:
    whole = [file for file in files if not file.breaks]
    densest = max((file.records / file.size_bytes for file in whole), default=0.0)
    assert (
        0 <= estimate_lost(files) <= densest * sum(file.size_bytes for file in files if file.breaks)
    )
    assert estimate_lost(whole) == 0


def test_budget_is_in_no_key() -> None:
    keys = [
        canonical_json(key_config(SourceConfig(name="s", max_bad_frac=frac))) for frac in (0.0, 1.0)
    ]
    assert keys[0] == keys[1]
