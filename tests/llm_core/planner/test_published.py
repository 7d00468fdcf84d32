"""The arithmetic of plans gives the figures that were published. Each names its source."""

from __future__ import annotations

import dataclasses

import pytest

from llm_core.memory.config import MemoryConfig
from llm_core.model.config import ComputeConfig, ModelConfig
from llm_core.optim.config import OptimConfig
from llm_core.planner.activations import block_numbers
from llm_core.planner.cost import flops_per_token, training_cost
from llm_core.planner.hardware import HardwareConfig
from llm_core.planner.inference import Format, Served, cache_bytes_per_token, read_bytes
from llm_core.planner.scaling import LAWS
from llm_core.planner.step import Work, memory_of
from llm_core.planner.weights import Coordinates, state_bytes
from llm_core.training.config import TrainConfig
from tests.support.distributed.cases import layout

A100, H100 = 312e12, 989e12


def gpt(
    dim: int, num_layers: int, num_heads: int, vocab: int = 51200, seq: int = 2048
) -> ModelConfig:
    return ModelConfig(
        vocab, dim, num_layers, num_heads, num_heads, 4 * dim, seq, norm="layer", ffn="gelu",
        positions="learned", qkv_bias=True, out_bias=True, ffn_bias=True,
    )  # fmt: skip


GPT3 = gpt(12288, 96, 96, 50257)


def test_weights_and_work_of_gpt3() -> None:
    """Brown et al. (2020), table D.1: 700 GB in float32, 3.14e23 operations for 300 B tokens."""
    weights = GPT3.num_parameters()
    assert 4 * weights == pytest.approx(698.5e9, rel=1e-3)
    assert 6 * weights * 300e9 == pytest.approx(314e21, rel=2e-3)


@pytest.mark.parametrize(("recompute", "gigabytes"), [("none", 82.1), ("full", 4.83)])
def test_activations_of_gpt3_without_scores(recompute: str, gigabytes: float) -> None:
    """Korthikanti et al. (2022), section 4, 34 s b h L and 2 s b h L: what they call selective is
    what flash attention keeps anyhow. Ours has no dropout, of which theirs keeps 2 s b h."""
    numbers = block_numbers(GPT3, ComputeConfig(dtype="bf16"), recompute)
    kept = 2048 * 96 * 2 * (numbers.stream + numbers.shared)
    dropout = 2048 * 96 * 2 * GPT3.dim if recompute == "none" else 0
    assert (kept + dropout) / 1e9 == pytest.approx(gigabytes, rel=2e-3)
    scores = 5 * 96 * 2048**2 * 96
    if recompute == "none":
        assert (kept + dropout + scores) / 1e9 == pytest.approx(275.4, rel=2e-3)


@pytest.mark.parametrize(
    ("kind", "gigabytes", "units"),
    [("ddp", 120.0, 0), ("zero1", 31.4, 2), ("zero2", 16.6, 2), ("fsdp", 1.64, 4)],
)
def test_states_of_7_5_billion_weights_on_64_devices(
    kind: str, gigabytes: float, units: int
) -> None:
    """Rajbhandari et al. (2020), figure 1; for stage 3 they have 1.88, with shards of weights in 16
    bits beside those in 32. units: of one block in 16 bits, which are gathered and reduced at once;
    the paper does not count them."""
    model = gpt(4096, 37, 32)
    model = dataclasses.replace(model, vocab_size=1000, max_seq_len=64)
    optim, parallel = OptimConfig(lr=1e-3), layout(64, kind)
    factor = 7.5 / model.num_parameters()
    if kind == "ddp":
        # Autocast's copies of weights go with activations, and gradients are never in 16 bits.
        assert state_bytes(model, optim, parallel).total * factor == pytest.approx(gigabytes)
        return
    train = TrainConfig(
        num_steps=1, global_batch_sequences=128, micro_batch_sequences=1, seq_len=64, dtype="bf16",
        gradient_bits=16,
    )  # fmt: skip
    plan = memory_of(Work(model, optim, train, parallel), HardwareConfig(), Coordinates())
    held = plan.weights + plan.gradients + plan.optimizer + plan.copies
    block = model.num_parameters() / model.num_layers
    assert held * factor - gigabytes == pytest.approx(2 * units * block * factor, abs=0.1)


