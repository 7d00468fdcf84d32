"""Multiplies by rounded weights on a CPU, with what torch has compiled for it.

int8: rows of x are rounded to 8 bits too, each by its own largest magnitude, and FBGEMM multiplies
whole numbers. Sums are exact, so a row's result does not depend on the rows beside it. Processors
without VNNI add two products in 16 bits and cut off what does not fit; there x has 7 bits. A
product of extreme numbers, tried once, tells.

int4: torch's kernel for x in bfloat16.

Both want the numbers in an order of their own. They are held in that order only, and can be had
back exactly. Where a processor has neither (Arm, before AVX2), weights are restored for each call:
that saves memory and costs time.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from llm_core import compat
from llm_core.quantize.formats import GROUP, TINY, Rounded, pack, restore, unpack

# M rows of x · N outputs · K inputs · G groups of inputs
INT4_ROWS = 64
"""Rows of a weight that torch's kernel packs together on the widest processors."""


@runtime_checkable
class Ordered(Protocol):
    """A weight in the order that a kernel wants."""

    @property
    def num_bytes(self) -> int: ...

    def product(self, x_MK: Tensor) -> Tensor:
        """x weightᵀ in x's dtype."""

    def rounded(self) -> Rounded:
        """The weight as it is stored."""


def order(rounded: Rounded) -> Ordered | None:
    """None where this processor has no kernel for the format."""
    if rounded.format == "int8" and most_of_x() is not None:
        return OrderedInt8.of(rounded)
    if rounded.format == "int4" and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"):
        return OrderedInt4.of(rounded)
    return None


def restored_product(x_MK: Tensor, rounded: Rounded) -> Tensor:
    """x weightᵀ by the weight in x's dtype, which is made for the call."""
    return F.linear(x_MK, restore(rounded, x_MK.dtype))


def noisy_product(x_MK: Tensor, rounded: Rounded) -> Tensor:
    """`restored_product` with all that the format's kernel rounds, computed without the kernel. fp8
    has none."""
    if rounded.format == "int4":
        return restored_product(x_MK.bfloat16().to(x_MK.dtype), rounded).bfloat16().to(x_MK.dtype)
    most = most_of_x()
    if rounded.format != "int8" or most is None:
        return restored_product(x_MK, rounded)
    step_M1 = x_MK.abs().amax(-1, keepdim=True).clamp(min=TINY) / most
    return restored_product((x_MK / step_M1).round() * step_M1, rounded)


@functools.cache
def most_of_x() -> int | None:
    """The largest magnitude of x's numbers with which products are exact; None: there is none."""
    if compat.fbgemm_product is None or "fbgemm" not in torch.backends.quantized.supported_engines:
        return None
    weight_NK = torch.full((2, 256), 127, dtype=torch.int8)
    packed = compat.fbgemm_order(weight_NK, torch.ones(2))
    for most in (127, 63):
        x_MK = torch.tensor([[1.0], [-1.0]]).expand(2, 256) * most
        expected = x_MK.double() @ weight_NK.double().t()
        if torch.equal(compat.fbgemm_product(x_MK, 1.0, most + 1, packed).double(), expected):
            return most
    return None


@dataclass(frozen=True)
class OrderedInt8:
    """An int8 weight as FBGEMM packs it."""

    packed: Any
    num_outputs: int
    num_inputs: int
    most: int

    @classmethod
    def of(cls, rounded: Rounded) -> OrderedInt8:
        most = most_of_x()
        assert most is not None
        packed = compat.fbgemm_order(rounded.numbers, rounded.scale)
        return cls(packed, len(rounded.numbers), rounded.num_inputs, most)

    @property
    def num_bytes(self) -> int:
        return self.num_outputs * (self.num_inputs + 4)

    def product(self, x_MK: Tensor) -> Tensor:
        assert compat.fbgemm_product is not None
        if x_MK.dtype != torch.float32:
            return self.product(x_MK.float()).to(x_MK.dtype)
        # A row of zeros divides zero by zero; whatever number that becomes is multiplied by zero.
        size_M1 = x_MK.abs().amax(-1, keepdim=True)
        y_MN = compat.fbgemm_product(x_MK / size_M1, 1 / self.most, self.most + 1, self.packed)
        return y_MN.mul_(size_M1)

    def rounded(self) -> Rounded:
        numbers, scale = compat.fbgemm_stored(self.packed)
        return Rounded("int8", self.num_inputs, numbers, scale)


@dataclass(frozen=True)
class OrderedInt4:
    """An int4 weight in the order of torch's kernel, with padding to whole blocks of rows."""

    ordered: Tensor
    scale_offset_GN2: Tensor
    num_outputs: int
    num_inputs: int

    @classmethod
    def of(cls, rounded: Rounded) -> OrderedInt4:
        assert rounded.offset is not None
        num_outputs = len(rounded.numbers)
        rows = (0, 0, 0, -num_outputs % INT4_ROWS)
        numbers_NK = F.pad(unpack(rounded.numbers).flatten(1), rows).to(torch.int32) + 8
        pairs_NG2 = torch.stack([F.pad(rounded.scale, rows), F.pad(rounded.offset, rows)], -1)
        scale_offset = pairs_NG2.transpose(0, 1).contiguous()
        ordered = compat.int4_order(numbers_NK, 1)
        return cls(ordered, scale_offset, num_outputs, rounded.num_inputs)

    @property
    def num_bytes(self) -> int:
        return self.ordered.nbytes + self.scale_offset_GN2.nbytes

    def product(self, x_MK: Tensor) -> Tensor:
        missing = len(self.scale_offset_GN2) * GROUP - self.num_inputs
        x16_MK = x_MK.bfloat16().contiguous()
        if missing:
            x16_MK = F.pad(x16_MK, (0, missing))
        y_MN = compat.int4_product(x16_MK, self.ordered, GROUP, self.scale_offset_GN2)
        return y_MN[:, : self.num_outputs].to(x_MK.dtype)

    def rounded(self) -> Rounded:
        # Rows of the identity bring back the columns, which bfloat16 holds exactly.
        groups = len(self.scale_offset_GN2)
        plain = torch.zeros_like(self.scale_offset_GN2)
        plain[..., 0] = 1
        columns = [
            compat.int4_product(rows_IK, self.ordered, GROUP, plain)
            for rows_IK in torch.eye(groups * GROUP, dtype=torch.bfloat16).split(GROUP)
        ]
        numbers_NGI = torch.stack([c.t()[: self.num_outputs] for c in columns], 1).to(torch.int8)
        scale_NG, offset_NG = (
            part.contiguous()
            for part in self.scale_offset_GN2.transpose(0, 1)[: self.num_outputs].unbind(-1)
        )
        return Rounded("int4", self.num_inputs, pack(numbers_NGI), scale_NG, offset_NG)
