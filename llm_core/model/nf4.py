"""Keeps frozen matrices in 4 bits: NF4 with double quantisation (Dettmers et al., 2023, "QLoRA").

A block of 64 numbers of a row is divided by the largest magnitude in it, and each number takes the
nearest of 16 values, quantiles of a normal distribution. The largest magnitudes of all blocks, less
their mean, are quantised in turn: 256 of them share a float32 scale, and each takes the nearest of
256 values in steps that grow with it. That is 4.13 bits a weight, and 32 bits a row for its place.

Codes are those of bitsandbytes: each matrix of Hugging Face's model is quantised whole, in its own
order of rows. A fused matrix holds the rows of several, and a process may hold a part of it, so
each row says where its first block lies in the list of all. Numbers are restored for each product,
again in backward, and never kept.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, library, nn
from torch.nn import functional as F

from llm_core.model.adapter import (
    CODED_BLOCK,
    CODED_GROUP,
    AdaptedModelConfig,
    coded_layer,
    is_factor,
    layers_of,
)
from llm_core.model.config import ModelConfig
from llm_core.model.fused import split_gate_up, split_qkv
from llm_core.model.precision import product_dtype

# O outputs (rows) · I inputs · K blocks of a row · G groups of blocks

VALUES = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""The number of each code (Dettmers et al., 2023, appendix E)."""
AT_ONCE = 1 << 22
"""Numbers that torch restores at a time, so that their float32 copies stay small."""


@functools.cache
def values_of(device: torch.device) -> Tensor:
    """The number of each code."""
    return torch.tensor(VALUES, dtype=torch.float32, device=device)


@functools.cache
def steps_of(device: torch.device) -> Tensor:
    """The 256 numbers of 8-bit codes, rising (Dettmers, 2016): 0, 1, and with both signs the
    midpoints of equal parts of seven decades, each of which has twice as many as the one below."""
    found = [0.0, 1.0]
    for decade in range(7):
        bounds = torch.linspace(0.1, 1, 2**decade + 1, dtype=torch.float32)
        middles = (10.0 ** (decade - 6) * (bounds[:-1] + bounds[1:]) / 2).tolist()
        found += [*middles, *(-middle for middle in middles)]
    return torch.tensor(sorted(found), dtype=torch.float32, device=device)


def nearest(numbers: Tensor, rising: Tensor) -> Tensor:
    """uint8 index of the nearest of rising values; of two as near, the lower."""
    middles = (rising[:-1] + rising[1:]) / 2
    return torch.bucketize(numbers, middles, out_int32=True).to(torch.uint8)


def rows_by_matrix(config: ModelConfig, layer: str, num_rows: int) -> tuple[Tensor, ...]:
    """Which rows of a layer each of Hugging Face's matrices has, in the order of that matrix."""
    rows = torch.arange(num_rows)
    if layer == "attention.qkv" and config.family != "gpt_neox":
        parts = split_qkv(config, rows)
        return (torch.cat(parts),) if config.family == "gpt2" else parts
    return split_gate_up(config, rows) if layer == "ffn.gate_up" else (rows,)


