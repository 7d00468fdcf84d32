"""Kernels of our own are asked for by name: refused in one line where they cannot run, and else a
model trains as one without."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import pytest
import torch

from llm_core.config import ConfigError
from llm_core.memory.config import MemoryConfig
from llm_core.model import operations as chosen
from llm_core.model.operations import check_kernels
from llm_core.model.rope import rope_tables
from llm_core.model.transformer import Block
from llm_core.parallel import apply
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.ranks import Ranks
from llm_core.training.run_config import check_run
from tests.support.engine.small_runs import MODEL, TRAIN
from tests.support.engine.triton_kernels import DEVICE, kernels_of, numbers


def test_kernels_are_refused_where_they_cannot_run_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(
        ConfigError,
        match=r"train.kernels \(triton\) are for CUDA devices, this one is cpu; use torch",
    ):
        check_kernels("triton", torch.device("cpu"), MODEL, "bf16")
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ConfigError, match="need the package triton"):
        check_kernels("triton", torch.device("cuda"), MODEL, "bf16")
    with monkeypatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        with pytest.raises(ConfigError, match="need the package triton"):
            check_kernels("triton", torch.device("cpu"), MODEL, "bf16")
        with pytest.raises(ConfigError, match=r"train.kernels \(quack\) are for CUDA devices"):
            check_kernels("quack", torch.device("cpu"), MODEL, "bf16")
    # Before anything is built of them, 8-bit layers too.
    train = dataclasses.replace(TRAIN, kernels="triton", float8=True, dtype="bf16")
    with pytest.raises(ConfigError, match="are for CUDA devices"):
        apply.build_layout(
            MODEL, ParallelConfig(device="cpu"), train, Ranks(0, 1, torch.device("cpu"))
        )


def test_kernels_are_refused_for_models_without_gates() -> None:
    gpt2 = dataclasses.replace(
        MODEL,
        norm="layer",
        ffn="gelu",
        positions="learned",
        num_kv_heads=4,
        qkv_bias=True,
        out_bias=True,
        ffn_bias=True,
    )
    with pytest.raises(
        ConfigError,
        match=(
            r"train.kernels \(triton\) compute SwiGLU, model.ffn is gelu; set train.kernels=torch"
        ),
    ):
        check_run(gpt2, dataclasses.replace(TRAIN, kernels="triton"), ParallelConfig())


@pytest.mark.gpu
@pytest.mark.parametrize("savings", [{}, {"ffn_tiles": 2}, {"recompute": "selective"}])
def test_a_model_with_kernels_trains_as_one_without(
    savings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = (
        kernels_of("swiglu_triton").gated,
        kernels_of("norm_triton").add_then_norm,
        kernels_of("rope_triton").split_heads,
    )
    monkeypatch.setattr(chosen, "triton_kernels", lambda _own_keys: own)
    monkeypatch.setattr(apply, "check_kernels", lambda *_: None)
    ids = torch.randint(0, MODEL.vocab_size, (2, 9), generator=torch.Generator().manual_seed(0)).to(
        DEVICE
    )
    found = []
    for name in ("torch", "triton"):
        train = dataclasses.replace(TRAIN, kernels=name)
        parallel = ParallelConfig(device=DEVICE.type)  # type: ignore[arg-type]
        model = apply.build_layout(
            MODEL, parallel, train, Ranks(0, 1, DEVICE), MemoryConfig(**savings)
        ).bare
        assert (
            (model.blocks[0].add_norm is own[1])
            == (model.blocks[1].attention.own_split is own[2])
            == (name == "triton")
        )
        loss = model(ids[:, :-1], targets_BT=ids[:, 1:])[0]
        loss.backward()
        found.append((loss.detach(), *(weight.grad for weight in model.parameters())))
    for plain, own_ in zip(*found, strict=True):
        torch.testing.assert_close(own_, plain)


def test_schedules_that_take_backward_apart_are_refused_with_kernels() -> None:
    parallel = ParallelConfig(
        num_processes=2, kind="ddp", pp=2, pp_schedule="zero_bubble", device="cpu"
    )
    train = dataclasses.replace(TRAIN, kernels="triton", micro_batch_sequences=1)
    with pytest.raises(
        ConfigError,
        match=r"train.kernels \(triton\) take a sum .* apart; use the schedule 1f1b or interleaved",
    ):
        check_run(dataclasses.replace(MODEL, num_layers=4), train, parallel)


@pytest.mark.gpu
def test_a_compiled_block_keeps_its_kernels_in_one_graph() -> None:
    own = kernels_of("swiglu_triton").gated, kernels_of("norm_triton").add_then_norm
    turned = kernels_of("rope_triton").split_heads
    blocks = [Block(MODEL, 0).to(DEVICE) for _ in range(2)]
    blocks[1].load_state_dict(blocks[0].state_dict())
    (blocks[1].ffn.gated, blocks[1].add_norm), blocks[1].attention.own_split = own, turned
    blocks[1].compile(
        fullgraph=True, dynamic=False, backend="inductor" if DEVICE.type == "cuda" else "aot_eager"
    )
    rope = rope_tables(torch.arange(5, device=DEVICE)[None], MODEL.head_dim, 1e4, torch.float32)
    inputs = [numbers(2, 5, MODEL.dim).requires_grad_() for _ in blocks]
    for block, x in zip(blocks, inputs, strict=True):
        block(x, rope).square().sum().backward()
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad)
    for plain, kernels in zip(*(block.parameters() for block in blocks), strict=True):
        torch.testing.assert_close(kernels.grad, plain.grad)
