"""Noise on embeddings is a function of counters: bounded, even, and the same wherever it is
drawn."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from llm_core.config import ConfigError
from llm_core.huggingface.export import export_model
from llm_core.model.init import init_weights
from llm_core.model.noise import mixed, token_keys, uniform
from llm_core.model.transformer import Transformer
from llm_core.training.metric_log import read_rows
from llm_core.training.train import run_in
from tests.support.engine.small_runs import (
    MODEL,
    TRAIN,
    result_bytes,
    run_config,
    stop_and_resume,
)


def test_counters_are_mixed_as_published() -> None:
    # The first numbers of splitmix64 from seed 0.
    found = mixed(torch.tensor([0, 0x9E3779B97F4A7C15 - (1 << 64)]))
    assert [int(x) % (1 << 64) for x in found] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


def test_noise_is_uniform_and_differs_by_seed_row_column_and_channel() -> None:
    rows, columns = torch.arange(64), torch.arange(64)
    found = uniform(token_keys(7, rows, columns), 32)
    assert found.min() >= -1 and found.max() < 1
    assert abs(float(found.mean())) < 0.01
    assert float(found.var()) == pytest.approx(1 / 3, rel=0.01)
    assert len(found.unique()) > 0.98 * found.numel()
    other = uniform(token_keys(8, rows, columns), 32)
    correlation = (found * other).mean() / found.var()
    assert abs(float(correlation)) < 0.02
    for dim in range(3):
        assert abs(float((found * found.roll(1, dim)).mean())) < 0.01


def test_a_token_has_its_noise_whichever_rows_and_columns_are_here() -> None:
    whole = uniform(token_keys(7, torch.arange(8), torch.arange(10)), 4)
    part = uniform(token_keys(7, torch.tensor([5, 2]), torch.tensor([9, 3])), 4)
    assert torch.equal(part, whole[[5, 2]][:, [9, 3]])


def test_training_meets_noise_of_the_published_size_and_validation_none(tmp_path: Path) -> None:
    init = Transformer(MODEL)
    init_weights(init, 3)
    export_model(MODEL, init.state_dict(), tmp_path / "base")
    train = {"init_from": tmp_path / "base", "num_steps": 2, "validate_every": 1}
    rows = {}
    for alpha in (0.0, 40.0):
        config = run_config(tmp_path / str(alpha), train={**train, "neftune_alpha": alpha})
        # So small a rate that no weight moves.
        config = dataclasses.replace(config, optim=dataclasses.replace(config.optim, lr=1e-30))
        run_in(tmp_path / str(alpha) / "work", config)
        rows[alpha] = read_rows(tmp_path / str(alpha) / "work" / "metrics.jsonl")
    losses, values = (
        {a: [r[name] for r in some if name in r] for a, some in rows.items()}
        for name in ("train_loss", "val_loss")
    )
    assert values[0.0] == values[40.0]
    assert all(a != b for a, b in zip(losses[0.0], losses[40.0], strict=True))
    seq_len, dim = TRAIN.seq_len, MODEL.dim
    scale = dataclasses.replace(TRAIN, neftune_alpha=5.0).noise_scale(dim)
    assert scale == 5 / math.sqrt(seq_len * dim)
    ids_BT, keys_BT = torch.ones(2, 8, dtype=torch.int64), torch.arange(16).view(2, 8)
    init.noise_scale = scale
    seen = []
    init.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    init(ids_BT, noise_BT=keys_BT)
    init(ids_BT)
    change = seen[0] - seen[1]
    torch.testing.assert_close(change, scale * uniform(keys_BT, dim), atol=1e-7, rtol=0)


def test_a_stopped_run_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    config = run_config(tmp_path, train={"neftune_alpha": 5.0})
    run_in(tmp_path / "whole", config)
    stop_and_resume(config, tmp_path / "stopped", 6)
    assert result_bytes(tmp_path / "stopped") == result_bytes(tmp_path / "whole")


def test_negative_noise_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"neftune_alpha \(-1"):
        dataclasses.replace(TRAIN, neftune_alpha=-1.0)
