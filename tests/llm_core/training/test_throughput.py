"""Rows of timing say what they say they do, and a process that is slow again and again is reported
once."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest
import torch

from llm_core.data.batch import Batch
from llm_core.model.sparse.pairs import attended_tokens
from llm_core.model.sparse.patterns import Pattern
from llm_core.parallel.ranks import Ranks
from llm_core.profiling import roofline
from llm_core.profiling.roofline import training_peak
from llm_core.training.run_config import RunConfig
from llm_core.training.throughput import SLOW_STRETCHES, StepClock, areas_on, product_time
from tests.support.engine.small_runs import run_config

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    return run_config(tmp_path_factory.mktemp("inputs"))


def test_a_row_counts_tokens_flops_and_the_wait_for_data(config: RunConfig) -> None:
    clock = StepClock(config, Ranks(0, 1, CPU), peak_flops=1e9)
    assert clock.wait_for(lambda: time.sleep(0.02) or "batch") == "batch"
    time.sleep(0.02)
    row = clock.row(6, 2)
    assert (row["step"], row["num_steps"]) == (6, 2)
    assert 0.02 <= row["data_wait_s"] < row["elapsed_s"] and row["elapsed_s"] >= 0.04
    assert row["tokens_per_s"] == pytest.approx(2 * config.train.tokens_per_step / row["elapsed_s"])
    for name, causal in (("mfu_full", False), ("mfu_causal", True)):
        flops = config.model.training_flops_per_token(config.train.seq_len, causal)
        assert row[name] == pytest.approx(row["tokens_per_s"] * flops / 1e9)
    assert row["max_memory_bytes"] > 10**7
    assert "slowest_rank" not in row
    assert clock.row(7, 1)["data_wait_s"] == 0, "each stretch has its own"


def test_devices_share_the_work_and_so_the_peak(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        StepClock,
        "_of_all_ranks",
        lambda self: ([1.0] * 4, [0.0] * 4, [0.0] * 4, [4.0, 4.0, 8.0, 16.0]),
    )
    row = StepClock(config, Ranks(0, 4, CPU), peak_flops=1e9).row(1, 1)
    assert row["attended_tokens"] == 8
    flops = config.model.training_flops_per_token(8)
    assert row["mfu_full"] == pytest.approx(row["tokens_per_s"] * flops / 4e9)


@pytest.mark.parametrize("seq_len", [4096, 32768])
def test_the_share_of_the_peak_counts_what_documents_of_a_row_attend(
    seq_len: int, config: RunConfig
) -> None:
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, max_seq_len=seq_len),
        train=dataclasses.replace(config.train, seq_len=seq_len),
    )
    clock = StepClock(config, Ranks(0, 1, CPU), peak_flops=1e9)
    ids = torch.zeros(2, seq_len, dtype=torch.int64)
    documents = (torch.arange(seq_len) // 1024).int().expand(2, -1)
    clock.see(Batch(ids, ids, documents), [Pattern()])
    row = clock.row(1, 1)
    assert row["attended_tokens"] == 1024
    of_weights, of_pairs = (
        6 * config.model.matmul_parameters(),
        12 * config.model.num_layers * config.model.attention_dim,
    )
    assert row["mfu_full"] == pytest.approx(
        row["tokens_per_s"] * (of_weights + of_pairs * 1024) / 1e9
    )
    assert row["mfu_causal"] == pytest.approx(
        row["tokens_per_s"] * (of_weights + of_pairs * 1024 / 2) / 1e9
    )
    assert clock.row(2, 1)["attended_tokens"] == seq_len, "each stretch has its own"
    # Padding, of number -1, attends for nothing; a window and a block take their share of each
    # document, and in its first block a token attends all before it, of which itself is half.
    block = Pattern(block=64)
    for pattern, attended in ((Pattern(), 512), (Pattern(window=64), 62), (block, 32.5 - 1 / 32)):
        clock.see(Batch(ids, ids, documents.where(documents % 2 == 0, -1)), [pattern])
        assert clock.row(3, 1)["attended_tokens"] == attended


@pytest.mark.parametrize("full_layers", [(), (0,), (0, 1)])
@pytest.mark.parametrize("window", [0, 16, 64, 200])
def test_windows_count_in_training_as_in_a_plan(
    window: int, full_layers: tuple[int, ...], config: RunConfig
) -> None:
    model = dataclasses.replace(
        config.model, window=window, full_layers=full_layers if window else (), qk_norm=True
    )
    clock = StepClock(dataclasses.replace(config, model=model), Ranks(0, 1, CPU))
    ids = torch.zeros(2, 128, dtype=torch.int64)
    clock.see(Batch(ids, ids, None), model.patterns)
    assert clock.row(1, 1)["attended_tokens"] == pytest.approx(attended_tokens(model.patterns, 128))


def test_a_rank_slow_several_times_in_a_row_is_reported_once(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int, str]] = []
    clock = StepClock(config, Ranks(0, 3, CPU), report=lambda *event: told.append(event))
    slow, fair = [1.0, 1.4, 1.0], [1.0, 1.2, 1.0]
    for step, paces in enumerate([slow, slow, fair, *[slow] * (SLOW_STRETCHES + 2)]):
        monkeypatch.setattr(
            clock, "_of_all_ranks", lambda paces=paces: (paces, [0.0] * 3, [0.0] * 3, [1.0] * 3)
        )
        row = clock.row(step, 1)
        assert row["slowest_rank"] == 1 and row["slowest_pace"] == pytest.approx(paces[1])
        assert [(one["rank"], one["pace"]) for one in row["paces"]] == [
            (1, paces[1]),
            (0, 1.0),
            (2, 1.0),
        ]
    assert told == [
        (
            "slow_rank",
            2 + SLOW_STRETCHES,
            "rank 1 took 1.40 times as long as the median for a small product, in 3 logging"
            " intervals in a row",
        )
    ]


def test_only_the_first_rank_reports(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int, str]] = []
    clock = StepClock(config, Ranks(1, 2, CPU), report=lambda *event: told.append(event))
    monkeypatch.setattr(
        clock, "_of_all_ranks", lambda: ([1.0, 3.0], [0.0, 0.0], [0.0, 0.0], [1.0, 1.0])
    )
    for step in range(5):
        clock.row(step, 1)
    assert told == []


def test_peaks_and_paces_are_times_of_real_products() -> None:
    flops, how = training_peak(CPU, "fp32")
    assert how == "measured" and 1e7 < flops < 1e14
    assert 0 < product_time(CPU) < 10


def test_the_peak_is_that_of_the_fastest_layout_of_a_product(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([3e-3, 2e-3, 5e-3])
    monkeypatch.setattr(roofline, "best_time", lambda *_, **__: next(times))
    assert training_peak(CPU, "bf16") == (2 * 384**3 / 2e-3, "measured")


STATED = {
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H200": 989e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA L40": 181e12,
    "NVIDIA L4": 121e12,
}


@pytest.mark.parametrize(("card", "flops"), STATED.items(), ids=STATED)
def test_the_stated_peak_is_that_of_the_very_card(
    card: str, flops: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: card)
    assert training_peak(torch.device("cuda"), "bf16") == (flops, "stated")


def test_a_run_leaves_a_row_per_stretch_and_facts_of_its_peak(
    config: RunConfig, tmp_path: Path
) -> None:
    from llm_core.training.metric_log import read_rows
    from llm_core.training.status import read_status
    from llm_core.training.train import run

    train = dataclasses.replace(config.train, num_steps=6, log_every=2, validate_every=0)
    run(dataclasses.replace(config, train=train), tmp_path)
    rows = read_rows(tmp_path / "timing.jsonl")
    assert [row["step"] for row in rows] == [2, 4, 6] and all(row["num_steps"] == 2 for row in rows)
    assert all(0 < row["mfu_causal"] < row["mfu_full"] for row in rows)
    assert read_status(tmp_path / "status.json")["peak_is"] == "measured"
    assert {row["attended_tokens"] for row in rows} == {train.seq_len}


def test_a_run_with_document_masks_counts_its_documents(config: RunConfig, tmp_path: Path) -> None:
    from llm_core.training.metric_log import read_rows
    from llm_core.training.train import run

    data = dataclasses.replace(config.train.data, mask_documents=True)
    train = dataclasses.replace(config.train, num_steps=2, seq_len=64, validate_every=0, data=data)
    run(dataclasses.replace(config, train=train), tmp_path)
    assert all(30 < row["attended_tokens"] < 60 for row in read_rows(tmp_path / "timing.jsonl")), (
        "documents have 60 tokens"
    )


def test_areas_of_a_pattern_are_copied_to_a_device_once() -> None:
    # A later pattern of the same value is the same.
    first, again = (areas_on(CPU, Pattern(window=3), 8) for _ in range(2))
    assert first is again
