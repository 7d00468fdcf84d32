"""The example of the guide to fine-tuning runs as written, from a base to a merged model."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tasks.runtime.code import ROOT
from tests.support.written_commands import (
    as_written_but_small,
    fenced_commands,
    link_sample,
    make_programs,
)

GUIDE = (ROOT / "docs/guides/fine-tuning.md").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_guide_to_fine_tuning_runs_as_written(tmp_path: Path) -> None:
    link_sample(tmp_path)
    make_programs(tmp_path / "bin")
    alone = ["orchestrator=none", "tracking=off"]
    script = ["set -e"]
    for command in fenced_commands(GUIDE):
        small = as_written_but_small(command, alone)
        script.append(" ".join([small, *alone]) if "train" in small.split()[1:2] else small)
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    about = json.loads((tmp_path / "adapter/adapter_config.json").read_text("utf-8"))
    assert about["r"] == 16 and about["peft_type"] == "LORA"
    merged, base = (load_file(tmp_path / name / "model.safetensors") for name in ("tuned", "base"))
    assert merged.keys() == base.keys()
    changed = {name for name in base if not merged[name].equal(base[name])}
    assert changed == {name for name in base if "_proj" in name}
    template = json.loads((tmp_path / "tuned/tokenizer_config.json").read_text("utf-8"))
    assert "<|im_end|>" in template["chat_template"]
