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
(llm_core.parallel.overlap) takes both apart. Where there are more processes than key/value heads,
several compute each of them: they hold equal parts of its rows and of those of its queries, gather
these for each pass, and add up their gradients on the way back. So weights, gradients and
checkpoints know no copies; it costs the exchange of one head's part of `qkv`.
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.nn import functional as F

from llm_core.model.adapter import is_factor
from llm_core.model.attention import Attention
from llm_core.model.experts.feed_forward import SparseFeedForward
from llm_core.model.lora import AdaptedLinear, product
from llm_core.model.loss import CrossEntropy
from llm_core.model.precision import product_dtype
from llm_core.model.transformer import Transformer
from llm_core.parallel.collectives import gather, scatter_sum, share, total
from llm_core.parallel.cuts import cut_dim, part_of
from llm_core.parallel.overlap import Overlap
from llm_core.parallel.vocabulary import embed, token_losses

# B rows · T tokens · D model width · n processes

PER_HEAD = re.compile(r"attention\.[qk]_norm\.")
"""Whole weights that each process uses on its own heads alone."""
OF_EXPERTS = re.compile(r"ffn\.(router|shared_gate)\.")
"""Whole weights whose gradient on each process is that through its own experts."""


def cut_weights(model: Transformer, part: Callable[[str, Tensor], Tensor]) -> None:
    """Leave of each weight the part that this process has, as a meta tensor.

    part: of (name, weight); the weight itself where nothing is cut.
    """
    # By parameter and not by name, so that tied weights stay one.
    cut: dict[nn.Parameter, nn.Parameter] = {}
    for name, weight in list(model.named_parameters(remove_duplicate=False)):
        own = part(name, weight)
        if own is weight:
            continue
        if weight not in cut:
            cut[weight] = nn.Parameter(torch.empty_like(own, device="meta"))
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, cut[weight])


@dataclass(frozen=True, eq=False)
class TensorShards:
    """This process among those that share each layer."""

    group: dist.ProcessGroup
    sequence: bool = True
    overlap: Overlap | None = None
    """How exchanges run beside products, with `sequence`; None: one after another."""
    of_head: dist.ProcessGroup | None = None
    """Processes that compute the same key/value head; None: each has heads of its own."""

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

    def placements(self, name: str) -> tuple[tuple[str, Placement], ...]:
        """(axis of the mesh, how it cuts the weight of this name)."""
        dim = cut_dim(name)
        return (("tp", Replicate() if dim is None else Shard(dim)),)

    @property
    def cutting(self) -> list[dist.ProcessGroup]:
        """Groups that have different parts of a weight that is cut."""
        return [self.group]

    def unsummed(self, name: str) -> dist.ProcessGroup | None:
        """The group of which each process has of a whole weight its own tokens' or heads' gradient
        only; of a factor, that of its part of the layer. None: backward has summed it."""
        if cut_dim(name) is not None:
            return None
        per_process = PER_HEAD.search(name) or OF_EXPERTS.search(name)
        is_partial = self.sequence or is_factor(name) or per_process is not None
        return self.group if is_partial else None

    def loss(self, vocab_size: int, z_loss: float = 0.0) -> CrossEntropy:
        """The loss from logits of this process's part of the vocabulary."""
        first_id = part_of(vocab_size, self.rank, self.size).start
        return partial(token_losses, z_loss=z_loss, first_id=first_id, group=self.group)

    def apply(self, model: Transformer, parts: Iterable[Transformer] = ()) -> None:
        """Cut the weights of a model and let its layers exchange. Weights become meta tensors.

        parts: of a pipeline, models over the same blocks, which get the same embedding.
        """
        cut_weights(model, self.cut)
        for block in model.own_blocks:
            block.attention.qkv = self._projection(block.attention)
            block.attention.out = CutInputs(block.attention.out, self)
            if isinstance(block.ffn, SparseFeedForward):
                self._share_experts(block.ffn)
                continue
            setattr(block.ffn, block.ffn.into_name, CutOutputs(block.ffn.into, self))
            block.ffn.down = CutInputs(block.ffn.down, self)
        if model.embedding is not None:
            first_id = part_of(model.config.vocab_size, self.rank, self.size).start
            embedding = CutEmbedding(model.embedding.weight, first_id, self)
            learned = self.sequence and model.config.positions == "learned"
            positions = CutPositions(model.positions.weight, self) if learned else None
            for one in (model, *parts):
                if self.sequence:
                    one.own_tokens = self.own_tokens
                if one.embedding is not None:
                    one.embedding = embedding  # type: ignore[assignment]
                    if positions is not None:
                        one.positions = positions  # type: ignore[assignment]

    def own_tokens(self, whole_BT: Tensor) -> Tensor:
        """The columns of this process, where tokens of the residual stream are cut."""
        each = whole_BT.shape[1] // self.size
        return whole_BT[:, self.rank * each : (self.rank + 1) * each]

    def _share_experts(self, ffn: SparseFeedForward) -> None:
        """Each process computes its experts, and its channels of the shared one, for all tokens."""
        ffn.enter, ffn.leave, ffn.adds_losses = self.enter, self.leave, self.rank == 0
        ffn.experts.first = part_of(ffn.config.number, self.rank, self.size).start

    def _projection(self, attention: Attention) -> CutOutputs:
        if self.of_head is None:
            return CutOutputs(attention.qkv, self)
        attention.group_size //= dist.get_world_size(self.of_head)
        return CopiedKeys(attention.qkv, self, self.of_head, attention.head_dim)

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
        self.lora = layer.lora if isinstance(layer, AdaptedLinear) else None

    def plus_factors(self, out: Tensor, x: Tensor) -> Tensor:
        """With what an adapter adds here, where there is one."""
        return out if self.lora is None else out + self.lora(x)


def plus_bias(out_BTD: Tensor, bias: Tensor | None) -> Tensor:
    return out_BTD if bias is None else out_BTD + bias.to(out_BTD.dtype)


class CutOutputs(CutLinear):
    """Each process computes other outputs."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        shards, weight = self.shards, self.own(self.weight)
        bias = None if self.bias is None else self.own(self.bias)
        if shards.overlap is None:
            x_BTD = shards.enter(x_BTD)
            return self.plus_factors(product(x_BTD, weight, bias), x_BTD)
        return plus_bias(shards.overlap.enter(x_BTD, weight), bias)

    def own(self, held: Tensor) -> Tensor:
        """The rows whose outputs this process computes, from those it holds."""
        return held


class CopiedKeys(CutOutputs):
    """Queries of this process, with a key/value head that others compute too."""

    def __init__(
        self, layer: nn.Linear, shards: TensorShards, group: dist.ProcessGroup, head_dim: int
    ) -> None:
        super().__init__(layer, shards)
        self.group, self.keys = group, 2 * head_dim

    def own(self, held: Tensor) -> Tensor:
        rows = gather(held.to(product_dtype(held)), 0, self.group)
        queries, keys = rows[: -self.keys], rows[-self.keys :]
        part = queries.chunk(dist.get_world_size(self.group))[dist.get_rank(self.group)]
        return torch.cat((part, keys))


class CutInputs(CutLinear):
    """Each process has other inputs."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        shards = self.shards
        if shards.overlap is None:
            addends_BTD = self.plus_factors(product(x_BTD, self.weight), x_BTD)
            return plus_bias(shards.leave(addends_BTD), self.bias)
        return plus_bias(shards.overlap.leave(x_BTD, self.weight), self.bias)


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
        return F.embedding(self.shards.own_tokens(positions_BT), self.weight)
