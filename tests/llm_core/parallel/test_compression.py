"""Codecs keep what they promise, and settings that do not go with compressed sums are refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from llm_core.config import ConfigError, key_config
from llm_core.optim.config import OptimConfig
from llm_core.parallel.compression.blocks import BLOCK, shrinks
from llm_core.parallel.compression.codecs import FP8, INT8, SIGNS, Codec
from llm_core.parallel.compression.reduction import orthonormal
from llm_core.parallel.config import ParallelConfig
from llm_core.training.combinations.settings import check_compression
from tasks.training.config import TrainStageConfig
from tests.support.engine.small_runs import MODEL, OPTIM, TRAIN

CODECS = (SIGNS, INT8, FP8)
DDP = ParallelConfig("ddp", 2, device="cpu")


def blocks(seed: int, sparse: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x_NB = torch.randn(3, BLOCK, generator=generator, dtype=torch.float64)
    x_NB *= torch.rand(3, BLOCK, generator=generator) < (0.01 if sparse else 1.0)
    x_NB[0] = 0
    return x_NB


@pytest.mark.parametrize("codec", CODECS)
@given(seed=st.integers(0, 1000), sparse=st.booleans())
def test_what_a_codec_loses_is_less_than_what_there_is(
    codec: Codec, seed: int, sparse: bool
) -> None:
    x_NB = blocks(seed, sparse)
    coded = codec.encode(x_NB)
    assert coded.shape == (3, codec.block_bytes) and coded.dtype == torch.uint8
    lost_N = (x_NB - codec.decode(coded, x_NB.dtype)).norm(dim=1)
    assert (lost_N <= x_NB.norm(dim=1) * (1 - 1e-9) + 1e-300).all(), lost_N


@pytest.mark.parametrize(("codec", "most"), [(INT8, 0.5 / 127), (FP8, 2**-4)])
def test_eight_bits_round_to_the_nearest_step(codec: Codec, most: float) -> None:
    x_NB = blocks(1, sparse=False)
    lost = (x_NB - codec.decode(codec.encode(x_NB), x_NB.dtype)).abs().amax(dim=1)
    assert (lost <= most * x_NB.abs().amax(dim=1) * (1 + 1e-6)).all()


def test_a_basis_is_orthonormal_and_small_matrices_are_left_whole() -> None:
    columns = torch.randn(20, 4, dtype=torch.float64)
    basis = orthonormal(columns)
    assert (basis.T @ basis - torch.eye(4)).abs().max() < 1e-12
    assert (basis @ (basis.T @ columns) - columns).abs().max() < 1e-12
    assert not shrinks(torch.Size([8, 8]), 4) and not shrinks(torch.Size([4096]), 4)
    assert shrinks(torch.Size([4096, 4096]), 4)


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "fsdp"},
        {"kind": "zero1"},
        {"kind": "none", "num_processes": 1},
        {"kind": "auto"},
        {"num_processes": 4, "pp": 2},
        {"num_processes": 4, "tp": 2},
        {"num_processes": 4, "cp": 2},
    ],
)
def test_a_layout_that_compression_does_not_fit_is_refused_by_name(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"compress \(int8\).*set parallel=ddp"):
        dataclasses.replace(DDP, compress="int8", **values)


@pytest.mark.parametrize(
    ("optim", "dtype", "warmup", "message"),
    [
        ({}, "fp16", 60, r"compress \(onebit\).*set train.dtype=bf16"),
        ({"kind": "lion"}, "fp32", 60, r"optim.kind is lion.*set optim=adamw"),
        ({"state_dtype": "bf16"}, "fp32", 60, "state_dtype bf16"),
        ({"state_in": "host"}, "fp32", 60, "set optim.state_in=device"),
        ({}, "fp32", 59, r"compress_warmup_steps \(59\) must be at least 60"),
    ],
)
def test_settings_that_do_not_go_with_one_bit_are_refused(
    optim: dict[str, Any], dtype: Any, warmup: int, message: str
) -> None:
    parallel = dataclasses.replace(DDP, compress="onebit", compress_warmup_steps=warmup)
    config = OptimConfig(lr=1e-3, beta2=0.95, **optim)
    with pytest.raises(ConfigError, match=message):
        check_compression(config, dataclasses.replace(TRAIN, dtype=dtype), parallel)


def test_compression_is_in_the_key_of_a_run_and_its_absence_is_not() -> None:
    def key(parallel: ParallelConfig) -> dict[str, Any]:
        return key_config(TrainStageConfig(MODEL, OPTIM, TRAIN, parallel))

    assert key(DDP) == key(ParallelConfig()) and "parallel" not in key(DDP)
    compressed = dataclasses.replace(DDP, compress="powersgd")
    assert key(compressed)["parallel"] == {
        "compress": "powersgd",
        "compress_warmup_steps": 0,
        "num_processes": 2,
        "compress_rank": 4,
    }
    assert key(dataclasses.replace(compressed, num_threads=1)) == key(compressed)


def test_lamb_is_refused_where_weights_are_cut() -> None:
    lamb = dataclasses.replace(OPTIM, kind="lamb")
    with pytest.raises(ConfigError, match=r"optim.kind \(lamb\).*set parallel=ddp"):
        TrainStageConfig(MODEL, lamb, TRAIN, ParallelConfig("fsdp", 2, device="cpu"))
