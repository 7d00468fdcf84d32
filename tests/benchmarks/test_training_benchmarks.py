"""A speed is shown only of training that learns what one plain process learns from the same
tokens."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.engine import offload, precision
from benchmarks.engine.agreement import held_against, plain
from benchmarks.engine.train import SPEEDS, Row, measure, read_config, summarise
from llm_core.training.run_config import RunConfig

TINY = [
    "model.vocab_size=64",
    "model.dim=16",
    "model.num_layers=2",
    "model.num_heads=4",
    "model.num_kv_heads=2",
    "model.ffn_dim=32",
    "model.max_seq_len=16",
    "train.num_steps=4",
    "train.global_batch_sequences=8",
    "train.micro_batch_sequences=2",
    "train.seq_len=16",
    "train.dtype=fp32",
    "train.compile=false",
    "parallel.device=cpu",
    "parallel.num_threads=1",
]


def run(config: RunConfig) -> Row:
    row = measure(config, skip=1)
    assert row is not None
    return row


@pytest.mark.parametrize(
    "layout", [[], ["parallel.kind=ddp"], ["train.dtype=bf16", "memory.recompute=full"]]
)
def test_training_that_learns_what_plain_training_does_shows_its_speed(layout: list[str]) -> None:
    config = read_config([*TINY, *layout])
    row = held_against(run(config), run(plain(config)), config, SPEEDS)
    assert row["losses_agree"] and all(row[name] > 0 for name in SPEEDS) and "losses" not in row
    assert summarise([row, row], [])["tok_s"] == row["tok_s_gpu"]


@pytest.mark.parametrize(
    ("wrong", "of"),
    [
        (["optim.lr=1e-12"], "loss"),
        (["train.seed=1"], "norm"),
        (["optim.lr=1e30", "optim.weight_decay=0.0"], "loss"),
    ],
    ids=["nothing learned", "another gradient", "no number"],
)
def test_training_that_differs_from_plain_training_has_no_speed(wrong: list[str], of: str) -> None:
    rate = ["optim.lr=3e-3", "optim.warmup_steps=0"]
    config = read_config([*TINY, *rate, *wrong])
    row = held_against(run(config), run(plain(read_config([*TINY, *rate]))), config, SPEEDS)
    assert not row["losses_agree"] and row[f"{of}_difference"] > 1e-3
    assert all(row[name] is None for name in SPEEDS)
    good = row | {"losses_agree": True, "loss_difference": 0.0} | dict.fromkeys(SPEEDS, 1.0)
    summary = summarise([good, row], [good])
    assert (
        summary["tok_s"] is summary["ratio"] is summary["mfu_causal"] is None
        and summary["peer_tok_s"] == 1.0
    )
    assert not summary["losses_agree"]


def test_data_parallel_ranks_train_on_the_tokens_of_one_process() -> None:
    layout = ["parallel.kind=ddp", "parallel.num_processes=2"]
    command = [
        sys.executable,
        "-m",
        "benchmarks.engine.train",
        *TINY,
        *layout,
        "--skip",
        "1",
        "--rounds",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["losses_agree"] and summary["tok_s"] > 0 and summary["loss_difference"] < 1e-5


def test_places_of_state_whose_losses_differ_have_no_speed() -> None:
    row = {"step_s": 1.0, "update_s": 0.5, "peak_bytes": 7, "loss_difference": 1e-3}
    assert offload.withhold(row, limit=1e-2) == row
    withheld = offload.withhold(row, limit=1e-4)
    assert withheld["step_s"] is withheld["update_s"] is None and withheld["peak_bytes"] == 7
    assert offload.withhold(row | {"loss_difference": float("inf")}, limit=1.0)["step_s"] is None


def test_two_precisions_are_as_near_as_two_seeds_where_the_mean_of_the_last_half_says_so() -> None:
    def curve(*losses: float, tok_s: float = 100.0) -> list[dict[str, float]]:
        return [{"loss": loss, "tok_s": tok_s} for loss in losses]

    rows = {
        "bf16": curve(3.0, 2.0, 1.5, 1.0),
        "fp8": curve(9.0, 2.0, 1.51, 1.03, tok_s=150),
        "bf16 again": curve(3.0, 2.0, 1.47, 0.99),
    }
    found = precision.compared(rows)
    assert found["gap"] == found["noise"] * -1 == 0.02 and found["within_noise"]
    assert found["speed_ratio"] == 1.5 and found["losses"]["fp8"] == 1.03
    rows["fp8"][-1]["loss"] = 1.04
    assert not precision.compared(rows)["within_noise"]
