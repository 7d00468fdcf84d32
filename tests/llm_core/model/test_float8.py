"""Products in 8 bits: each is that of the rounded operands, and a model trained with them follows
the one without."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from llm_core.config import ConfigError
from llm_core.data.batch import Batch
from llm_core.kernels import float8
from llm_core.model.config import ModelConfig
from llm_core.model.float8 import Float8Linear
from llm_core.optim.build import build_optimizer
from llm_core.optim.config import OptimConfig
from llm_core.parallel.apply import build_layout
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.ranks import Ranks
from llm_core.training.config import TrainConfig
from llm_core.training.run_config import RunConfig
from llm_core.training.step import train_step

MODEL = ModelConfig(64, 32, 2, 4, 2, 64, 64)
CPU = Ranks(0, 1, torch.device("cpu"))


def train_config(**values: object) -> TrainConfig:
    plain = TrainConfig(
        num_steps=1, global_batch_sequences=8, micro_batch_sequences=4, seq_len=16, dtype="bf16"
    )
    return dataclasses.replace(plain, **values)  # type: ignore[arg-type]


@settings(max_examples=30)
@given(
    st.sampled_from([float8.VALUES, float8.GRADIENTS]),
    st.floats(-30, 30),
    st.integers(0, 2**32 - 1),
)
def test_rounding_keeps_the_fraction_that_the_format_has_at_any_scale(
    dtype: torch.dtype, log2: float, seed: int
) -> None:
    x = torch.randn(64, generator=torch.Generator().manual_seed(seed)) * 2.0**log2
    x8, _, scale = float8.quantize(x, dtype)
    error = (x8.float() * scale - x).abs()
    # Half a unit of the fraction, or half the smallest number of the format for what lies below its
    # normal ones.
    allowed = (
        x.abs() * torch.finfo(dtype).eps / 2
        + scale * torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    )
    assert bool((error <= allowed * 1.001).all())
    most = torch.finfo(dtype).max
    assert most / 2 * (1 - torch.finfo(dtype).eps) <= float(x8.float().abs().max()) <= most


@settings(max_examples=60)
@given(st.sampled_from([float8.VALUES, float8.GRADIENTS]), st.floats(-100, 100))
def test_a_scale_is_a_power_of_two_so_that_its_inverse_gives_exact_quotients(
    dtype: torch.dtype, log2: float
) -> None:
    x = torch.tensor([1.0, -0.3]) * 2.0**log2
    scale = float8.scale_for(x.abs().amax(), dtype)
    most = torch.finfo(dtype).max
    assert float(scale.frexp().mantissa) == 0.5
    assert float(x.abs().max() / scale) <= most < float(x.abs().max() / (scale / 2))
    assert torch.equal(x * (1 / scale), x / scale)


def test_zeros_stay_zeros_and_what_is_no_number_stays_none() -> None:
    zeros, *_ = float8.quantize(torch.zeros(4), float8.VALUES)
    assert not zeros.float().any()
    for bad in (float("nan"), float("inf")):
        x8, _, scale = float8.quantize(torch.tensor([1.0, bad]), float8.VALUES)
        assert not bool(torch.isfinite(x8.float() * scale).all())


@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_and_its_gradients_are_products_of_the_rounded_operands(bias: bool) -> None:
    torch.manual_seed(0)
    layer, x, dy = (
        Float8Linear(nn.Linear(32, 48, bias)),
        torch.randn(3, 16, 32, requires_grad=True),
        torch.randn(3, 16, 48),
    )
    y = layer(x)
    y.backward(dy.bfloat16())
    rounded = [_rounded(t, float8.VALUES) for t in (x.flatten(0, 1), layer.weight)]
    gradient = _rounded(dy.flatten(0, 1).bfloat16(), float8.GRADIENTS)
    expected = rounded[0] @ rounded[1].T + (layer.bias.bfloat16().float() if bias else 0)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float().flatten(0, 1), expected, rtol=2e-2, atol=2e-2)
    assert x.grad is not None and layer.weight.grad is not None
    torch.testing.assert_close(x.grad.flatten(0, 1), gradient @ rounded[1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer.weight.grad, gradient.T @ rounded[0], rtol=1e-5, atol=1e-4)


def _rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    x8, turned, scale = float8.quantize(x, dtype)
    assert torch.equal(turned.float(), x8.float().T)
    return x8.float() * scale


def losses(train: TrainConfig, parallel: ParallelConfig, tmp_path: object) -> list[float]:
    config = RunConfig(MODEL, OptimConfig(lr=3e-3), train, parallel, tmp_path, tmp_path)  # type: ignore[arg-type]
    layout = build_layout(config.model, parallel, train, CPU)
    optimizer = build_optimizer(layout, config.optim, train.dtype)
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 64, (8, 17), generator=generator).cumsum(1) % 64
    batch = Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
    return [float(train_step(layout, optimizer, batch, 3e-3, config, CPU)[0]) for _ in range(30)]


def test_training_in_8_bits_follows_training_in_16(tmp_path: object) -> None:
    parallel = ParallelConfig(device="cpu", num_threads=1)
    plain, rounded = (losses(train_config(float8=on), parallel, tmp_path) for on in (False, True))
    assert plain[-1] < plain[0] - 1
    assert rounded != plain
    assert max(abs(a - b) for a, b in zip(plain, rounded, strict=True)) < 0.15


@pytest.mark.parametrize(
    ("values", "parallel", "said"),
    [
        ({"dtype": "fp32"}, {}, "train.dtype=bf16"),
        ({"seq_len": 10, "micro_batch_sequences": 1}, {}, "multiples of 16"),
        ({}, {"tp": 2, "num_processes": 2, "kind": "ddp"}, "parallel.tp=1"),
        ({}, {"pp": 2, "num_processes": 2, "kind": "ddp", "pp_schedule": "zero_bubble_v"}, "1f1b"),
    ],
)
def test_what_8_bits_cannot_do_is_refused_in_one_line(
    values: dict[str, object], parallel: dict[str, object], said: str, tmp_path: object
) -> None:
    model = dataclasses.replace(MODEL, num_layers=4)
    with pytest.raises(ConfigError, match=said):
        RunConfig(
            model,
            OptimConfig(lr=1e-3),
            train_config(
                float8=True, micro_batch_sequences=values.pop("micro_batch_sequences", 1), **values
            ),
            ParallelConfig(device="cpu", **parallel),  # type: ignore[arg-type]
            tmp_path,  # type: ignore[arg-type]
            tmp_path,  # type: ignore[arg-type]
        )
