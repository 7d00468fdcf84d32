"""The residual stream has one dtype from the embedding to the last norm, whoever casts the
weights."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from functorch.compile import aot_module, make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor

from llm_core.model.config import ModelConfig
from llm_core.model.norm import LayerNorm, RMSNorm
from llm_core.model.precision import autocast, stream_dtype
from llm_core.model.transformer import Transformer
from llm_core.parallel.apply import build_layout
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.ranks import Ranks
from tests.support.engine.small_runs import MODEL, TRAIN
from tests.support.engine.uneven_model import make_model

CPU = torch.device("cpu")
GPT2: dict[str, Any] = {"norm": "layer", "ffn": "gelu", "positions": "learned", "num_kv_heads": 4}
GPT2 |= dict.fromkeys(("qkv_bias", "out_bias", "ffn_bias"), True)
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"qk_norm": True, "own_head_dim": 6},
    "gpt2": GPT2,
}


def family(name: str) -> ModelConfig:
    return dataclasses.replace(MODEL, **FAMILIES[name])


def ids() -> Tensor:
    return torch.randint(0, MODEL.vocab_size, (2, 16), generator=torch.Generator().manual_seed(1))


def losses(model: Transformer, dtype: str) -> Tensor:
    model.stream_dtype = stream_dtype(dtype)
    with torch.no_grad(), autocast(CPU, dtype):
        return model(ids(), targets_BT=ids().roll(-1, 1))[1]


@pytest.mark.parametrize("name", FAMILIES)
def test_weights_that_fsdp_casts_give_the_losses_that_autocast_gives_to_the_bit(name: str) -> None:
    model = make_model(family(name))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.rand_like(weight))  # norms whose weights bfloat16 has not
    cast = copy.deepcopy(model).bfloat16()
    assert torch.equal(losses(model, "bf16"), losses(cast, "bf16"))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float32)],
)
def test_every_block_hands_on_the_dtype_of_the_stream(
    name: str, dtype: Any, expected: torch.dtype
) -> None:
    train = dataclasses.replace(TRAIN, dtype=dtype)
    model = build_layout(family(name), ParallelConfig(device="cpu"), train, Ranks(0, 1, CPU)).bare
    seen: list[torch.dtype] = []
    for block in model.blocks:
        block.register_forward_hook(
            lambda _block, inputs, out: seen.extend((inputs[0].dtype, out.dtype))
        )
    with autocast(CPU, dtype):
        hidden_BTD = model.hidden(ids())
    assert {*seen, hidden_BTD.dtype} == {expected}


def test_a_stream_beyond_the_range_of_float16_is_trained_in_float16() -> None:
    model = make_model(MODEL)
    with torch.no_grad():
        model.embedding.weight[:, 3] = 1e5
    # Tied, so that logits of one product would overflow too.
    model.head = torch.nn.Linear(MODEL.dim, MODEL.vocab_size, bias=False)
    found = losses(model, "fp16")
    assert bool(torch.isfinite(found).all())


@pytest.mark.parametrize("name", FAMILIES)
def test_a_block_as_the_compiler_cuts_it_keeps_nothing_wide_in_float32(name: str) -> None:
    block = make_model(family(name)).blocks[0]
    x_BTD = torch.randn(2, 16, MODEL.dim, dtype=torch.bfloat16, requires_grad=True)
    kept: list[Any] = []

    def see(graph: Any, _inputs: Any) -> Any:
        if not kept:
            kept.extend(graph.graph.output_node().args[0])
        return make_boxed_func(graph.forward)

    with autocast(CPU, "bf16"):
        aot_module(block, see, see, min_cut_rematerialization_partition)(
            x_BTD, None
        ).float().sum().backward()
    wide = [node.meta["val"].dtype for node in kept if node.meta["val"].numel() >= x_BTD.numel()]
    assert len(wide) > 5 and set(wide) == {torch.bfloat16}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("norm", [RMSNorm, LayerNorm])
def test_norms_give_back_the_dtype_they_are_given_under_autocast_too(
    norm: Any, dtype: torch.dtype, device: str
) -> None:
    layer = norm(8, 1e-5).to(device)
    x_BTD = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    with torch.autocast(device, torch.bfloat16):
        found = layer(x_BTD)
    assert found.dtype == dtype
    torch.testing.assert_close(
        found.float(),
        layer(x_BTD.float()),
        rtol=torch.finfo(dtype).eps,
        atol=1e-2 * torch.finfo(dtype).eps,
    )
