"""Feed-forwards whose products compute their gates give what torch gives, and are refused in one
line where they cannot run.

The package's products run on GPUs only; without one its two functions are played by the formula.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from llm_core.config import ConfigError
from llm_core.kernels import swiglu_products
from llm_core.memory.config import MemoryConfig
from llm_core.memory.recompute import apply_recompute
from llm_core.model.config import ModelConfig
from llm_core.model.feed_forward import SwiGLU
from llm_core.model.operations import check_kernels
from llm_core.model.precision import autocast
from llm_core.model.transformer import Transformer
from llm_core.parallel.apply import build_layout
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.ranks import Ranks
from llm_core.training.run_config import check_run
from llm_core.training.step import token_losses
from tests.support.engine.small_runs import MODEL, TRAIN
from tests.support.engine.triton_kernels import DEVICE, ON_GPU, numbers

WIDE = dataclasses.replace(MODEL, dim=64, ffn_dim=192)


def gemm_act(
    x: Tensor,
    weight: Tensor,
    *,
    activation: str,
    preact_out: Tensor,
    postact_out: Tensor,
    tuned: bool,
) -> None:
    assert activation == "swiglu" and not tuned
    preact_out.copy_(x @ weight)
    postact_out.copy_(F.silu(preact_out[:, 0::2]) * preact_out[:, 1::2])


def gemm_dact(
    grad: Tensor,
    weight: Tensor,
    gate_up: Tensor,
    *,
    activation: str,
    dx_out: Tensor,
    postact_out: Tensor,
    tuned: bool,
) -> None:
    assert activation == "swiglu" and not tuned
    gate, up = gate_up[:, 0::2], gate_up[:, 1::2]
    d, share = grad @ weight, gate.sigmoid()
    dx_out.copy_(
        torch.stack([d * up * share * (1 + gate * (1 - share)), d * gate * share], dim=-1).flatten(
            1
        )
    )
    postact_out.copy_(gate * share * up)


@pytest.fixture(autouse=True)
def package() -> Iterator[None]:
    """The package on a GPU, a player of its part elsewhere."""
    swiglu_products._products.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        if ON_GPU:
            pytest.importorskip("quack")
        else:
            module = ModuleType("quack.gemm_interface")
            module.gemm_act, module.gemm_dact = gemm_act, gemm_dact  # type: ignore[attr-defined]
            patch.setitem(sys.modules, "quack.gemm_interface", module)
        yield
    swiglu_products._products.cache_clear()


def pair(config: ModelConfig, dtype: torch.dtype) -> tuple[SwiGLU, SwiGLU]:
    """A feed-forward of torch's operations, and its copy with products that compute gates."""
    torch.manual_seed(0)
    plain = SwiGLU(config).to(DEVICE, dtype)
    own = copy.deepcopy(plain)
    own.own_way = swiglu_products.feed_forward
    return plain, own


def results(layer: SwiGLU, x: Tensor, dtype: str) -> list[Tensor]:
    leaf = x.clone().requires_grad_()
    with autocast(DEVICE, dtype):
        y = layer(leaf)
    (y.float() * numbers(*y.shape, seed=5)).sum().backward()
    return [
        y.detach(),
        *(tensor.grad for tensor in (leaf, layer.gate_up.weight, layer.down.weight)),
    ]  # type: ignore[list-item]


def compare(config: ModelConfig, x: Tensor, dtype: str = "bf16", compiled: bool = False) -> None:
    plain, own = pair(config, torch.float32)
    if compiled:
        own.compile(fullgraph=True, dynamic=False, backend="inductor" if ON_GPU else "aot_eager")
    for found, expected in zip(results(own, x, dtype), results(plain, x, dtype), strict=True):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        far = (found.double() - expected.double()).norm() / expected.double().norm().clamp(
            min=1e-30
        )
        assert far < {"bf16": 1.2e-2, "fp16": 1.5e-3, "fp32": 1e-5}[dtype]


@pytest.mark.skipif(
    ON_GPU, reason="the package multiplies 16-bit numbers, a player of its part any"
)
@settings(deadline=None, max_examples=25)
@given(st.integers(1, 3), st.integers(1, 9), st.sampled_from([8, 24, 96, 192, 200, 1024 + 8]))
def test_values_and_gradients_are_those_of_torch(rows: int, tokens: int, ffn_dim: int) -> None:
    compare(
        dataclasses.replace(MODEL, dim=16, ffn_dim=ffn_dim),
        numbers(rows, tokens, 16, seed=tokens),
        "fp32",
    )


@pytest.mark.gpu
@pytest.mark.parametrize("ffn_dim", [192, 200, 1032])
@pytest.mark.parametrize(
    ("tokens", "dtype"), [(1, "bf16"), (7, "bf16"), (300, "bf16"), (300, "fp16")]
)
def test_in_16_bits_they_are_within_rounding(ffn_dim: int, tokens: int, dtype: str) -> None:
    compare(dataclasses.replace(WIDE, ffn_dim=ffn_dim), numbers(2, tokens, 64), dtype)