@pytest.mark.parametrize(
    ("dim", "layers", "heads", "devices", "batch", "elapsed_s", "mfu", "hfu"),
    [
        (6144, 48, 64, 8, 4, 1.10, 0.415, 0.437),
        (12288, 96, 96, 64, 64, 13.75, 0.514, 0.528),
        (20480, 105, 128, 280, 280, 37.83, 0.560, 0.570),
        (25600, 128, 160, 512, 512, 71.49, 0.563, 0.570),
    ],
)
def test_utilisation_of_korthikanti(
    dim: int,
    layers: int,
    heads: int,
    devices: int,
    batch: int,
    elapsed_s: float,
    mfu: float,
    hfu: float,
) -> None:
    """Korthikanti et al. (2022), table 5: attention counted whole, and twice for hardware, which
    does it again (equation 9)."""
    model = gpt(dim, layers, heads)
    tokens = batch * 2048
    per_s = tokens / elapsed_s / devices
    assert per_s * model.training_flops_per_token(2048) / A100 == pytest.approx(mfu, rel=0.01)
    whole = model.training_flops_per_token(2048) + 12 * layers * dim * 2048
    assert per_s * whole / A100 == pytest.approx(hfu, rel=0.01)


@pytest.mark.parametrize(
    ("dim", "layers", "heads", "devices", "batch", "elapsed_s", "tflops"),
    [
        (2304, 24, 24, 32, 512, 3.53, 137),
        (8192, 48, 64, 512, 1536, 14.45, 138),
        (20480, 105, 128, 2520, 2520, 54.1, 163),
        (25600, 128, 160, 3072, 3072, 102.6, 163),
    ],
)
def test_work_with_everything_recomputed(
    dim: int, layers: int, heads: int, devices: int, batch: int, elapsed_s: float, tflops: float
) -> None:
    """Narayanan et al. (2021), table 1: 96 B s l h² (1 + s / 6h + V / 16 l h), recomputation
    included. Attention counted whole."""
    model = gpt(dim, layers, heads)
    whole = flops_per_token(model, MemoryConfig(recompute="full"), 2048).hardware_full
    found = batch * 2048 * whole / elapsed_s / devices / 1e12
    assert found == pytest.approx(tflops, rel=0.01)


@pytest.mark.parametrize(
    ("devices", "elapsed_s", "tflops", "of_the_model"),
    [(2240, 60.1, 126, 94), (2800, 50.2, 121, 90), (3360, 44.4, 113, 85)],
)
def test_work_of_mt_nlg(devices: int, elapsed_s: float, tflops: float, of_the_model: float) -> None:
    """Smith et al. (2022), section 2.3: hardware operations, 1,920 sequences a step; those of the
    model are a quarter less."""
    found = flops_per_token(gpt(20480, 105, 128), MemoryConfig(recompute="full"), 2048)
    per_s = 1920 * 2048 / elapsed_s / devices / 1e12
    assert per_s * found.hardware_full == pytest.approx(tflops, rel=0.01)
    assert per_s * found.model_full == pytest.approx(of_the_model, rel=0.01)


@pytest.mark.parametrize(
    ("shape", "seq", "devices_tok_s", "tflops", "mfu"),
    [
        ((8192, 80, 64), 2048, 1007, 408, 0.4125),
        ((4096, 32, 32), 2048, 10643, 459, 0.4644),
        ((4096, 32, 32), 65536, 1956, 282, 0.2859),
        ((2048, 24, 16), 2048, 39837, 362, 0.3665),
    ],
)
def test_utilisation_of_mosaic(
    shape: tuple[int, int, int], seq: int, devices_tok_s: float, tflops: float, mfu: float
) -> None:
    """llm-foundry's table for H100: 6 N + 12 L h s per token."""
    model = gpt(*shape, vocab=50368, seq=seq)
    flops = 6 * model.num_parameters() + 12 * shape[1] * shape[0] * seq
    assert devices_tok_s * flops / 1e12 == pytest.approx(tflops, rel=0.03)
    assert devices_tok_s * flops / H100 == pytest.approx(mfu, rel=0.03)


def test_days_of_82_billion_weights() -> None:
    """150 B tokens on 1,024 A100: 2.67 days at their peak, 16.355 at 68 TFLOP/s with all blocks
    recomputed."""
    weights = 82e9
    assert training_cost(6 * weights * 150e9, 1024, A100).days == pytest.approx(2.67, rel=2e-3)
    assert training_cost(8 * weights * 150e9, 1024, 68e12).days == pytest.approx(16.355, rel=1e-3)


@pytest.mark.parametrize(
    ("weights", "tokens", "devices", "tflops", "days"),
    [(175e9, 300e9, 1024, 140e12, 34), (1.008e12, 450e9, 3072, 163e12, 84)],
)
def test_days_of_narayanan(
    weights: float, tokens: float, devices: int, tflops: float, days: float
) -> None:
    """Narayanan et al. (2021), section 5.1: T ≈ 8 T P / (n X)."""
    assert training_cost(8 * weights * tokens, devices, tflops).days == pytest.approx(
        days, rel=0.02
    )


