"""How does one layer run on several processes? Each holds some heads, some channels of the
feed-forward, some of the vocabulary.

| weight | cut along | then |
|---|---|---|
| attention.qkv, ffn.gate_up, ffn.up, head | rows (outputs) | each computes its heads, channels or logits from all tokens |
| attention.out, ffn.down | columns (inputs) | outputs are summed over processes |
| embedding | rows (ids) | ids of others give zeros; outputs are summed |
| norms, positions, biases of sums | whole | |

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
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from llm_core.model.loss import CrossEntropy
from llm_core.model.transformer import SwiGLU, Transformer
from llm_core.parallel.collectives import gather, scatter_sum, share, total
from llm_core.parallel.overlap import Overlap
from llm_core.parallel.vocabulary import embed, token_losses

# B rows · T tokens · D model width · n processes

ROWS = re.compile(r"attention\.qkv\.|ffn\.(gate_up|up)\.|^head\.|^embedding\.")
COLUMNS = re.compile(r"(attention\.out|ffn\.down)\.weight$")
PER_HEAD = re.compile(r"attention\.[qk]_norm\.")
"""Whole weights that each process uses on its own heads alone."""


def cut_dim(name: str) -> int | None:
    """The dim along which processes share the weight of this name; None: each has it whole."""
    return 0 if ROWS.search(name) else 1 if COLUMNS.search(name) else None


def part_of(length: int, rank: int, size: int) -> range:
    """The run of a dim that belongs to a process: equal runs, of which the last may be short."""
    each = -(-length // size)
    return range(min(rank * each, length), min((rank + 1) * each, length))


@dataclass(frozen=True, eq=False)
class TensorShards:
    """This process among those that share each layer."""

    group: dist.ProcessGroup
    sequence: bool = True
    overlap: Overlap | None = None
    """How exchanges of the residual stream run beside products, with `sequence`; None: one after
    another."""

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
        """Whether a whole weight has on each process the gradient of its own tokens or heads
        only."""
        return cut_dim(name) is None and (self.sequence or PER_HEAD.search(name) is not None)

    def loss(self, vocab_size: int) -> CrossEntropy:
        """The loss from logits of this process's part of the vocabulary."""
        return partial(
            token_losses, first_id=part_of(vocab_size, self.rank, self.size).start, group=self.group
        )

    def apply(self, model: Transformer) -> None:
        """Cut the weights of a model (or of a pipeline's stage) and let its layers exchange.
        Weights become meta tensors."""
        cut: dict[nn.Parameter, nn.Parameter] = {}
        for name, weight in list(model.named_parameters(remove_duplicate=False)):
            if cut_dim(name) is None:
                continue
            if weight not in cut:
                cut[weight] = nn.Parameter(torch.empty_like(self.cut(name, weight), device="meta"))
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, cut[weight])
        for block in model.blocks:
            if block is not None:
                into = block.ffn.gate_up if isinstance(block.ffn, SwiGLU) else block.ffn.up
                # Classes, not functions put on layers: a compiler would make a graph for every one
                # of those.
                for layer in (block.attention.qkv, into):
                    layer.__class__, layer.shards = CutOutputs, self
                for layer in (block.attention.out, block.ffn.down):
                    layer.__class__, layer.shards = CutInputs, self
        if model.embedding is not None:
            first_id = part_of(model.config.vocab_size, self.rank, self.size).start
            model.embedding.forward = partial(self._embed, model.embedding, first_id)
            if self.sequence and model.config.positions == "learned":
                model.positions.forward = partial(self._positions, model.positions)

    def enter(self, x_BTD: Tensor) -> Tensor:
        """The residual stream → all tokens of it, for a layer of which each process computes other
        outputs."""
        return gather(x_BTD, 1, self.group) if self.sequence else share(x_BTD, self.group)

    def leave(self, x_BTD: Tensor) -> Tensor:
        """Addends of all tokens → the residual stream."""
        return scatter_sum(x_BTD, 1, self.group) if self.sequence else total(x_BTD, self.group)

    def outputs(self, layer: nn.Linear, x_BTD: Tensor) -> Tensor:
        if self.overlap is None:
            return F.linear(self.enter(x_BTD), layer.weight, layer.bias)
        return _plus_bias(self.overlap.enter(x_BTD, layer.weight), layer)

    def inputs(self, layer: nn.Linear, x_BTD: Tensor) -> Tensor:
        if self.overlap is None:
            return _plus_bias(self.leave(F.linear(x_BTD, layer.weight)), layer)
        return _plus_bias(self.overlap.leave(x_BTD, layer.weight), layer)

    def _embed(self, layer: nn.Embedding, first_id: int, ids_BT: Tensor) -> Tensor:
        return self.leave(embed(layer.weight, ids_BT, first_id))

    def _positions(self, layer: nn.Embedding, positions_BT: Tensor) -> Tensor:
        each = positions_BT.shape[1] // self.size
        return F.embedding(positions_BT[:, self.rank * each : (self.rank + 1) * each], layer.weight)


class CutOutputs(nn.Linear):
    """A layer of which each process computes other outputs."""

    shards: TensorShards

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.shards.outputs(self, x_BTD)


class CutInputs(nn.Linear):
    """A layer of which each process has other inputs."""

    shards: TensorShards

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.shards.inputs(self, x_BTD)


def _plus_bias(out_BTD: Tensor, layer: nn.Linear) -> Tensor:
    return out_BTD if layer.bias is None else out_BTD + layer.bias.to(out_BTD.dtype)