@pytest.mark.gpu
def test_a_compiled_feed_forward_stays_one_graph() -> None:
    compare(WIDE, numbers(2, 40, 64), compiled=True)


@pytest.mark.gpu
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputing_gives_the_same_gradients_and_multiplies_gate_and_up_once_if_selective(
    recompute: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    products = swiglu_products._products_on

    def counted(device: torch.device) -> Any:
        calls.append(device)
        return products(device)

    monkeypatch.setattr(swiglu_products, "_products_on", counted)
    torch.manual_seed(0)
    plain = Transformer(WIDE).to(DEVICE)
    for block in plain.blocks:
        block.ffn.own_way = swiglu_products.feed_forward
    again = copy.deepcopy(plain)
    apply_recompute(again, MemoryConfig(recompute=recompute))
    ids = torch.randint(0, MODEL.vocab_size, (2, 9), device=DEVICE)
    counts = []
    for model in (plain, again):
        calls.clear()
        with autocast(DEVICE, "bf16"):
            loss = model(ids[:, :-1], targets_BT=ids[:, 1:])[0]
        loss.backward()
        counts.append(len(calls))
    layers = WIDE.num_layers
    assert counts == [2 * layers, (2 if recompute == "selective" else 3) * layers]
    for found, expected in zip(again.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_a_layout_trains_and_validates_with_them_as_without(compiled: bool) -> None:
    if not ON_GPU:
        pytest.skip("kernels of our own are for GPUs")
    ids = torch.randint(
        0, MODEL.vocab_size, (2, 41), generator=torch.Generator().manual_seed(0)
    ).to(DEVICE)
    found = []
    for kernels in ("triton", "quack"):
        train = dataclasses.replace(TRAIN, kernels=kernels, dtype="bf16", compile=compiled)
        layout = build_layout(WIDE, ParallelConfig(device="cuda"), train, Ranks(0, 1, DEVICE))
        with autocast(DEVICE, "bf16"):
            loss = layout.model(ids[:, :-1], targets_BT=ids[:, 1:])[0]
            with torch.no_grad():
                losses_BT = token_losses(layout, ids[:, :-1], ids[:, 1:], {})
        loss.backward()
        assert losses_BT is not None
        torch.testing.assert_close(losses_BT.sum(), loss.detach(), rtol=1e-3, atol=0)
        found.append(
            (
                loss.detach(),
                torch.cat([weight.grad.flatten() for weight in layout.bare.parameters()]),
            )
        )
    assert abs(found[0][0] / found[1][0] - 1) < 1e-3
    assert (found[0][1] - found[1][1]).norm() / found[0][1].norm() < 2e-2


def test_the_package_is_refused_in_one_line_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "quack.gemm_interface", None)
    swiglu_products._products.cache_clear()
    with pytest.raises(
        ConfigError,
        match=r"^train.kernels \(quack\) need .*quack-kernels.*; pip install 'textmill\[quack\]'",
    ):
        swiglu_products.check(torch.device("cpu"), 16, 32, torch.bfloat16)


def test_a_cpu_is_refused_before_the_package_is_asked() -> None:
    with pytest.raises(
        ConfigError,
        match=r"train.kernels \(quack\) are for CUDA devices, this one is cpu; use torch",
    ):
        check_kernels("quack", torch.device("cpu"), MODEL, "bf16")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"dtype": "fp32"}, "multiply 16-bit numbers, train.dtype is fp32; set train.dtype=bf16"),
        ({"float8": True}, "train.float8 is true; set train.kernels=triton"),
        ({"ffn_tiles": 2}, "memory.ffn_tiles is 2; set train.kernels=triton"),
        ({"tp": 2}, "parallel.tp is 2; set train.kernels=triton"),
        ({"ffn_bias": True}, "model.ffn_bias is true; set train.kernels=triton"),
        ({"ffn_dim": 36}, "need multiples of 8, model.ffn_dim is 36; set train.kernels=triton"),
    ],
)
def test_what_the_package_does_not_multiply_is_refused_in_one_line(
    change: dict[str, Any], line: str
) -> None:
    parts: list[Any] = [
        MODEL,
        dataclasses.replace(TRAIN, kernels="quack", dtype="bf16"),
        ParallelConfig(device="cpu"),
        MemoryConfig(),
    ]
    for name, value in change.items():
        at = next(i for i, part in enumerate(parts) if hasattr(part, name))
        more = {"num_processes": 2, "kind": "ddp"} if name == "tp" else {}
        parts[at] = dataclasses.replace(parts[at], **{name: value}, **more)
    with pytest.raises(ConfigError) as refused:
        check_run(*parts[:3], memory=parts[3])
    assert line in str(refused.value) and "\n" not in str(refused.value)
