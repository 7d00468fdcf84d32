"""`textmill export` takes a new folder and a model, and says what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from llm_core.huggingface.export import export_model
from llm_core.huggingface.files import read_tensors
from tests.flows.conftest import RunCli
from tests.support.engine.small_model import make_model


def test_a_folder_is_written_in_half_the_bytes(run_cli: RunCli, tmp_path: Path) -> None:
    model = make_model(dtype=torch.float32)
    export_model(model.config, model.state_dict(), tmp_path / "model")
    words = [f"folder={tmp_path / 'model'}", f"out={tmp_path / 'new'}", "export.dtype=bfloat16"]
    result = run_cli("export", *words)
    assert result["code"] == 0 and result["summary"]["dtype"] == "bfloat16"
    assert {weight.dtype for weight in read_tensors(tmp_path / "new").values()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "export needs a new folder; write textmill export out=DIR"),
        (("out=a", "out=b"), "out is given twice"),
        (("out=s3://x/y",), "is an address"),
        (("out=new", "step=last"), "step (last) must be a number of steps"),
        (("out=new", "step=7"), "no training with this configuration has a checkpoint yet"),
        (("out=new", "folder=nowhere"), "nowhere has no config.json"),
        (("out=new", "folder=nowhere", "step=7"), "step (7) needs checkpoints, and nowhere has"),
        (("out=new", "export.dtype=int8"), "export.dtype (int8) is not a choice"),
    ],
)
def test_mistakes_are_told_in_one_line(
    run_cli: RunCli,
    words: tuple[str, ...],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run_cli("export", *words)
    assert result["code"] == 2 and line in result["err"]
    assert len(result["err"].strip().splitlines()) == 1