class CodedWeight(nn.Module):
    """This process's part of the weight [O, I] of a linear layer, in whose place it is put."""

    codes_OI: Tensor
    """Two to a byte, the first in the upper half."""
    absmax_OK: Tensor
    """Codes of the largest magnitude of each block."""
    groups_G2: Tensor
    """(factor, mean) of each group: largest magnitude = number of its code x factor + mean."""
    first_O: Tensor
    """Place of the first block of each row among those of the whole layer."""

    def __init__(self, config: AdaptedModelConfig, layer: str, rows: int, columns: int) -> None:
        """rows, columns: of this process's part. Without content, on the meta device."""
        super().__init__()
        self.config, self.layer = config, layer
        num_blocks, num_groups = columns // CODED_BLOCK, layers_of(config)[layer].coded_groups
        for name, shape, dtype in (
            ("codes_OI", (rows, columns // 2), torch.uint8),
            ("absmax_OK", (rows, num_blocks), torch.uint8),
            ("groups_G2", (num_groups, 2), torch.float32),
            ("first_O", (rows,), torch.int32),
        ):
            self.register_buffer(name, torch.empty(shape, dtype=dtype, device="meta"))

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.codes_OI, self.absmax_OK, self.groups_G2, self.first_O

    @torch.no_grad()
    def write(self, whole_OI: Tensor, rows: range, columns: range) -> None:
        """Quantise the whole weight, and keep the rows and columns of this process."""
        blocks = whole_OI.to(self.codes_OI.device, torch.float32).unflatten(1, (-1, CODED_BLOCK))
        largest_OK = blocks.abs().amax(dim=2)
        absmax_OK = torch.empty_like(largest_OK, dtype=torch.uint8)
        first_O = torch.empty(len(largest_OK), dtype=torch.int32, device=largest_OK.device)
        per_row, start = largest_OK.shape[1], 0
        for matrix in rows_by_matrix(self.config, self.layer, len(largest_OK)):
            codes, groups_G2 = _quantise_twice(largest_OK[matrix].flatten())
            absmax_OK[matrix] = codes.view(len(matrix), per_row)
            self.groups_G2[start : start + len(groups_G2)] = groups_G2
            places = torch.arange(len(matrix), dtype=torch.int32) * per_row + start * CODED_GROUP
            first_O[matrix] = places.to(first_O.device)
            start += len(groups_G2)
        own = slice(rows.start, rows.stop)
        across = slice(columns.start // CODED_BLOCK, columns.stop // CODED_BLOCK)
        self.absmax_OK.copy_(absmax_OK[own, across])
        self.first_O.copy_(first_O[own] + across.start)
        scale = torch.where(largest_OK > 0, 1 / largest_OK, 0)[own, across, None]
        table, mine = values_of(blocks.device), blocks[own, across]
        each = max(1, AT_ONCE // whole_OI.shape[1])
        for top in range(0, len(mine), each):
            some = slice(top, top + each)
            high, low = (
                nearest((mine[some] * scale[some]).flatten(1), table)
                .unflatten(1, (-1, 2))
                .unbind(2)
            )
            self.codes_OI[some] = high << 4 | low

    def numbers(self, dtype: torch.dtype) -> Tensor:
        """The weight that the codes stand for, [O, I]."""
        return restored(*self.parts, dtype)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., I] → [..., O], as F.linear."""
        out = coded_product(x.to(product_dtype(x)), *self.parts, False)
        return out if bias is None else out + bias.to(out.dtype)


def as_it_rests(config: ModelConfig, name: str, weight: Tensor) -> Tensor:
    """A whole weight as this model computes with it: in float32 the numbers of its codes, where it
    is kept in codes, and rounded, where frozen matrices are kept in 16 bits."""
    if not isinstance(config, AdaptedModelConfig) or is_factor(name):
        return weight
    if (layer := coded_layer(config, name)) is None:
        is_short = config.adapter.base_dtype == "bf16" and weight.ndim > 1
        return weight.to(torch.bfloat16).to(weight.dtype) if is_short else weight
    codes = CodedWeight(config, layer, *weight.shape).to_empty(device=weight.device)
    codes.write(weight, *map(range, weight.shape))
    return codes.numbers(torch.float32)


def _quantise_twice(largest: Tensor) -> tuple[Tensor, Tensor]:
    """(codes, groups_G2) of the largest magnitudes of blocks, flat."""
    # A sum in float64, so that it does not depend on the number of threads.
    mean = largest.mean(dtype=torch.float64).float()
    short = -len(largest) % CODED_GROUP
    grouped = F.pad(largest - mean, (0, short)).view(-1, CODED_GROUP)
    most_G1 = grouped.abs().amax(dim=1, keepdim=True)
    scaled = torch.where(most_G1 > 0, grouped * (1 / most_G1), 0)
    codes = nearest(scaled, steps_of(largest.device)).flatten()[: len(largest)]
    return codes, torch.cat((most_G1, mean.expand_as(most_G1)), dim=1)


def restored(
    codes_OI: Tensor, absmax_OK: Tensor, groups_G2: Tensor, first_O: Tensor, dtype: torch.dtype
) -> Tensor:
    """Numbers of codes, [O, I]: products in float32, rounded once."""
    rows, blocks = absmax_OK.shape
    if codes_OI.device.type == "cuda" and dtype != torch.float64:
        from llm_core.kernels.nf4_triton import restore

        tables = values_of(codes_OI.device), steps_of(codes_OI.device)
        return restore(codes_OI, absmax_OK, groups_G2, first_O, *tables, dtype)
    out = torch.empty(rows, blocks, CODED_BLOCK, dtype=dtype, device=codes_OI.device)
    steps, pairs = steps_of(codes_OI.device), _pairs(codes_OI.device)
    columns = torch.arange(blocks, dtype=torch.int32, device=codes_OI.device)
    each = max(1, AT_ONCE // (blocks * CODED_BLOCK))
    for top in range(0, rows, each):
        some = slice(top, top + each)
        factor, mean = groups_G2[(first_O[some, None] + columns) // CODED_GROUP].unbind(-1)
        scale = steps[absmax_OK[some].int()] * factor + mean
        numbers = pairs[codes_OI[some].int()].view(-1, blocks, CODED_BLOCK)
        torch.mul(numbers, scale[..., None], out=numbers)
        out[some] = numbers
    return out.flatten(1)


@functools.cache
def _pairs(device: torch.device) -> Tensor:
    """Both numbers of each byte, [256, 2]."""
    byte, values = torch.arange(256, device=device), values_of(device)
    return torch.stack((values[byte >> 4], values[byte & 15]), dim=1)


@library.custom_op(
    "llm_core::coded_product",
    mutates_args=(),
    schema="(Tensor x, Tensor codes, Tensor absmax, Tensor groups, Tensor first, bool back)"
    " -> Tensor",
)
def coded_product(
    x: Tensor, codes: Tensor, absmax: Tensor, groups: Tensor, first: Tensor, back: bool
) -> Tensor:
    """x Wᵀ of the weight that codes stand for; x W with `back`, as the gradient needs it."""
    # One operation, so that selective recomputation keeps its result without restoring numbers.
    weight = restored(codes, absmax, groups, first, x.dtype)
    return x @ weight if back else F.linear(x, weight)


@coded_product.register_fake
def _shape(
    x: Tensor, codes: Tensor, absmax: Tensor, groups: Tensor, first: Tensor, back: bool
) -> Tensor:
    return x.new_empty(*x.shape[:-1], 2 * codes.shape[1] if back else codes.shape[0])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:-1])


def _go_back(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return coded_product(grad, *ctx.saved_tensors, True), None, None, None, None, None


coded_product.register_autograd(_go_back, setup_context=_keep)
