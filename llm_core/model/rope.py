"""Rotary positions (Su et al., 2021) with real cosines and sines, in the rotate-half layout of
Hugging Face Llama.

Channel i of a head turns together with channel i + head_dim / 2, so that weights exchange with
Hugging Face by copy. Nothing is stored: tables follow from positions in each pass, so there is no
buffer to lose under meta initialisation and no length limit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from llm_core.model.config import RopeScaling


# B batch · T tokens · H heads · D head dim
def rope_tables(
    positions_BT: Tensor,
    rotary_dim: int,
    theta: float,
    dtype: torch.dtype,
    scaling: RopeScaling | None = None,
) -> tuple[Tensor, Tensor]:
    """(cos_B1TD, sin_B1TD) in float32, or float64 for a float64 model: bfloat16 angles are wrong
    beyond some hundred tokens. rotary_dim: channels of a head that turn, from the first.

    Sines carry the sign that a channel's partner turns with, minus in the first half, so no pass
    over heads is spent on it.
    """
    precise = torch.float64 if dtype == torch.float64 else torch.float32
    exponents = torch.arange(0, rotary_dim, 2, dtype=precise, device=positions_BT.device)
    exponents = exponents / rotary_dim
    frequencies_D = 1.0 / theta**exponents
    if scaling is not None:
        slower = yarn_frequencies if scaling.kind == "yarn" else llama3_frequencies
        frequencies_D = slower(frequencies_D, theta, scaling)
    angles_B1TD = (positions_BT[..., None].to(precise) * frequencies_D)[:, None]
    cos_B1TD, sin_B1TD = angles_B1TD.cos(), angles_B1TD.sin()
    if scaling is not None and scaling.head_scale != 1:
        # A rotation that also scales: no pass over heads is spent on it.
        cos_B1TD, sin_B1TD = cos_B1TD * scaling.head_scale, sin_B1TD * scaling.head_scale
    return torch.cat((cos_B1TD, cos_B1TD), dim=-1), torch.cat((-sin_B1TD, sin_B1TD), dim=-1)


def llama3_frequencies(frequencies_D: Tensor, _theta: float, scaling: RopeScaling) -> Tensor:
    """Radians per token of each channel pair, stretched as in Llama 3.1; see RopeScaling."""
    turns_D = scaling.original_max_seq_len * frequencies_D / (2 * math.pi)
    kept_frac_D = (
        (turns_D - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    ).clamp(0, 1)
    return (1 - kept_frac_D) * frequencies_D / scaling.factor + kept_frac_D * frequencies_D


def yarn_frequencies(frequencies_D: Tensor, theta: float, scaling: RopeScaling) -> Tensor:
    """Radians per token of each channel pair by YaRN (Peng et al., 2023, section 3.2), which in its
    published code interpolates over places of channels, not over turns."""
    head_dim = 2 * len(frequencies_D)

    def place(turns: float) -> float:
        """Of the channel that turns so often in the length trained before."""
        ratio = scaling.original_max_seq_len / (2 * math.pi * turns)
        return head_dim * math.log(ratio) / (2 * math.log(theta))

    first, last = place(scaling.beta_fast), place(scaling.beta_slow)
    if scaling.whole_channels:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    places_D = torch.arange(head_dim // 2, dtype=frequencies_D.dtype, device=frequencies_D.device)
    slowed_frac_D = ((places_D - first) / (last - first or 1e-3)).clamp(0, 1)
    return (1 - slowed_frac_D) * frequencies_D + slowed_frac_D * frequencies_D / scaling.factor


def apply_rope(x_BHTD: Tensor, cos_B1TD: Tensor, sin_B1TD: Tensor) -> Tensor:
    """Turn each head by its position; computed in the dtype of `rope_tables`, given in x's. What is
    wider than the tables stays."""
    turning = cos_B1TD.shape[-1]
    if turning < x_BHTD.shape[-1]:
        first, rest = x_BHTD.split((turning, x_BHTD.shape[-1] - turning), dim=-1)
        return torch.cat((apply_rope(first, cos_B1TD, sin_B1TD), rest), dim=-1)
    first, second = x_BHTD.chunk(2, dim=-1)
    partner_BHTD = torch.cat((second, first), dim=-1)
    return (x_BHTD * cos_B1TD + partner_BHTD * sin_B1TD).to(x_BHTD.dtype)
