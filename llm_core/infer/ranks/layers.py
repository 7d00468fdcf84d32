"""Computes with a part of each layer: sums go over all ranks, logits are gathered from them.

Cost per layer and pass: two sums of the residual stream; per pass one more for the embedding, and
one gather of the logits. Nothing here has a backward.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from llm_core.compat import all_gather_single
from llm_core.config import ConfigError
from llm_core.huggingface.export import read_config, read_weights
from llm_core.huggingface.files import read_tensors, read_values
from llm_core.huggingface.names import from_hugging_face
from llm_core.huggingface.rounded import is_rounded
from llm_core.infer.ranks.shares import Share, share_of
from llm_core.model.transformer import EMBEDDING, HEAD, Transformer
from llm_core.quantize.model import fill

# B batch · T tokens · D model width · N places · V vocabulary · S ids of this rank, padded


class SummedLinear(nn.Linear):
    """Each rank has other inputs; the outputs are sums, to which the bias is added once."""

    def forward(self, input: Tensor) -> Tensor:
        out = F.linear(input, self.weight)
        dist.all_reduce(out)
        return out if self.bias is None else out + self.bias


class SharedEmbedding(nn.Embedding):
    """Each rank has the rows of other ids."""

    first_id = 0

    def forward(self, input: Tensor) -> Tensor:
        rows_BT = input - self.first_id
        is_here_BT = (rows_BT >= 0) & (rows_BT < self.num_embeddings)
        found_BTD = F.embedding(rows_BT.clamp(0, self.num_embeddings - 1), self.weight)
        found_BTD = found_BTD.masked_fill(~is_here_BT[..., None], 0)
        dist.all_reduce(found_BTD)
        return found_BTD


class GatheredHead(nn.Linear):
    """Each rank computes the logits of other ids; all get all of them."""

    def __init__(self, dim: int, share: Share) -> None:
        super().__init__(dim, len(share.ids), bias=False)
        self.num_ranks, self.vocab_size = share.num_ranks, share.config.vocab_size

    def forward(self, input: Tensor) -> Tensor:
        each = -(-self.vocab_size // self.num_ranks)
        own = F.pad(F.linear(input, self.weight), (0, each - self.out_features))
        own_NS = own.reshape(-1, each).contiguous()
        all_RNS = own_NS.new_empty(self.num_ranks, *own_NS.shape)
        all_gather_single(all_RNS.flatten(0, 1), own_NS)
        all_NV = all_RNS.movedim(0, 1).flatten(1)[:, : self.vocab_size]
        return all_NV.unflatten(0, input.shape[:-1])


class SharedModel(Transformer):
    """One rank's part of a model. Every rank must call `hidden` and `logits` with the same."""

    def __init__(self, share: Share) -> None:
        super().__init__(share.config)
        self.share, config = share, share.config
        for block in self.own_blocks:
            attention, ffn = block.attention, block.ffn
            attention.out = SummedLinear(config.attention_dim, config.dim, bias=config.out_bias)
            ffn.down = SummedLinear(config.ffn_dim, config.dim, bias=config.ffn_bias)
        self.embedding = SharedEmbedding(len(share.ids), config.dim)
        self.embedding.first_id = share.ids.start
        self.head = GatheredHead(config.dim, share)


def check_share(folder: Path, num_ranks: int) -> None:
    """Raises ConfigError where the folder's model cannot be shared by so many ranks; reads no
    weight."""
    if is_rounded(read_values(folder)):
        raise ConfigError(
            f"{folder} has rounded weights, whose groups are not shared among ranks; set"
            " tensor_parallel=1, or give the model that was rounded"
        )
    config = read_config(folder)
    share_of(config, 0, num_ranks)
    read_weights(folder, config)


def load_share(
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    rank: int,
    num_ranks: int,
    kind: type[SharedModel] = SharedModel,
) -> SharedModel:
    """This rank's part of the model of a checked Hugging Face folder, in evaluation mode.

    Files are mapped: only what is kept is read.
    """
    share = share_of(read_config(folder), rank, num_ranks)
    cut = {name: share.cut(name, whole) for name, whole in read_tensors(folder).items()}
    parts = from_hugging_face(share.config, cut)
    with torch.device("meta"):
        model = kind(share)

    def part(name: str) -> Tensor:
        found = parts[name]
        if name in (EMBEDDING, HEAD):
            found = found[share.ids.start : share.ids.stop]
        return found.contiguous()

    fill(model, part, dtype, device)
    return model
