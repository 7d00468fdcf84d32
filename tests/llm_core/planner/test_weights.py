"""Bytes by arithmetic alone are those that a process of each layout really holds."""

from __future__ import annotations

import dataclasses
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.compose import compose
from llm_core.model.adapter import AdaptedModelConfig, AdapterConfig, adapted, is_factor
from llm_core.model.config import ComputeConfig, ModelConfig
from llm_core.optim.build import build_optimizer
from llm_core.optim.config import GroupRule, OptimConfig
from llm_core.optim.groups import is_trained
from llm_core.parallel.apply import build_layout
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.frozen import coded_weights
from llm_core.parallel.places import local, whole_shapes
from llm_core.planner.step import plan_memory
from llm_core.planner.weights import (
    StateBytes,
    block_shapes,
    every_process,
    held_weights,
    state_bytes,
    weights_outside,
)
from tests.support.distributed.alone import as_process
from tests.support.distributed.cases import GRID_LAYOUTS, LAYOUTS, layout, layout_name
from tests.support.distributed.problem import Problem


def held_bytes(
    model: ModelConfig,
    optim: OptimConfig,
    parallel: ParallelConfig,
    rank: int,
    without_memory: bool = False,
    ema: float = 0.0,
) -> StateBytes:
    """Of the weights, their gradients and the optimizer's state, built as training builds them.

    without_memory: all tensors stay on the meta device, which has shapes alone.
    """
    with as_process(rank, parallel) as ranks, pytest.MonkeyPatch.context() as patch:
        if without_memory:
            patch.setattr(torch.nn.Module, "to_empty", lambda module, device: module)

        def trains(name: str) -> bool:
            is_beside = isinstance(model, AdaptedModelConfig)
            return is_trained(name, optim) and (is_factor(name) or not is_beside)

        built = build_layout(model, parallel, ComputeConfig(), ranks, fill=False, trains=trains)
        assert without_memory == all(local(w.data).is_meta for w in built.bare.parameters())
        optimizer = build_optimizer(built, optim, ema=ema)
        weights, trained = (
            sum(local(weight.data).nbytes for weight in some)
            for some in (
                built.bare.parameters(),
                [weight for weight in built.bare.parameters() if weight.requires_grad],
            )
        )
        coded = [part for _, codes in coded_weights(built.bare) for part in codes.parts]
        weights += sum(part.nbytes for part in coded)
        state = sum(state.piece.nbytes for method in optimizer.methods for state in method.states())
    return StateBytes(weights, trained, state)


