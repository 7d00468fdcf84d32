"""Kernels that a run leaves open are the fastest of those that give the plain answer; a choice is
kept, and a CPU pays nothing for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.parallel.ranks import Ranks
from llm_core.training import fastest as chosen
from tests.support.engine.small_runs import run_config
from tests.support.engine.triton_kernels import DEVICE, ON_GPU

CPU = Ranks(0, 1, torch.device("cpu"))


def test_a_cpu_takes_torch_and_measures_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chosen, "_choose", None)
    config = run_config(tmp_path, train={"kernels": "auto"})
    train = chosen.with_fastest(config, CPU).train
    assert (train.attention, train.kernels) == ("sdpa", "torch")
    named = run_config(tmp_path / "named", train={"attention": "reference"})
    assert chosen.with_fastest(named, CPU) == named


def passes(**answers: Tensor | Exception) -> Callable[[str], Callable[[], list[Tensor]]]:
    def pass_of(candidate: str) -> Callable[[], list[Tensor]]:
        answer = answers[candidate]
        if isinstance(answer, Exception):
            raise answer
        return lambda: [answer]

    return pass_of


def test_another_answer_is_passed_over_however_fast_and_what_is_refused_is_no_candidate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter([3.0, 2.0, 1.0])
    monkeypatch.setattr(chosen, "_milliseconds", lambda _both: next(times))
    plain = torch.tensor([1.0, 2.0])
    answers = {
        "sdpa": plain,
        "cudnn": plain * 1.001,
        "flash": plain * 1.1,
        "flex": plain * torch.nan,
        "varlen": ConfigError("takes other masks\nmore"),
    }
    found = dict(chosen.measured(passes(**answers), list(answers)))  # type: ignore[arg-type]
    assert found == {"sdpa": 3.0, "cudnn": 2.0, "flash": None, "flex": None}
    assert chosen.fastest(found, ["sdpa", "cudnn"]) == "cudnn"
    assert chosen.fastest({}, ["sdpa", "cudnn"]) == "sdpa"
    assert "varlen is not measured: takes other masks\n" in capsys.readouterr().err


def test_a_choice_says_what_it_was_held_against_and_which_extra_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chosen, "_version", lambda _package: None)
    found = {"sdpa": 3.0, "cudnn": 2.0, "varlen": None}
    assert chosen.told("cudnn", found, ["sdpa", "cudnn", "fa4", "varlen"]) == (
        "cudnn of sdpa 3.00 ms, cudnn 2.00 ms, varlen gave another answer; fa4 may be faster:"
        " pip install 'textmill[fa4]'"
    )
    monkeypatch.setattr(chosen, "_version", lambda _package: "1.0")
    assert "pip" not in chosen.told("cudnn", found, ["sdpa", "fa4"])


def test_a_choice_is_kept_under_its_key_and_made_anew_where_the_file_is_cut_short(
    tmp_path: Path,
) -> None:
    measured: list[int] = []

    def measure() -> chosen.Found:
        measured.append(1)
        return {"torch": 1.5, "triton": None}

    first = chosen.kept(measure, "one device", tmp_path)
    assert chosen.kept(measure, "one device", tmp_path) == first and len(measured) == 1
    chosen.kept(measure, "another", tmp_path)
    assert len(measured) == 2 and len(list(tmp_path.iterdir())) == 2
    for file in tmp_path.iterdir():
        file.write_text(file.read_text()[:10])
    assert chosen.kept(measure, "one device", tmp_path) == first and len(measured) == 3


@pytest.mark.parametrize(
    ("name", "candidates"), [("_attentions", ["sdpa"]), ("_feed_forwards", ["torch"])]
)
def test_the_plain_candidate_runs_at_the_shapes_of_a_run(
    name: str, candidates: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chosen, "_milliseconds", lambda _both: 1.0)
    for masked in (False, True):
        config = run_config(tmp_path / str(masked))
        data = dataclasses.replace(config.train.data, mask_documents=masked)
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, data=data))
        found = dict(getattr(chosen, name)(config, torch.device("cpu"), candidates))
        assert found == {candidates[0]: 1.0}


@pytest.mark.gpu
def test_a_gpu_gets_kernels_that_run_on_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not ON_GPU:
        pytest.skip("there is none")
    values = {"kernels": "auto", "dtype": "bf16", "seq_len": 64}
    config = run_config(tmp_path, train=values, parallel={"device": "cuda"})
    ranks = Ranks(0, 1, DEVICE)
    first = chosen.with_fastest(config, ranks, tmp_path).train
    assert first.attention != "auto" and first.kernels != "auto"
    assert "train.kernels=auto: " in capsys.readouterr().err
    assert chosen.with_fastest(config, ranks, tmp_path).train == first
