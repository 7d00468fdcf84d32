"""Runs the kernels of `llm_core.kernels.cpu` for few float32 rows on a CPU, and torch for others.

Kernels run on one thread: they serve where torch has no more, and where the work is less than
waking other threads takes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from llm_core.model.attention import split_together
from llm_core.model.feed_forward import gated
from llm_core.model.norm import RMSNorm, add_then_norm

# N tokens, each of a sequence of its own · M blocks of a sequence · T tokens of a block
# H query heads · G key/value heads · R query heads that share one · D width of a head
# B, T in BTD: batch and tokens

MAX_TOKENS = 64
"""Tokens of a pass that is one of few rows."""
SERIAL_BYTES = 4 << 20
"""Keys and values of a layer that one thread reads before others are of help."""


def is_for_one_thread(num_bytes: int) -> bool:
    """Whether a pass over so much memory is not worth a second thread."""
    return num_bytes <= SERIAL_BYTES or torch.get_num_threads() == 1


def attend_blocks(
    q_NHD: Tensor, k_NGD: Tensor, v_NGD: Tensor, keys_BTGD: Tensor, values_BTGD: Tensor,
    tables_NM: Tensor, lengths_N: Tensor, window: int,
) -> Tensor:  # fmt: skip
    """Store the last key and value of each sequence; mixed_NHD of its query, without a copy of the
    keys before. float32; tables and lengths, the new key included: int32."""
    from llm_core.kernels.cpu.decode import attend

    mixed_NHD = torch.empty(q_NHD.shape)
    attend(
        *(x.contiguous().numpy() for x in (q_NHD, k_NGD, v_NGD)), keys_BTGD.numpy(),
        values_BTGD.numpy(), tables_NM.numpy(), lengths_N.numpy(), window, mixed_NHD.numpy(),
    )  # fmt: skip
    return mixed_NHD


def product_of_row(x_1I: Tensor, weight_OI: Tensor) -> Tensor:
    """y_1O of float32."""
    from llm_core.kernels.cpu.decode import multiply_row

    y_1O = torch.empty(1, len(weight_OI))
    x_I, y_O = x_1I.contiguous().numpy()[0], y_1O.numpy()[0]
    multiply_row(weight_OI.detach().contiguous().numpy(), x_I, y_O)
    return y_1O


def add_norm(x_BTD: Tensor, delta_BTD: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """As `llm_core.model.norm.add_then_norm`."""
    if not (isinstance(norm, RMSNorm) and _is_few(x_BTD, x_BTD.shape[-1])):
        return add_then_norm(x_BTD, delta_BTD, norm)
    from llm_core.kernels.cpu.decode import add_then_norm as add_then_norm_of_rows

    width = x_BTD.shape[-1]
    total_BTD, normed_BTD = torch.empty(x_BTD.shape), torch.empty(x_BTD.shape)
    x_ND, delta_ND, total_ND, normed_ND = (
        x.reshape(-1, width).numpy() for x in (x_BTD, delta_BTD, total_BTD, normed_BTD)
    )
    weight_D = norm.weight.detach().numpy()
    add_then_norm_of_rows(x_ND, delta_ND, weight_D, norm.eps, total_ND, normed_ND)
    return total_BTD, normed_BTD


def split_heads(qkv_BTGHD: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """As `llm_core.model.attention.split_together`."""
    batch, tokens, groups, parts, width = qkv_BTGHD.shape
    positions = rope[0].shape[0] * rope[0].shape[2]
    is_few = _is_few(qkv_BTGHD, groups * parts * width) and positions == batch * tokens
    turns_whole_heads = rope[0].shape[-1] == width
    if not (is_few and turns_whole_heads and qkv_BTGHD.is_contiguous()):
        return split_together(qkv_BTGHD, rope)
    from llm_core.kernels.cpu.decode import turn_heads

    q_NHD = torch.empty(batch * tokens, groups * (parts - 2), width)
    k_NGD, v_NGD = (torch.empty(batch * tokens, groups, width) for _ in range(2))
    cos_ND, sin_ND = (table_B1TD.reshape(-1, width).numpy() for table_B1TD in rope)
    turn_heads(
        qkv_BTGHD.flatten(0, 1).numpy(), cos_ND, sin_ND, q_NHD.numpy(), k_NGD.numpy(),
        v_NGD.numpy(),
    )  # fmt: skip
    return tuple(x.unflatten(0, (batch, tokens)).transpose(1, 2) for x in (q_NHD, k_NGD, v_NGD))  # type: ignore[return-value]


def gate(inner_BTI: Tensor, block: int) -> Tensor:
    """As `llm_core.model.transformer.gated`."""
    width = inner_BTI.shape[-1]
    if not (_is_few(inner_BTI, width) and inner_BTI.is_contiguous()):
        return gated(inner_BTI, block)
    from llm_core.kernels.cpu.decode import gate as gate_of_rows

    out_BTF = torch.empty(*inner_BTI.shape[:-1], width // 2)
    blocks = width // (2 * block)
    gate_of_rows(
        inner_BTI.view(-1, blocks, 2, block).numpy(), out_BTF.view(-1, blocks, block).numpy()
    )
    return out_BTF


def _is_few(x: Tensor, row_width: int) -> bool:
    return (
        x.dtype == torch.float32
        and x.device.type == "cpu"
        and 0 < x.numel() <= MAX_TOKENS * row_width
        and not torch.is_grad_enabled()
    )
