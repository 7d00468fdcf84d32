"""Rotary positions (Su et al., 2021) with real cosines and sines, in the rotate-half layout of Hugging Face Llama.

Channel i of a head turns together with channel i + head_dim / 2, so that weights exchange with Hugging Face by copy.
Nothing is stored: tables follow from positions in each pass, so there is no buffer to lose under meta
initialisation and no length limit.
"""

from __future__ import annotations

import torch
from torch import Tensor


# B batch · T tokens · H heads · D head dim
def rope_tables(positions_BT: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(cos_B1TD, sin_B1TD) in float32, or float64 for a float64 model: bfloat16 angles are wrong beyond some hundred tokens."""
    precise = torch.float64 if dtype == torch.float64 else torch.float32
    exponents = torch.arange(0, head_dim, 2, dtype=precise, device=positions_BT.device) / head_dim
    angles_BTD = positions_BT[..., None].to(precise) * (1.0 / theta**exponents)
    angles_B1TD = torch.cat((angles_BTD, angles_BTD), dim=-1)[:, None]
    return angles_B1TD.cos(), angles_B1TD.sin()


def apply_rope(x_BHTD: Tensor, cos_B1TD: Tensor, sin_B1TD: Tensor) -> Tensor:
    """Turn each head by its position; computed in the dtype of the tables, returned in the dtype of x."""
    first, second = x_BHTD.chunk(2, dim=-1)
    rotated_BHTD = torch.cat((-second, first), dim=-1)
    return (x_BHTD * cos_B1TD + rotated_BHTD * sin_B1TD).to(x_BHTD.dtype)