@pytest.mark.parametrize(
    ("flops", "weights", "tokens"),
    [
        (1.21e20, 1e9, 20.2e9),
        (1.23e22, 10e9, 205.1e9),
        (5.76e23, 67e9, 1.5e12),
        (3.85e24, 175e9, 3.7e12),
        (1.27e26, 1e12, 21.2e12),
    ],
)
def test_chinchillas_table_costs_six_operations_per_weight_and_token(
    flops: float, weights: float, tokens: float
) -> None:
    """Hoffmann et al. (2022), table 3."""
    assert 6 * weights * tokens == pytest.approx(flops, rel=0.06)
    assert tokens / weights == pytest.approx(20.7, rel=0.09)


@pytest.mark.parametrize(
    ("law", "flops", "per_weight"),
    [
        ("hoffmann", 5.76e23, 92.6),
        ("hoffmann", 1e20, 40.1),
        ("besiroglu", 5.76e23, 18.4),
        ("besiroglu", 1e20, 22.9),
    ],
)
def test_tokens_per_weight_of_each_fit(law: str, flops: float, per_weight: float) -> None:
    fit = LAWS[law]
    assert fit.best_tokens(flops) / fit.best_weights(flops) == pytest.approx(per_weight, rel=0.01)
    size = fit.best_weights(flops)
    assert fit.tokens_for(size) == pytest.approx(fit.best_tokens(flops), rel=1e-6)


@pytest.mark.parametrize(
    ("model", "kilobytes"),
    [
        (gpt(5120, 40, 40, 50272), 800),
        (ModelConfig(32000, 4096, 32, 32, 32, 11008, 4096), 512),
        (ModelConfig(32000, 8192, 80, 64, 8, 28672, 4096), 320),
    ],
)
def test_cache_of_a_token(model: ModelConfig, kilobytes: float) -> None:
    """OPT-13B: Kwon et al. (2023), section 3. Llama 2 7B and 70B: Touvron et al. (2023), table 1,
    in 16 bits; the latter with 8 groups."""
    assert cache_bytes_per_token(model, "model") / 1024 == pytest.approx(kilobytes, rel=0.01)


@pytest.mark.parametrize(
    ("shape", "weights", "devices", "tokens_per_s", "gb_per_s"),
    [
        ((4096, 32, 32, 32, 11008), "bf16", 1, 104.9, 1397.31),
        ((4096, 32, 32, 32, 11008), "int8", 1, 155.58, 1069.20),
        ((8192, 80, 64, 8, 28672), "int8", 1, 19.13, 1322.58),
        ((8192, 80, 64, 8, 28672), "bf16", 2, 21.32, 1481.87),
    ],
)
def test_decoding_of_gpt_fast(
    shape: tuple[int, int, int, int, int],
    weights: Format,
    devices: int,
    tokens_per_s: float,
    gb_per_s: float,
) -> None:
    """README of gpt-fast (0f925b5): Llama 2 on A100 80 GB, one sequence, a prompt of 5 tokens. Its
    bandwidth of a device times the time of a token is what is read for one. Its ranks hold the head
    whole: with four and eight of them that is 6 and 14 % more than here, and not compared."""
    model = ModelConfig(32000, *shape, 4096, tied_embeddings=False)
    read = read_bytes(model, weights) / devices
    assert read * tokens_per_s / 1e9 == pytest.approx(gb_per_s, rel=0.05)
    hardware = HardwareConfig("A100", 80, 2039, 312, 19.5)
    assert tokens_per_s < Served(model, hardware, devices, weights).decode(1, 100)[0]


def test_utilisation_of_palm() -> None:
    """Chowdhery et al. (2022), table 3 and appendix B: 540 B weights, 238.3 thousand tokens per
    second on 6,144 TPU v4 of 275 TFLOP/s, MFU 46.2 % with attention counted whole."""
    palm = ModelConfig(256000, 18432, 118, 48, 1, 73728, 2048, own_head_dim=256)
    assert palm.num_parameters() == pytest.approx(540.35e9, rel=1e-3)
    flops = flops_per_token(palm, MemoryConfig(), 2048).model_full
    assert 238.3e3 * flops / (6144 * 275e12) == pytest.approx(0.462, abs=5e-4)


def test_work_of_llama_3_405b() -> None:
    """Grattafiori et al. (2024), section 3.2.1: 3.8e25 operations for 15.6 T tokens."""
    model = ModelConfig(128256, 16384, 126, 128, 8, 53248, 8192, tied_embeddings=False)
    found = flops_per_token(model, MemoryConfig(), 8192)
    assert found.six_n * 15.6e12 == pytest.approx(3.8e25, rel=0.01)
