"""A folder is marked as a store by the first run into it, unless it holds what no store does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.records import RunRecord, write_record
from tasks.runtime.store import Store


@pytest.fixture(params=["notes.txt", "train/photos", "train/0123456789abcdef.txt/x", "train"])
def foreign_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    home = tmp_path / "home"
    path = home / request.param
    path.parent.mkdir(parents=True)
    if request.param == "train":
        path.symlink_to(tmp_path)
    else:
        path.write_text("mine")
    yield home


def test_a_folder_that_holds_more_than_a_store_is_not_marked_as_one(
    foreign_folder: Path, request: pytest.FixtureRequest
) -> None:
    record = RunRecord("r", "run", "report", [], "2026-01-01", {}, {}, "completed")
    write_record(Store(foreign_folder), record)
    assert (foreign_folder / ".textmill-store").exists() == (
        "0123456789abcdef.txt" in request.node.name
    )
