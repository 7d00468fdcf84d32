"""`textmill export` takes a new folder and a model, and says what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flows.compose import compose
from flows.run import decide
from llm_core.checkpoint.checkpoints import Checkpoints
from llm_core.huggingface.export import export_model
from llm_core.huggingface.files import read_tensors
from tests.flows.conftest import RunCli, require_refused
from tests.support.engine.small_model import make_model
from tests.support.engine.small_runs import run_config, write_config
from tests.support.engine.small_states import ALONE, Run


def test_a_folder_is_written_in_half_the_bytes(run_cli: RunCli, tmp_path: Path) -> None:
    model = make_model(dtype=torch.float32)
    export_model(model.config, model.state_dict(), tmp_path / "model")
    words = [f"folder={tmp_path / 'model'}", f"out={tmp_path / 'new'}", "export.dtype=bfloat16"]
    result = run_cli("export", *words)
    assert result["code"] == 0 and result["summary"]["dtype"] == "bfloat16"
    assert {weight.dtype for weight in read_tensors(tmp_path / "new").values()} == {torch.bfloat16}


def test_a_step_of_a_training_that_goes_on_is_found_by_its_overrides(
    run_cli: RunCli, places: list[str], tmp_path: Path
) -> None:
    """The work directory is as a trainer leaves it between two steps."""
    store, plan = decide(compose(["source=sample", *places, "optim.lr=0.002"]), "train")
    workdir = store.work_dir("train", plan["train"].node.key) / "out.work" / "run-1"
    workdir.mkdir(parents=True)
    write_config(workdir / "config.json", run_config(tmp_path))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text("{}", "utf-8")
    run = Run()
    with Checkpoints(workdir / "checkpoints", ALONE) as checkpoints:
        for step in (3, 6):
            checkpoints.save(step, *run.parts)
            run.move()
    for words, step in (((), 6), (("step=3",), 3)):
        out = tmp_path / f"step-{step}"
        result = run_cli("export", f"out={out}", "optim.lr=0.002", *words)
        assert result["code"] == 0 and result["summary"]["step"] == step, result["err"]
    first, second = (read_tensors(tmp_path / f"step-{step}") for step in (3, 6))
    assert all(torch.equal(second[name], first[name] + 1) for name in first)
    other = run_cli("export", f"out={tmp_path / 'other'}")
    assert other["code"] == 2 and "has a checkpoint yet" in other["err"]


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
    require_refused(run_cli, ["export", *words], line)
