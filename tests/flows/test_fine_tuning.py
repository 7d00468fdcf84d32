"""The example of the guide to fine-tuning runs as written, from a base to a merged model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tasks.runtime.code import ROOT
from tests.support.written_commands import (
    as_written_but_small,
    fenced_commands,
    run_in_a_shell,
)

GUIDE = (ROOT / "docs/guides/fine-tuning.md").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_guide_to_fine_tuning_runs_as_written(tmp_path: Path) -> None:
    alone = ["orchestrator=none", "tracking=off"]
    commands = []
    for command in fenced_commands(GUIDE):
        small = as_written_but_small(command, alone)
        commands.append(" ".join([small, *alone]) if "train" in small.split()[1:2] else small)
    done = run_in_a_shell(commands, tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    about = json.loads((tmp_path / "adapter/adapter_config.json").read_text("utf-8"))
    assert about["r"] == 16 and about["peft_type"] == "LORA"
    merged, base = (load_file(tmp_path / name / "model.safetensors") for name in ("tuned", "base"))
    assert merged.keys() == base.keys()
    changed = {name for name in base if not merged[name].equal(base[name])}
    assert changed == {name for name in base if "_proj" in name}
    template = json.loads((tmp_path / "tuned/tokenizer_config.json").read_text("utf-8"))
    assert "<|im_end|>" in template["chat_template"]
