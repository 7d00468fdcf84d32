"""A speed of answers is shown only of an engine whose tokens are those of a full pass."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from benchmarks.engine import infer_card, infer_measures
from benchmarks.engine.infer import Case, fastest, peer_command, summarise, usual_case, usual_peer
from benchmarks.engine.infer_measures import MEASURES
from benchmarks.engine.infer_models import (
    random_model,
    shape_config,
    step_bytes,
)
from benchmarks.engine.infer_parts import KINDS
from llm_core.bench.answers import MAX_BEHIND, Behind, furthest_behind
from llm_core.infer.choice.sampling import GREEDY
from llm_core.infer.generation import generate
from llm_core.profiling.roofline import cached_step

SMALL: dict[str, Any] = {
    "shape": "tiny", "weights": "float32", "prompt": 24, "new": 6, "requests": 7,
    "prompts": "5-30", "answers": "2-6", "repeats": 1,
}  # fmt: skip
CPU = torch.device("cpu")


@pytest.mark.parametrize("weights", ["float32", "int8", "int4"])
def test_decoding_shows_its_speed(weights: str) -> None:
    row = MEASURES["decode"](Case(**SMALL | {"weights": weights, "batch": 3}))
    assert row["correct"] and row["difference"] <= 1e-10
    assert row["behind"] <= row["behind_allowed"] < 0.5
    assert row["batch"] == 3
    assert all(row[name] > 0 for name in ("tok_s", "ttft_ms", "tpot_ms", "mbu", "start_s"))
    assert row["choosing_fracs"].keys() == KINDS.keys() and min(row["choosing_fracs"].values()) > 0
    assert summarise([row], [])["choosing_frac"] == max(row["choosing_fracs"].values())


@pytest.mark.parametrize("mode", ["load", "prefix"])
def test_loads_and_prefixes_show_their_figures(mode: str) -> None:
    row = MEASURES[mode](Case(**SMALL | {"mode": mode}))
    assert row["correct"] and row["ttft_ms"] > 0
    if mode == "load":
        assert row["tok_s"] > 0 and row["failed"] == 0 and row["ttft_s"]["n"] == 7
    else:
        assert row["ratio"] > 1.5


def test_the_start_and_the_parts_of_passes_are_timed() -> None:
    started = MEASURES["start"](Case(**SMALL))
    assert started["correct"] and 0 < started["start_s"] < started["process_s"]
    parts = MEASURES["parts"](Case(**SMALL))
    assert parts["decode_1_ms"] >= parts["decode_1_host_ms"] > 0


def test_cases_of_a_card_are_run_one_after_another_and_left_out_where_time_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = [sys.executable, "-c", "print('{\"tok_s\": 3}'); print('{\"ratio\": 2}')"]
    infer_card.run_process("one", good, 60.0, dict(os.environ))
    infer_card.run_process("two", [sys.executable, "-c", "1/0"], 60.0, dict(os.environ))
    monkeypatch.setattr(sys, "argv", ["infer_card", "prefix", "--seconds=1"])
    infer_card.main()
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == {"tok_s": 3} and rows[1]["case"] == "one" and rows[1]["ratio"] == 2
    assert "ZeroDivisionError" in rows[2]["failed"] and "left out" in rows[3]["failed"]


def test_a_wrong_engine_has_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(**SMALL)
    monkeypatch.setattr(infer_measures, "judge", lambda *_: Behind(float("nan"), 1.0))
    row = MEASURES["decode"](case)
    assert not row["correct"] and row["tok_s"] is row["mbu"] is row["ttft_ms"] is None
    good = row | {"correct": True, "tok_s": 5.0, "mbu": 0.5, "ttft_ms": 1.0}
    summary = summarise([good, row], [{"name": "other", "tok_s": 2.0}])
    assert summary["tok_s"] is summary["ratio"] is summary["mbu"] is summary["tok_s_range"] is None
    assert not summary["correct"] and summary["peer_tok_s"] == 2.0
    assert summarise([good], [{"name": "other", "tok_s": 2.0}])["ratio"] == 2.5


def test_greedy_answers_are_the_best_of_a_full_pass_and_others_lie_far_behind() -> None:
    model = random_model(shape_config("tiny"), "float32", CPU)
    prompts = [[1, 2, 3], [7] * 9]
    answers = generate(model, prompts, GREEDY, 8)
    assert furthest_behind(model, prompts, answers) <= MAX_BEHIND[torch.float32]
    wrong = [answers[0], [(answers[1][0] + 1) % 512, *answers[1][1:]]]
    assert furthest_behind(model, prompts, wrong) > 1
    with torch.no_grad():
        model.norm.weight[0] = float("nan")
    assert furthest_behind(model, prompts, answers) != furthest_behind(model, prompts, answers)


def test_bytes_of_a_step_leave_out_the_rows_of_the_embedding() -> None:
    config = shape_config("tiny")
    model = random_model(config, "float32", CPU)
    norms = sum(p.nbytes for p in model.parameters() if p.dim() == 1)
    row = config.dim * 4
    assert step_bytes(model) == cached_step(config, 1, 0, 4).num_bytes - row + norms
    assert step_bytes(random_model(config, "int8", CPU)) < step_bytes(model) / 3


def test_of_a_peer_the_fastest_line_of_this_shape_and_batch_counts() -> None:
    rows = [
        {"model": "1.1B", "batch": 1, "tok_s": 55, "name": "dynamic"},
        {"model": "1.1B", "batch": 1, "tok_s": 303, "name": "static"},
        {"model": "1.1B", "batch": 16, "tok_s": 4185},
        {"model": "8B", "batch": 1, "tok_s": 999},
        {"batch": 1, "error": "out of memory"},
    ]
    assert fastest(rows, Case())["name"] == "static"
    assert fastest([{"tok_s": 3.0}], Case())["tok_s"] == 3.0
    with pytest.raises(RuntimeError, match="no tok_s of 8b at batch 4"):
        fastest(rows, Case(shape="8b", batch=4))


def test_a_script_runs_by_this_python_and_a_known_name_with_the_same_lengths() -> None:
    assert peer_command("/a/peer.py gen", Case()) == [sys.executable, "/a/peer.py", "gen"]
    assert peer_command("python3 x.py", Case()) == ["python3", "x.py"]
    assert "--prompt=77" in peer_command("transformers", Case(prompt=77))


@pytest.mark.parametrize("has_gpu", [False, True])
def test_a_cpu_has_a_case_and_a_peer_of_its_own(
    has_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert usual_case().shape == ("1.1b" if has_gpu else "40m")
    assert usual_peer(usual_case()) == (None if has_gpu else "ctranslate2")
    assert usual_peer(Case(weights="int4")) is usual_peer(Case(mode="load")) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "peer"),
    [("decode", "transformers"), ("load", "transformers"), ("http", None)],
)
def test_the_command_runs_both_and_ends_with_a_line_of_json(mode: str, peer: str | None) -> None:
    case = Case(**SMALL | {"mode": mode})
    command = [sys.executable, "-m", "benchmarks.engine.infer", *case.arguments, "--rounds=1"]
    command += ["--peer", peer] if peer else []
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["correct"] and summary["peer_tok_s"] > 0
    assert summary["ratio"] == pytest.approx(summary["tok_s"] / summary["peer_tok_s"], rel=0.01)
