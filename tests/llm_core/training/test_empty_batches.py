"""A global batch in which no target counts teaches nothing: it leaves a run as it was, and the log
says so."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from llm_core.data.batch import IGNORED, Batch
from llm_core.data.loader import Loader
from llm_core.optim.build import build_optimizer
from llm_core.optim.config import GuardConfig, MuonConfig
from llm_core.optim.guard import NO_TARGETS, UPDATED, StepReport
from llm_core.parallel.apply import build_layout
from llm_core.parallel.ranks import Ranks
from llm_core.training.metric_log import read_rows
from llm_core.training.run_config import RunConfig
from llm_core.training.step import train_step
from llm_core.training.train import run
from tests.support.engine.small_optimizers import KINDS, copies, same
from tests.support.engine.small_runs import OPTIM, run_config

ONE = Ranks(0, 1, torch.device("cpu"))
EMPTY = object()


def batch(config: RunConfig, seed: int | object) -> Batch:
    shape = config.train.global_batch_sequences, config.train.seq_len + 1
    generator = torch.Generator().manual_seed(seed if isinstance(seed, int) else 0)
    tokens = torch.randint(config.model.vocab_size, shape, generator=generator)
    targets = tokens[:, 1:].clone()
    return Batch(tokens[:, :-1], targets.fill_(IGNORED) if seed is EMPTY else targets)


def after(
    config: RunConfig, seeds: list[int | object]
) -> tuple[list[StepReport], dict[str, Tensor]]:
    """Reports of steps, and all there is to save after them."""
    layout = build_layout(config.model, config.parallel, config.train, ONE)
    optimizer = build_optimizer(layout, config.optim, config.train.dtype)
    reports = [
        StepReport(*train_step(layout, optimizer, batch(config, s), 1e-2, config, ONE).tolist())
        for s in seeds
    ]
    return reports, copies(dict(layout.bare.named_parameters()) | optimizer.state_views())


@pytest.mark.parametrize(
    ("kind", "dtype"), [(kind, "fp32") for kind in KINDS] + [("adamw", "fp16"), ("adamw", "bf16")]
)
def test_a_batch_without_targets_leaves_weights_moments_counts_and_scale_as_they_were(
    kind: str, dtype: str, tmp_path: Path
) -> None:
    config = run_config(tmp_path, train={"dtype": dtype})
    guard = GuardConfig(spike_std=50.0, spike_window_steps=3)
    config = dataclasses.replace(
        config,
        optim=dataclasses.replace(OPTIM, kind=kind, guard=guard, muon=MuonConfig(dtype="fp32")),
    )
    reports, with_empty = after(config, [EMPTY, 1, EMPTY, 2, EMPTY])
    plain_reports, without = after(config, [1, 2])
    assert [int(report.reason) for report in reports] == [
        NO_TARGETS,
        UPDATED,
        NO_TARGETS,
        UPDATED,
        NO_TARGETS,
    ]
    assert reports[1::2] == [r._replace(recent_skips=0.0) for r in plain_reports]
    assert same(with_empty, without)
    assert reports[-1].row(5, 0.1, 50)["reason"] == "no_targets" and reports[-1].skips_in_a_row == 0


def test_a_run_goes_on_past_a_batch_without_targets_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Loader.batch
    monkeypatch.setattr(
        Loader,
        "batch",
        lambda self, step: (
            (made := plain(self, step))
            and (made._replace(targets_BT=made[1].fill_(IGNORED)) if step == 2 else made)
        ),
    )
    (tmp_path / "run").mkdir()
    run(run_config(tmp_path, train={"num_steps": 4, "validate_every": 0}), tmp_path / "run")
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [(row["step"], row.get("reason")) for row in rows if "val_loss" not in row] == [
        (1, None),
        (2, None),
        (3, "no_targets"),
        (4, None),
    ]
