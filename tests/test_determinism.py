"""The same keys name the same bytes: whatever the number of workers, the runner, the place, or the
order of the input files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tasks.runtime.graph import ancestors
from tests.support.whole_runs import contents, run, summary

DATA = ancestors("shards")
"""What `textmill refresh` makes."""


@pytest.mark.timeout(900)
def test_data_stages_give_the_same_bytes_for_other_workers_place_clock_and_listing_order(
    small_corpus: Path, plain_run: Path, tmp_path: Path
) -> None:
    # Files made in another order are listed in another order; a path may hold spaces, signs and
    # other scripts.
    moved = tmp_path / "Ein Ordner, 数据"
    moved.mkdir()
    for file in sorted(small_corpus.iterdir(), reverse=True):
        shutil.copyfile(file, moved / file.name)
    place = tmp_path / "größer (2)"
    more = {
        "PYTHONHASHSEED": "4242",
        "TZ": "Asia/Kathmandu",
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "HOME": "/nonexistent",
    }
    # Not runner=auto: with compiled code at hand it finds no work here worth a worker's start, and
    # one process would be compared with one.
    run("refresh", moved, place, "num_workers=4", "runner=thread", **more)
    assert contents(place) == contents(plain_run, DATA)
    modified = {
        p: p.stat().st_mtime_ns
        for p in (place / "store").rglob("*")
        if ".runs" not in p.parts and p.is_file()
    }
    again = summary(run("refresh", moved, place, "num_workers=4"))
    assert all(stage["cached"] for stage in again["stages"].values())
    assert {p: p.stat().st_mtime_ns for p in modified} == modified, "a cached run rewrites nothing"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("num_workers", [2, 4])
def test_data_stages_give_the_same_bytes_from_processes(
    num_workers: int, small_corpus: Path, plain_run: Path, tmp_path: Path
) -> None:
    run("refresh", small_corpus, tmp_path, f"num_workers={num_workers}", "runner=process")
    assert contents(tmp_path) == contents(plain_run, DATA)
