"""A file that is replaced is the old one or a new one, whoever writes it at the same time."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_core import durable
from llm_core.durable import write_durably


def test_two_writers_with_one_process_id_each_leave_the_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, sync = tmp_path / "a.json", durable.sync_file

    def interrupted(path: Path) -> None:
        monkeypatch.setattr(durable, "sync_file", sync)
        write_durably(file, "of another machine")
        assert file.read_text() == "of another machine"
        sync(path)

    monkeypatch.setattr(durable, "sync_file", interrupted)
    write_durably(file, "mine")
    assert file.read_text() == "mine" and list(tmp_path.iterdir()) == [file]
