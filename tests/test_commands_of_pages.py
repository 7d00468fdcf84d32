"""The commands of the README and of every guide run as they are written, in order."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tasks.runtime.code import ROOT
from tests.support.written_commands import (
    as_written_but_small,
    fenced_commands,
    link_sample,
    make_own_data,
    make_programs,
)

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs/guides").glob("*.md"))]
NOT_RUN = re.compile(
    r"^(make|source|textmill serve|textmill (bench )?compare) |[ .]folder=|/crawl|s3://"
    r"|cluster=(slurm|kubernetes)|example\.org|\b(FILE|FOLDER|SWEEP)\b"
)
"""Set-up, a server that stays, and what only the reader has: runs, models, a crawl, a bucket, a
queue and a database."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages say that a reader has. Its store is kept from page to page."""
    folder = tmp_path_factory.mktemp("reader")
    make_own_data(folder / "my")
    link_sample(folder)
    (folder / "chats").mkdir()
    (folder / "chats/mine.jsonl").symlink_to(ROOT / "data/sample/chats.jsonl")
    for repository in ("data", "optim", "infer"):
        for source in sorted((ROOT / "llm_core" / repository).glob("*.py")):
            copy = folder / "src" / repository / source.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
    make_programs(folder / "bin")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_runs(page: Path, place: Path) -> None:
    commands = [
        command
        for command in fenced_commands(page.read_text("utf-8"))
        if not NOT_RUN.search(command)
    ]
    places = [f"store={place / 'data' / 'store'}", f"state={place / 'data' / '.state'}"]
    # The shell is one, since `eval "$(textmill env)"` is for the commands after it.
    script = "\n".join(
        ["set -ex", *(as_written_but_small(command, places) for command in commands)]
    )
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
    }
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
        env.pop(name, None)
    try:
        done = subprocess.run(
            ["bash", "-c", script], cwd=place, env=env, capture_output=True, text=True, check=False
        )
    finally:
        subprocess.run([place / "bin" / "textmill", "down"], cwd=place, env=env, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
