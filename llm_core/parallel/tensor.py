"""Shares each layer among processes: each holds some heads, some channels of the feed-forward, some
of the vocabulary.

| weight (llm_core.parallel.cuts) | then |
|---|---|
| cut by rows | each computes its heads, channels or logits from all tokens |
| cut by columns, and the embedding, where ids of others give zeros | outputs are summed over processes |

(Shoeybi et al. 2019.) With `sequence` the residual stream between these is cut along tokens: sums
leave each process its own tokens, and the next projection gathers them (Korthikanti et al. 2022);
the same bytes are sent, norms and the stream cost 1 / n. Weights are plain tensors of this
process's part, so FSDP, DDP and optimizers work on them as on any; `llm_core.parallel.places` says
what they are part of. Parts need not be equal: of 51 ids four processes hold 13, 13, 13 and 12.
Cost per layer and process: two gathers and two sums of the residual stream forward, as many
backward. They wait for the products and these for them, unless `overlap`
(llm_core.parallel.overlap) takes both apart.
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from llm_core.model.loss import CrossEntropy
from llm_core.model.transformer import Transformer
from llm_core.parallel.collectives import gather, scatter_sum, share, total
from llm_core.parallel.cuts import cut_dim, part_of
from llm_core.parallel.overlap import Overlap
from llm_core.parallel.vocabulary import embed, token_losses

# B rows · T tokens · D model width · n processes

PER_HEAD = re.compile(r"attention\.[qk]_norm\.")
"""Whole weights that each process uses on its own heads alone."""


@dataclass(frozen=True, eq=False)
class TensorShards:
    """This process among those that share each layer."""

    group: dist.ProcessGroup
    sequence: bool = True
    overlap: Overlap | None = None
    """How exchanges run beside products, with `sequence`; None: one after another."""

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group)

    @property
    def size(self) -> int:
        return dist.get_world_size(self.group)

    def cut(self, name: str, whole: Tensor) -> Tensor:
        """This process's part of the weight of this name, a view."""
        dim = cut_dim(name)
        if dim is None:
            return whole
        part = part_of(whole.shape[dim], self.rank, self.size)
        return whole.narrow(dim, part.start, len(part))

    def is_partial(self, name: str) -> bool:
        """Whether each process has of a whole weight its own tokens' or heads' gradient only."""
        return cut_dim(name) is None and (self.sequence or PER_HEAD.search(name) is not None)

    def loss(self, vocab_size: int, z_loss: float = 0.0) -> CrossEntropy:
        """The loss from logits of this process's part of the vocabulary."""
        first_id = part_of(vocab_size, self.rank, self.size).start
        return partial(token_losses, z_loss=z_loss, first_id=first_id, group=self.group)

    def apply(self, model: Transformer, parts: Iterable[Transformer] = ()) -> None:
        """Cut the weights of a model and let its layers exchange. Weights become meta tensors.

        parts: of a pipeline, models over the same blocks, which get the same embedding.
        """
        # By parameter and not by name, so that tied weights stay one.
        cut: dict[nn.Parameter, nn.Parameter] = {}
        for name, weight in list(model.named_parameters(remove_duplicate=False)):
            if cut_dim(name) is None:
                continue
            if weight not in cut:
                cut[weight] = nn.Parameter(torch.empty_like(self.cut(name, weight), device="meta"))
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, cut[weight])
        for block in model.own_blocks:
            block.attention.qkv = CutOutputs(block.attention.qkv, self)
            block.attention.out = CutInputs(block.attention.out, self)
            setattr(block.ffn, block.ffn.into_name, CutOutputs(block.ffn.into, self))
            block.ffn.down = CutInputs(block.ffn.down, self)
        if model.embedding is not None:
            first_id = part_of(model.config.vocab_size, self.rank, self.size).start
            embedding = CutEmbedding(model.embedding.weight, first_id, self)
            learned = self.sequence and model.config.positions == "learned"
            positions = CutPositions(model.positions.weight, self) if learned else None
            for one in (model, *parts):
                if one.embedding is not None:
                    one.embedding = embedding  # type: ignore[assignment]
                    if positions is not None:
                        one.positions = positions  # type: ignore[assignment]

    def enter(self, x_BTD: Tensor) -> Tensor:
        """The residual stream → all tokens of it, for layers with other outputs on each process."""
        return gather(x_BTD, 1, self.group) if self.sequence else share(x_BTD, self.group)

    def leave(self, x_BTD: Tensor) -> Tensor:
        """Addends of all tokens → the residual stream."""
        return scatter_sum(x_BTD, 1, self.group) if self.sequence else total(x_BTD, self.group)


class CutLinear(nn.Module):
    """A linear layer that processes share: this one's part of its weight, and its exchanges."""

    def __init__(self, layer: nn.Linear, shards: TensorShards) -> None:
        super().__init__()
        self.weight, self.bias, self.shards = layer.weight, layer.bias, shards

    def plus_bias(self, out_BTD: Tensor) -> Tensor:
        return out_BTD if self.bias is None else out_BTD + self.bias.to(out_BTD.dtype)


class CutOutputs(CutLinear):
    """Each process computes other outputs."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        shards = self.shards
        if shards.overlap is None:
            return F.linear(shards.enter(x_BTD), self.weight, self.bias)
        return self.plus_bias(shards.overlap.enter(x_BTD, self.weight))


class CutInputs(CutLinear):
    """Each process has other inputs."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        shards = self.shards
        if shards.overlap is None:
            return self.plus_bias(shards.leave(F.linear(x_BTD, self.weight)))
        return self.plus_bias(shards.overlap.leave(x_BTD, self.weight))


class CutEmbedding(nn.Module):
    """An embedding of which each process has the rows of other ids."""

    def __init__(self, weight: nn.Parameter, first_id: int, shards: TensorShards) -> None:
        super().__init__()
        self.weight, self.first_id, self.shards = weight, first_id, shards

    def forward(self, ids_BT: Tensor) -> Tensor:
        return self.shards.leave(embed(self.weight, ids_BT, self.first_id))


class CutPositions(nn.Module):
    """Embeddings of places, whole on each process, which takes those of its own tokens."""

    def __init__(self, weight: nn.Parameter, shards: TensorShards) -> None:
        super().__init__()
        self.weight, self.shards = weight, shards

    def forward(self, positions_BT: Tensor) -> Tensor:
        each, rank = positions_BT.shape[1] // self.shards.size, self.shards.rank
        return F.embedding(positions_BT[:, rank * each : (rank + 1) * each], self.weight)