@pytest.mark.parametrize("parallel", LAYOUTS, ids=layout_name)
def test_every_process_of_a_layout_holds_the_predicted_bytes(parallel: ParallelConfig) -> None:
    model = Problem(layers=8).model()
    for optim in (OptimConfig(lr=1e-3), OptimConfig(lr=1e-3, kind="adafactor")):
        places = list(every_process(parallel))
        assert len(places) == parallel.num_processes
        for rank in {0, 1 % len(places), len(places) // 2, len(places) - 1}:
            assert state_bytes(model, optim, parallel, places[rank]) == held_bytes(
                model, optim, parallel, rank
            )


@pytest.mark.parametrize("parallel", GRID_LAYOUTS, ids=layout_name)
def test_every_process_of_a_grid_holds_the_predicted_bytes(parallel: ParallelConfig) -> None:
    optim = OptimConfig(lr=1e-3)
    for family in ("llama", "gpt2"):
        model = Problem(family=family, tied=family == "llama").model()
        for rank, place in enumerate(every_process(parallel)):
            assert state_bytes(model, optim, parallel, place) == held_bytes(
                model, optim, parallel, rank
            )


@pytest.mark.parametrize("family", ["glm4_moe", "qwen2_moe"])
@pytest.mark.parametrize(
    "parallel",
    [
        layout(3, "fsdp"),
        layout(4, "ddp", tp=2),
        layout(4, "zero1", pp=2),
        layout(4, "hsdp", dp_shard=2, ep=2),
        layout(4, "fsdp", tp=2, ep=2),
    ],
    ids=layout_name,
)
def test_experts_are_counted_where_they_are_held(parallel: ParallelConfig, family: str) -> None:
    model, optim = Problem(layers=4, family=family).model(), OptimConfig(lr=1e-3)
    for rank, place in enumerate(every_process(parallel)):
        assert state_bytes(model, optim, parallel, place) == held_bytes(
            model, optim, parallel, rank
        )


@pytest.mark.parametrize("kind", ["adamw", "lion", "adafactor", "muon"])
@pytest.mark.parametrize(
    "parallel", [layout(3, "zero1"), layout(3, "fsdp"), layout(4, "ddp", tp=2)]
)
def test_each_optimizer_keeps_the_predicted_state(kind: str, parallel: ParallelConfig) -> None:
    model = Problem(tied=False, family="qwen3").model()
    optim = OptimConfig(lr=1e-3, kind=kind)  # type: ignore[arg-type]
    for rank, place in enumerate(every_process(parallel)):
        assert state_bytes(model, optim, parallel, place) == held_bytes(
            model, optim, parallel, rank
        )
        with_average = state_bytes(model, optim, parallel, place, averaged=True)
        assert with_average == held_bytes(model, optim, parallel, rank, ema=0.9)


@pytest.mark.parametrize(
    "parallel",
    [
        layout(1, "none"),
        layout(3, "zero1"),
        layout(3, "fsdp"),
        layout(4, "ddp", tp=2),
        layout(4, "zero1", pp=2),
    ],
    ids=layout_name,
)
def test_frozen_weights_have_neither_gradients_nor_state(parallel: ParallelConfig) -> None:
    model = Problem(layers=4).model()
    rules = (
        GroupRule(r"^embedding|blocks\.1\.ffn", lr_factor=0),
        GroupRule("qkv", lr_factor=2),
        GroupRule("norm", lr_factor=0),
    )
    optim = OptimConfig(lr=1e-3, groups=rules)
    for rank, place in enumerate(every_process(parallel)):
        found = state_bytes(model, optim, parallel, place)
        assert found == held_bytes(model, optim, parallel, rank)
        assert found.gradients < found.weights


@pytest.mark.parametrize("base_dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "parallel",
    [
        layout(1, "none"),
        layout(3, "fsdp"),
        layout(4, "ddp", tp=2),
        layout(4, "zero1", pp=2),
    ],
    ids=layout_name,
)
def test_beside_an_adapter_only_factors_have_gradients_and_state(
    parallel: ParallelConfig, base_dtype: Literal["fp32", "bf16"]
) -> None:
    adapter = AdapterConfig("lora", rank=3, base_dtype=base_dtype)
    model, optim = adapted(Problem(layers=4).model(), adapter), OptimConfig(lr=1e-3)
    for rank, place in enumerate(every_process(parallel)):
        found = state_bytes(model, optim, parallel, place)
        assert found == held_bytes(model, optim, parallel, rank)
        assert 2 * found.gradients == found.optimizer


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize(
    "parallel",
    [layout(1, "none"), layout(4, "ddp", tp=2), layout(4, "ddp", pp=2)],
    ids=layout_name,
)
def test_a_base_in_codes_takes_the_predicted_bytes(parallel: ParallelConfig, family: str) -> None:
    problem = Problem(layers=4, adapter="lora", base_codes="nf4", family=family)
    model, optim = adapted(problem.model(), problem.adapter_config), OptimConfig(lr=1e-3)
    for rank, place in enumerate(every_process(parallel)):
        found = state_bytes(model, optim, parallel, place)
        assert found == held_bytes(model, optim, parallel, rank)
        assert 2 * found.gradients == found.optimizer


def test_an_8b_model_with_a_base_in_codes_is_fine_tuned_in_8_gib() -> None:
    words = (
        "model=llama_8b model.vocab_size=32000 adapter=qlora train.dtype=bf16 hardware=h200"
        " train.seq_len=2048 train.micro_batch_sequences=1 train.global_batch_sequences=16"
        " memory.recompute=full memory.loss_chunk_tokens=256"
    )
    config = compose(words.split())
    predicted = plan_memory(config.planned, config.hardware)
    assert predicted.weights < 4.4e9
    assert predicted.total <= 8 * (1 << 30)


def test_an_adapter_of_a_large_model_keeps_a_fiftieth_of_the_optimizer_state() -> None:
    model, optim = compose(["model=llama_8b"]).model, OptimConfig(lr=1e-3)
    model = dataclasses.replace(model, vocab_size=128256)
    whole, small = (
        state_bytes(one, optim, layout(1, "none")).optimizer
        for one in (model, adapted(model, AdapterConfig("lora")))
    )
    assert 0 < small <= 0.02 * whole


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma", "gpt2", "gpt_neox"])
@pytest.mark.parametrize("tied", [True, False])
def test_shapes_are_those_of_the_model(family: str, tied: bool) -> None:
    model = Problem(family=family, tied=tied).model()
    real = {name: tuple(shape) for name, shape in whole_shapes(model).items()}
    if tied:
        del real["head.weight"]
    counted = {
        f"blocks.{n}.{name}" for n in range(model.num_layers) for name in block_shapes(model)
    }
    assert counted | set(weights_outside(model)) == set(real)
    for name, shape in (block_shapes(model) | weights_outside(model)).items():
        assert shape == real.get(name, real.get(f"blocks.0.{name}"))
    single = held_weights(model, ParallelConfig())
    assert sum(each.numel for each in single) == model.num_parameters()


@settings(max_examples=60)
@given(
    st.sampled_from([1, 2, 4]), st.integers(1, 3), st.sampled_from([1, 2, 4]), st.integers(20, 70)
)
def test_processes_hold_each_weight_once_together(tp: int, dp: int, pp: int, vocab: int) -> None:
    model = dataclasses.replace(Problem(layers=5, tied=False).model(), vocab_size=vocab)
    parallel = layout(tp * dp * pp, "fsdp", tp=tp, pp=pp, pp_schedule="gpipe")
    total = sum(
        state_bytes(model, OptimConfig(lr=1e-3), parallel, place).weights
        for place in every_process(parallel)
    )
    norms = (2 * model.num_layers + 1) * model.dim
    assert total == 4 * (model.num_parameters() + (tp - 1) * norms)


LARGE = ModelConfig(128256, 4096, 32, 32, 8, 14336, 8192, tied_embeddings=False)
OF_512 = [
    layout(512, "fsdp"),
    layout(512, "zero2", tp=4),
    layout(512, "hsdp", dp_shard=8, tp=8),
    layout(512, "fsdp", cp=4, tp=8),
    layout(512, "fsdp", tp=4, pp=4),
    layout(512, "ddp", pp=8, cp=2, tp=8),
    layout(512, "zero1", pp=8, tp=8, pp_schedule="interleaved"),
    layout(512, "zero1", pp=4, pp_schedule="zero_bubble_v"),
]


@pytest.mark.parametrize("parallel", OF_512, ids=layout_name)
def test_processes_of_512_hold_the_predicted_bytes_of_a_large_model(
    parallel: ParallelConfig,
) -> None:
    """One of each stage of the pipeline, and the last of all."""
    optim, places = OptimConfig(lr=1e-3), list(every_process(parallel))
    of_a_stage = 512 // parallel.pp
    for rank in {*(stage * of_a_stage + 7 * stage for stage in range(parallel.pp)), 511}:
        found = held_bytes(LARGE, optim, parallel, rank, without_memory=True)
        assert state_bytes(LARGE, optim, parallel, places[rank]) == found


@pytest.mark.parametrize(
    "parallel",
    [
        layout(512, "fsdp"),
        layout(512, "zero1"),
        layout(512, "zero2"),
        layout(512, "fsdp", tp=4),
        layout(512, "hsdp", dp_shard=8, tp=2),
    ],
    ids=layout_name,
)
@pytest.mark.parametrize("rank", [0, 300])
def test_gradients_of_512_processes_are_cut_as_predicted(
    rank: int, parallel: ParallelConfig
) -> None:
    """After a backward pass, whose collectives exchange nothing."""
    model, ids = Problem(vocab=700).model(), torch.zeros(1, 16, dtype=torch.int64)
    with as_process(rank, parallel) as ranks:
        built = build_layout(model, parallel, ComputeConfig(), ranks)
        nats, _ = built.model(ids, targets_BT=ids)
        nats.backward()
        gradients = [weight.grad for weight in built.bare.parameters()]
    held = sum(local(each).nbytes for each in gradients if each is not None)
    place = list(every_process(parallel))[rank]
    assert held == state_bytes(model, OptimConfig(lr=1e-3), parallel, place).gradients > 0


def test_a_process_of_512_holds_its_part_of_a_large_model() -> None:
    model = ModelConfig(128256, 8192, 80, 64, 8, 28672, 8192, tied_embeddings=False)
    parallel = layout(512, "fsdp", tp=8, pp=4)
    found = [
        state_bytes(model, OptimConfig(lr=1e-3), parallel, at) for at in every_process(parallel)
    ]
    assert sum(state.total for state in found) == 16 * (
        model.num_parameters() + 7 * (2 * 80 + 1) * model.dim
    )
    # The first and the last stage have the embedding and the head besides.
    assert max(state.total for state in found) < 16 * model.num_parameters() / 512 * 1.2
