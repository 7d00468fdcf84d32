"""A tokenizer and shards to train on, and a folder for the results."""

from pathlib import Path

import pytest

from tasks.runtime.artifact import Artifact
from tests.support.data.make_artifacts import empty_dir
from tests.support.engine.small_runs import write_bytes_per_token, write_token_shards


@pytest.fixture
def parents(tmp_path: Path) -> tuple[Artifact, Artifact]:
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    write_bytes_per_token(tokenizer / "bytes_per_token.npy")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tokenizer / name).write_text("{}", "utf-8")
    return Artifact(tokenizer, "tokenizer"), Artifact(
        write_token_shards(tmp_path / "shards"), "shards"
    )


@pytest.fixture
def out_dir(tmp_path: Path) -> Path:
    return empty_dir(tmp_path / "out")
