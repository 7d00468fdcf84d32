"""`textmill quantize` takes a new folder and a model, and says what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from llm_core.huggingface.export import export_model, load_model
from llm_core.huggingface.rounded import is_rounded
from llm_core.json_files import read_json
from tests.flows.conftest import RunCli, require_refused
from tests.support.engine.small_model import make_model


def test_a_folder_is_written_and_reported(run_cli: RunCli, tmp_path: Path) -> None:
    model = make_model(dtype=torch.float32)
    export_model(model.config, model.state_dict(), tmp_path / "model")
    words = [f"folder={tmp_path / 'model'}", f"out={tmp_path / 'new'}", "quantize.format=int4"]
    result = run_cli("quantize", *words, "quantize.device=cpu")
    assert result["code"] == 0 and "bits per byte were not measured" in result["err"]
    assert result["summary"]["format"] == "int4"
    assert is_rounded(read_json(tmp_path / "new/config.json"))
    assert load_model(tmp_path / "new").config == model.config


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "quantize needs a new folder; write textmill quantize out=DIR"),
        (("out=a", "out=b"), "out is given twice"),
        (("out=s3://x/y",), "is an address"),
        (("out=new",), "no model is trained"),
        (("out=new", "folder=nowhere"), "nowhere has no config.json"),
        (("out=new", "quantize.format=int3"), "quantize.format (int3) is not a choice"),
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
    require_refused(run_cli, ["quantize", *words], line)
