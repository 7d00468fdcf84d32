"""The index of a checkpoint unpickles no foreign objects."""

import os
import pickle
from pathlib import Path

import pytest

from llm_core.checkpoint.reader import CheckpointError, IndexUnpickler


def test_checkpoint_index_with_foreign_objects_is_refused(tmp_path: Path) -> None:
    class Foreign:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path / 'ran'}",)

    (tmp_path / "index").write_bytes(pickle.dumps(Foreign()))
    with (
        (tmp_path / "index").open("rb") as stream,
        pytest.raises(CheckpointError, match=r"holds posix\.system"),
    ):
        IndexUnpickler(stream).load()
    assert not (tmp_path / "ran").exists()
