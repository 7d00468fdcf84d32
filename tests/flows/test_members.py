"""The lines by which the guide starts members make the same model in one store."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.runtime.code import ROOT
from tests.support.written_commands import SMALL, link_sample

GUIDE = (ROOT / "docs/guides/several-gpus.md").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_members_that_the_guide_starts_end_with_the_same_weights_in_one_store(
    tmp_path: Path,
) -> None:
    lines = re.findall(r"^textmill (train .*outer\.member=.*)$", GUIDE, re.MULTILINE)
    assert len(lines) == 2
    link_sample(tmp_path)
    small = [*SMALL, "parallel.outer.steps=2", "parallel.outer.lease_s=120", "parallel.device=cpu"]
    places = ["store=store", "state=state", "orchestrator=none", "tracking=off"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    members = [
        subprocess.Popen(
            [sys.executable, "-m", "flows.cli", *line.split(), *small, *places],
            cwd=tmp_path,
            env=environment,
        )
        for line in lines
    ]
    assert [member.wait() for member in members] == [0, 0]
    models = list((tmp_path / "store").glob("train/*/model/model.safetensors"))
    assert len(models) == 2
    assert models[0].read_bytes() == models[1].read_bytes()
    assert (tmp_path / "meeting" / "round-00000002" / "state").exists()
