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


def metrics_of_last_training(folder: Path) -> list[str]:
    files = (folder / "data/store/train").glob("*/metrics.jsonl")
    return max(files, key=lambda file: file.stat().st_mtime).read_text("utf-8").splitlines()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_guide_to_fine_tuning_runs_as_written(tmp_path: Path) -> None:
    alone = ["orchestrator=none", "tracking=off"]
    commands = []
    for command in fenced_commands(GUIDE):
        small = as_written_but_small(command, alone)
        if "train=dpo" in small:  # both answers of a pair are in a row
            small = small.replace("train.seq_len=32", "train.seq_len=128")
        commands.append(" ".join([small, *alone]) if "train" in small.split()[1:2] else small)
    done = run_in_a_shell(commands, tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    about = json.loads((tmp_path / "adapter/adapter_config.json").read_text("utf-8"))
    assert about["r"] == 16 and about["peft_type"] == "LORA"
    merged, base = (load_file(tmp_path / name / "model.safetensors") for name in ("tuned", "base"))
    assert merged.keys() == base.keys()
    changed = {name for name in base if not merged[name].equal(base[name])}
    assert changed == {name for name in base if "_proj" in name}
    steps = [json.loads(line) for line in metrics_of_last_training(tmp_path)]
    margins = [row["reward_margin"] for row in steps if "reward_margin" in row]
    assert len(margins) == 4 and abs(margins[0]) < 1e-6 < abs(margins[-1])
    assert list((tmp_path / "data/store/.references").glob("*.safetensors"))
    template = json.loads((tmp_path / "tuned/tokenizer_config.json").read_text("utf-8"))
    assert "<|im_end|>" in template["chat_template"]
