"""Gives a float32 model faster products on a CPU, by the number of rows, and kernels between them.

torch's own product of few rows reads weights at half the speed of memory. Three ways are faster.
One row on one thread: a loop of ours. One and two rows: the weight times the rows as columns, of
which MKL wants two. More rows: oneDNN's product by a copy of the weight in its own order. The
copies cost the weights a second time, so large models are left as they are. Sums are rounded in
another order, as between batch sizes.
"""

from __future__ import annotations

import functools
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from llm_core.infer.cpu import few_rows
from llm_core.model.attention import split_together
from llm_core.model.feed_forward import SwiGLU, gated
from llm_core.model.norm import add_then_norm
from llm_core.model.transformer import Transformer

# N rows · I inputs · O outputs

MAX_COPIED_BYTES = 4 << 30
"""Weights above that are not copied: who runs such a model has no memory for two of it."""
ROWS_PACKED_FOR = 8
"""The order that oneDNN chooses for so many rows serves all other numbers."""


def speed_up(model: Transformer, copy_weights: bool) -> None:
    """Replace what a float32 model on a CPU computes with; others are left alone.

    The weights stay the same parameters: what is saved or trained does not change. copy_weights:
    whether they may be kept a second time.
    """
    weight = model.norm.weight
    if weight.dtype != torch.float32 or weight.device.type != "cpu":
        return
    for block in model.own_blocks:
        if block.add_norm is add_then_norm:
            block.add_norm = few_rows.add_norm
        if block.attention.split_cached is split_together:
            block.attention.split_cached = few_rows.split_heads
        if isinstance(block.ffn, SwiGLU) and block.ffn.gated is gated:
            block.ffn.gated = few_rows.gate
    if copy_weights:
        _pack(model)


def _pack(model: Transformer) -> None:
    layers = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
        and child.weight.dtype == torch.float32
        and child.weight.device.type == "cpu"
    ]
    if not _has_packing() or sum(child.weight.nbytes for *_, child in layers) > MAX_COPIED_BYTES:
        return
    for parent, name, child in layers:
        setattr(parent, name, FastLinear(child))


class FastLinear(nn.Linear):
    """A linear layer with a second, packed copy of its weight."""

    def __init__(self, plain: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.weight, self.bias = plain.weight, plain.bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(
            plain.weight.detach(), ROWS_PACKED_FOR
        )
        self._version = plain.weight._version

    def forward(self, input: Tensor) -> Tensor:
        weight_OI = self.weight
        if torch.is_grad_enabled() or weight_OI._version != self._version:
            return F.linear(input, weight_OI, self.bias)
        x_NI = input.reshape(-1, self.in_features)
        rows = len(x_NI)
        if rows > 2:
            y_NO = torch.ops.mkldnn._linear_pointwise(x_NI, self._packed, self.bias, "none", [], "")
            return cast(Tensor, y_NO).view(*input.shape[:-1], self.out_features)
        if rows == 1 and few_rows.is_for_one_thread(weight_OI.nbytes):
            y_1O = few_rows.product_of_row(x_NI, weight_OI)
            y_1O = y_1O if self.bias is None else y_1O + self.bias
            return y_1O.view(*input.shape[:-1], self.out_features)
        pair_IN = (x_NI if rows == 2 else torch.cat((x_NI, x_NI))).t()
        y_NO = torch.mm(weight_OI, pair_IN)[:, :rows].t().contiguous()
        if self.bias is not None:
            y_NO += self.bias
        return y_NO.view(*input.shape[:-1], self.out_features)


@functools.cache
def _has_packing() -> bool:
    """Whether this torch has oneDNN and takes packed weights by the names used here."""
    if not torch.backends.mkldnn.is_available():
        return False
    names = ("_reorder_linear_weight", "_linear_pointwise")
    return all(hasattr(torch.ops.mkldnn, name) for name in names)
