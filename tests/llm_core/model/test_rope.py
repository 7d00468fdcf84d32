"""Rotations are slowed and scaled as transformers has it, channel by channel."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError, key_config
from llm_core.model.config import ModelConfig, RopeScaling
from llm_core.model.rope import apply_rope, rope_tables


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 64),
    st.floats(100, 1e6),
    st.floats(1, 64),
    st.integers(8, 8192),
    st.floats(0.1, 4),
    st.floats(5, 64),
    st.sampled_from([None, 0.5, 1.4]),
    st.booleans(),
)
def test_yarn_is_that_of_transformers(
    half: int,
    theta: float,
    factor: float,
    original: int,
    slow: float,
    fast: float,
    scale: float | None,
    whole: bool,
) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_slow": slow,
        "beta_fast": fast,
        "truncate": whole,
    } | ({"attention_factor": scale} if scale else {})
    theirs = LlamaConfig(
        head_dim=2 * half, max_position_embeddings=65536, rope_parameters=parameters
    )
    frequencies_D, heads = ROPE_INIT_FUNCTIONS["yarn"](theirs, torch.device("cpu"))
    ours = RopeScaling(
        factor,
        original_max_seq_len=original,
        kind="yarn",
        beta_slow=slow,
        beta_fast=fast,
        attention_factor=scale or 0.0,
        whole_channels=whole,
    )
    # After one token a channel has turned by its frequency.
    cos_B1TD, sin_B1TD = rope_tables(torch.ones(1, 1), 2 * half, theta, torch.float64, ours)
    angles_D = torch.atan2(sin_B1TD, cos_B1TD).flatten()[half:]
    torch.testing.assert_close(angles_D, frequencies_D.double(), rtol=2e-5, atol=1e-9)
    lengths_D = (cos_B1TD.square() + sin_B1TD.square()).sqrt()
    torch.testing.assert_close(lengths_D, torch.full_like(lengths_D, heads), rtol=1e-12, atol=0)


def test_scores_of_scaled_heads_depend_on_their_distance_alone() -> None:
    scaling = RopeScaling(4.0, original_max_seq_len=16, kind="yarn")
    draw = torch.Generator().manual_seed(0)
    q_BHTD, k_BHTD = torch.randn(2, 1, 1, 1, 8, generator=draw, dtype=torch.float64)

    def score(at: int, other: int) -> float:
        turned = [
            apply_rope(x, *rope_tables(torch.tensor([[place]]), 8, 1e4, x.dtype, scaling))
            for x, place in ((q_BHTD, at), (k_BHTD, other))
        ]
        return float((turned[0] * turned[1]).sum())

    assert score(7, 3) == pytest.approx(score(1007, 1003), rel=1e-9)
    plain = float((q_BHTD * k_BHTD).sum())
    assert score(5, 5) == pytest.approx(plain * (1 + 0.1 * math.log(4)) ** 2)


def test_impossible_scalings_are_refused_and_earlier_ones_keep_their_key() -> None:
    with pytest.raises(ConfigError, match=r"beta_slow \(40.0\) must be positive and less than"):
        RopeScaling(kind="yarn", beta_slow=40.0)
    with pytest.raises(ConfigError, match=r"rope_theta \(1.0\) must be above 1 for rope_scaling"):
        ModelConfig(51, 32, 2, 4, 2, 48, 64, rope_theta=1.0, rope_scaling=RopeScaling(kind="yarn"))
    assert key_config(RopeScaling()).keys() == {
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_seq_len",
    }
