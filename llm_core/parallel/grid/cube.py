"""Multiplies on a cube of processes, each of which has a side³-th of all three matrices (Agarwal et
al. 1995; Bian et al. 2021).

Process (row i, column j, depth k) has of the stream the tokens (k, j) and the features i; of an
inner activation the tokens (k, i) and the features j; of a weight the inner features j and the
part (i, k) of the model's width. A layer gathers its tokens of depth k, the weight along the depth,
and scatters the sums of its products: rows and columns change places from layer to layer.

Elements that a process receives in both passes, of T tokens and side q; gathered tensors are kept
from forward to backward:

    2 (q - 1) / q³ · (T k_in + k_in k_out + T k_out)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from llm_core.model.precision import product_dtype
from llm_core.parallel.collectives import gather, scatter_sum
from llm_core.parallel.vocabulary import embed

# d part of the model's width that a block of the stream has · N inner features of this column


@dataclass(frozen=True, eq=False)
class Cube:
    """The products of a process of a cube. row, column: as of `Summa`, of one depth; depth: of
    processes of all depths."""

    row: dist.ProcessGroup
    column: dist.ProcessGroup
    depth: dist.ProcessGroup

    def into(self, x_BTd: Tensor, weight_Nd: Tensor) -> Tensor:
        """Features of the stream → inner features, out_BTN."""
        weight_Nd = gather(weight_Nd.to(product_dtype(weight_Nd)), 1, self.depth)
        x = gather(x_BTd.to(product_dtype(x_BTd)), 0, self.row)
        return scatter_sum(F.linear(x, weight_Nd), 0, self.column)

    def out(self, x_BTN: Tensor, weight_dN: Tensor) -> Tensor:
        """Inner features → features of the stream, out_BTd."""
        weight_dN = gather(weight_dN.to(product_dtype(weight_dN)), 0, self.depth)
        x = gather(x_BTN.to(product_dtype(x_BTN)), 0, self.column)
        return scatter_sum(F.linear(x, weight_dN), 0, self.row)

    def embed(self, ids_BT: Tensor, weight_Nd: Tensor, first_id: int) -> Tensor:
        """Features of the stream, out_BTd, of the ids of all of this depth; this column has
        some."""
        whole = gather(weight_Nd, 1, self.depth)
        return scatter_sum(embed(whole, ids_BT, first_id), 0, self.row)

    def of_stream(self, rows_BT: Tensor) -> Tensor:
        """Numbers of this process's inner tokens → of those of the stream."""
        rows = gather(rows_BT, 0, self.column)
        return rows.chunk(dist.get_world_size(self.row))[dist.get_rank(self.row)]
