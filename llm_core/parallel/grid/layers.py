"""Computes the layers of a model on a grid of processes: each has this one's part of a matrix, and
whole vectors, of which it uses a part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from llm_core.parallel.collectives import share, total
from llm_core.parallel.cuts import part_of

# B rows of this process · T tokens · D width of the model · d part of it · N inner features here


class Products(Protocol):
    """What `Summa` and `Cube` have in common."""

    def into(self, x_BTd: Tensor, weight_Nd: Tensor) -> Tensor: ...

    def out(self, x_BTN: Tensor, weight_dN: Tensor) -> Tensor: ...

    def embed(self, ids_BT: Tensor, weight_Nd: Tensor, first_id: int) -> Tensor: ...

    def of_stream(self, rows_BT: Tensor) -> Tensor:
        """Numbers of the tokens of inner activations → of those of the stream."""


@dataclass(frozen=True, eq=False)
class Share:
    """Features that the processes of a group share: those of the stream, or inner ones."""

    group: dist.ProcessGroup

    def of(self, vector: Tensor) -> Tensor:
        """This process's part of the last dim, a view."""
        part = part_of(vector.shape[-1], dist.get_rank(self.group), dist.get_world_size(self.group))
        return vector[..., part.start : part.stop]

    def sum(self, x: Tensor) -> Tensor:
        """Over the features of all, which gradients go back to from all."""
        return share(total(x, self.group), self.group)


class _GridLinear(nn.Module):
    def __init__(self, layer: nn.Linear, products: Products, outputs: Share) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.products, self.outputs = products, outputs

    def plus_bias(self, out: Tensor) -> Tensor:
        return out if self.bias is None else out + self.outputs.of(self.bias).to(out.dtype)


class GridInto(_GridLinear):
    """From the stream to heads, channels or ids."""

    def forward(self, x_BTd: Tensor) -> Tensor:
        return self.plus_bias(self.products.into(x_BTd, self.weight))


class GridOut(_GridLinear):
    """From heads or channels back to the stream."""

    def forward(self, x_BTN: Tensor) -> Tensor:
        return self.plus_bias(self.products.out(x_BTN, self.weight))


class GridRMSNorm(nn.Module):
    """`llm_core.model.norm.RMSNorm` of features that processes share."""

    def __init__(self, norm: nn.Module, width: Share) -> None:
        super().__init__()
        self.weight, self.eps, self.width = norm.weight, norm.eps, width

    def forward(self, x_BTd: Tensor) -> Tensor:
        wide_BTd = _precise(x_BTd)
        scale_BT1 = (self.mean(wide_BTd.square()) + self.eps).rsqrt()
        return (wide_BTd * scale_BT1 * self.width.of(self.weight)).to(x_BTd.dtype)

    def mean(self, x_BTd: Tensor) -> Tensor:
        """Over the features of all processes, mean_BT1."""
        return self.width.sum(x_BTd.sum(-1, keepdim=True)) / len(self.weight)


class GridLayerNorm(GridRMSNorm):
    """`llm_core.model.norm.LayerNorm` of features that processes share. The mean is taken first:
    the difference of mean squares would lose digits."""

    def __init__(self, norm: nn.LayerNorm, width: Share) -> None:
        super().__init__(norm, width)
        self.bias = norm.bias

    def forward(self, x_BTd: Tensor) -> Tensor:
        wide_BTd = _precise(x_BTd)
        centred_BTd = wide_BTd - self.mean(wide_BTd)
        scale_BT1 = (self.mean(centred_BTd.square()) + self.eps).rsqrt()
        normed_BTd = centred_BTd * scale_BT1 * self.width.of(self.weight)
        return (normed_BTd + self.width.of(self.bias)).to(x_BTd.dtype)


def _precise(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


class GridPositions(nn.Module):
    """Embeddings of places, whole on each process, which takes its own features."""

    def __init__(self, weight: nn.Parameter, width: Share, products: Products) -> None:
        super().__init__()
        self.weight, self.width, self.products = weight, width, products

    def forward(self, positions_BT: Tensor) -> Tensor:
        return F.embedding(self.products.of_stream(positions_BT), self.width.of(self.weight))


class GridEmbedding(nn.Module):
    """An embedding of whose ids a column has some, and a row some features."""

    def __init__(self, weight: nn.Parameter, first_id: int, products: Products) -> None:
        super().__init__()
        self.weight, self.first_id, self.products = weight, first_id, products

    def forward(self, ids_BT: Tensor) -> Tensor:
        return self.products.embed(ids_BT, self.weight, self.first_id)
