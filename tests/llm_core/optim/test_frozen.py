"""A frozen weight has no gradient, no state and no traffic, and keeps its bits."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from llm_core.checkpoint.state import collect_state
from llm_core.config import ConfigError
from llm_core.huggingface.export import load_model
from llm_core.model.config import ComputeConfig
from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer
from llm_core.optim.build import build_optimizer
from llm_core.optim.config import GroupRule, OptimConfig
from llm_core.optim.groups import is_trained
from llm_core.parallel import apply
from llm_core.parallel.apply import build_layout
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.layout import Layout
from llm_core.parallel.ranks import Ranks
from llm_core.training.run_config import RunConfig
from llm_core.training.train import run_in
from tests.support.distributed.alone import as_process
from tests.support.engine.small_runs import MODEL, result_bytes, run_config, stop_and_resume

UNTIED = dataclasses.replace(MODEL, tied_embeddings=False)
RULES = (GroupRule(r"^embedding|\.ffn\.", lr_factor=0), GroupRule("norm", weight_decay=0.1))


def optim_of(*rules: GroupRule, **values: object) -> OptimConfig:
    return OptimConfig(lr=3e-3, groups=rules, **values)  # type: ignore[arg-type]


SOME = optim_of(*RULES)


def frozen_run(folder: Path) -> RunConfig:
    config = run_config(folder)
    return dataclasses.replace(config, model=UNTIED, optim=SOME)


def built(
    optim: OptimConfig, parallel: ParallelConfig | None = None, ranks: Ranks | None = None
) -> Layout:
    ranks = ranks or Ranks(0, 1, torch.device("cpu"))
    trains = partial(is_trained, config=optim)
    parallel = parallel or ParallelConfig()
    return build_layout(UNTIED, parallel, ComputeConfig(), ranks, trains=trains)


@pytest.mark.parametrize("state_in", ["device", "host"])
def test_a_frozen_weight_has_no_gradient_and_no_state(state_in: str) -> None:
    optim = optim_of(*RULES, state_in=state_in)
    layout = built(optim)
    optimizer = build_optimizer(layout, optim)
    layout.model(torch.ones(1, 4, dtype=torch.int64)).sum().backward()
    trained = {name for name in dict(layout.bare.named_parameters()) if is_trained(name, optim)}
    weights = dict(layout.bare.named_parameters())
    assert 0 < len(trained) < len(weights)
    assert {name for name, weight in weights.items() if weight.grad is not None} == trained
    assert {state.weight.name for state in optimizer.states()} == trained
    numbers = sum(weights[name].numel() for name in trained)
    assert sum(state.piece.nbytes for state in optimizer.states()) == 2 * 4 * numbers
    saved = {name for name in collect_state(layout, optimizer) if name.startswith("model.")}
    assert saved == {f"model.{name}" for name in trained}


def test_a_run_leaves_frozen_weights_as_they_were_and_resumes_bit_for_bit(
    tmp_path: Path,
) -> None:
    config = frozen_run(tmp_path)
    run_in(tmp_path / "whole", config)
    before = Transformer(UNTIED)
    init_weights(before, config.train.seed)
    after = dict(load_model(tmp_path / "whole" / "model").named_parameters())
    for name, weight in before.named_parameters():
        assert torch.equal(weight, after[name]) != is_trained(name, config.optim)
    stopped = stop_and_resume(config, tmp_path / "stopped", 6)
    assert result_bytes(stopped) == result_bytes(tmp_path / "whole")


def numel(model: nn.Module) -> int:
    return sum(w.numel() for name, w in model.named_parameters() if is_trained(name, SOME))


def test_ddp_sends_the_gradients_of_trained_weights_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    # No annotations, which DDP would want to be its own.
    def see(_, bucket):  # type: ignore[no-untyped-def]
        sent.append(bucket.buffer().numel())
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    monkeypatch.setattr(apply, "_sum_gradients", see)
    parallel = ParallelConfig("ddp", 2, device="cpu")
    with as_process(0, parallel) as ranks:
        layout = built(SOME, parallel, ranks)
        layout.model(torch.ones(1, 4, dtype=torch.int64)).sum().backward()
    assert sum(sent) == numel(layout.bare)


def test_fsdp_sends_the_gradients_of_trained_weights_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    # Renamed in torch 2.13.
    name = "reduce_scatter_" + ("single" if hasattr(dist, "reduce_scatter_single") else "tensor")
    scatter = getattr(dist, name)

    def see(**named: Any) -> object:
        sent.append(max(x.numel() for x in named.values() if isinstance(x, Tensor)))
        return scatter(**named)

    monkeypatch.setattr(dist, name, see)
    parallel = ParallelConfig("fsdp", 2, device="cpu")
    with as_process(0, parallel) as ranks:
        layout = built(SOME, parallel, ranks)
        layout.model(torch.ones(1, 4, dtype=torch.int64)).sum().backward()
    # Rows are filled up to equal numbers; here only the ids, of which there are 51, need that.
    assert sum(sent) == numel(layout.bare) + UNTIED.dim


def test_a_run_that_trains_nothing_is_refused() -> None:
    optim = optim_of(GroupRule("weight", lr_factor=0))
    with pytest.raises(ConfigError, match=r"optim.groups freeze every weight .* nothing to train"):
        build_optimizer(built(optim), optim)


def test_a_pipeline_whose_first_stage_is_frozen_is_refused() -> None:
    optim = optim_of(GroupRule(r"^embedding|blocks\.0\.", lr_factor=0))
    parallel = ParallelConfig("ddp", 2, pp=2, device="cpu")
    with (
        as_process(1, parallel) as ranks,
        pytest.raises(ConfigError, match=r"first of 2 stages .* train some weight of its layers"),
    ):
        built(optim, parallel, ranks)
