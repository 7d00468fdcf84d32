"""An encoder–decoder model: a source is read whole, and a target is predicted token by token."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from llm_core.model.init import drawn
from llm_core.model.loss import HeadLoss, whole_head_loss
from llm_core.model.masks import restarting_positions
from llm_core.seq2seq.batch import PADDING, Seq2SeqBatch
from llm_core.seq2seq.config import Seq2SeqConfig
from llm_core.seq2seq.dropout import Dropout, dropout_of
from llm_core.seq2seq.layers import SITES, Block, Keys, make_norm, own_keys
from llm_core.seq2seq.positions import RelativeBias, sinusoids

# B rows · S source tokens · T target tokens · K keys · D model width · V vocabulary

Source = list[tuple[Tensor, Tensor]]
"""For each layer of the decoder, k_BHSD and v_BHSD of the encoder's output."""


class Stack(nn.Module):
    """Blocks of an encoder or of a decoder."""

    def __init__(self, config: Seq2SeqConfig, num_layers: int, in_decoder: bool) -> None:
        super().__init__()
        self.in_decoder = in_decoder
        self.blocks = nn.ModuleList(Block(config, n, in_decoder) for n in range(num_layers))
        self.bias: RelativeBias | None = None
        self.norm: nn.Module | None = None
        if config.kind == "t5":
            self.bias = RelativeBias(config, both_ways=not in_decoder)
            self.norm = make_norm(config)

    def forward(
        self,
        x_BTD: Tensor,
        allowed_BTK: Tensor,
        drop: Dropout | None = None,
        source: Source | None = None,
        source_allowed_BTS: Tensor | None = None,
        keys: Keys = own_keys,
    ) -> Tensor:
        """The last keys are those of this pass."""
        num_keys, site = allowed_BTK.shape[-1], int(self.in_decoder)
        x_BTD = x_BTD if drop is None else drop(x_BTD, site)
        bias_1HTK = None
        if self.bias is not None:
            bias_1HTK = self.bias(range(num_keys - x_BTD.shape[1], num_keys), num_keys)
        for n, block in enumerate(self.blocks):
            of_layer = None if source is None else source[n]
            x_BTD = block(x_BTD, allowed_BTK, bias_1HTK, drop, of_layer, source_allowed_BTS, keys)
        if self.norm is None:
            return x_BTD
        x_BTD = self.norm(x_BTD)
        return x_BTD if drop is None else drop(x_BTD, SITES // 2 + site)


class EncoderDecoder(nn.Module):
    """Maps ids of sources and targets to scores of the next target tokens, or to losses."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        self.head_loss: HeadLoss = whole_head_loss
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.encoder = Stack(config, config.num_encoder_layers, in_decoder=False)
        self.decoder = Stack(config, config.num_decoder_layers, in_decoder=True)
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False)
        if config.tied_head:
            self.head.weight = self.embedding.weight

    def encode(
        self, source_BS: Tensor, documents_BS: Tensor, drop: Dropout | None = None
    ) -> Source:
        """Keys and values of the source for each layer of the decoder, computed once."""
        allowed_BSS = _same(documents_BS, documents_BS)
        x_BSD = self.embed(source_BS, restarting_positions(documents_BS))
        memory_BSD = self.encoder(x_BSD, allowed_BSS, drop)
        return [block.cross.keys_and_values(memory_BSD) for block in self.decoder.blocks]

    def embed(self, ids_BT: Tensor, positions_BT: Tensor) -> Tensor:
        """The residual stream before the first block; T5 has no positions in it."""
        x_BTD = self.embedding(ids_BT)
        if self.config.kind == "t5":
            return x_BTD  # type: ignore[no-any-return]
        dim = self.config.dim
        return x_BTD * math.sqrt(dim) + sinusoids(positions_BT, dim, x_BTD.dtype)  # type: ignore[no-any-return]

    def before_head(self, hidden_BTD: Tensor) -> Tensor:
        return hidden_BTD * self.config.dim**-0.5 if self.config.scaled_head else hidden_BTD

    def forward(
        self, batch: Seq2SeqBatch, dropout_seed: int | None = None, losses: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """logits_BTV; with `losses`, what `head_loss` gives: the loss summed over targets that
        count, and losses_BT without gradient.

        dropout_seed: of what is dropped; None drops nothing.
        """
        drops: list[Dropout | None] = [None, None]
        if dropout_seed is not None:
            share, numbers_B = self.config.dropout, batch.numbers_B
            drops = [
                dropout_of(share, dropout_seed, numbers_B, ids.shape[1])
                for ids in (batch.source_BS, batch.inputs_BT)
            ]
        documents_BT = batch.documents_BT
        source = self.encode(batch.source_BS, batch.source_documents_BS, drops[0])
        num_tokens = documents_BT.shape[1]
        causal_TT = torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril()
        hidden_BTD = self.decoder(
            self.embed(batch.inputs_BT, restarting_positions(documents_BT)),
            _same(documents_BT, documents_BT) & causal_TT.to(documents_BT.device),
            drops[1],
            source,
            _same(documents_BT, batch.source_documents_BS),
        )
        hidden_BTD = self.before_head(hidden_BTD)
        if not losses:
            return self.head(hidden_BTD)  # type: ignore[no-any-return]
        return self.head_loss(self.head, hidden_BTD, batch.targets_BT)


def _same(queries_BT: Tensor, keys_BK: Tensor) -> Tensor:
    """allowed_BTK: whether a key belongs to the query's pair. Padding attends nothing, and nothing
    attends it."""
    is_same = queries_BT[:, :, None] == keys_BK[:, None, :]
    return is_same & (keys_BK != PADDING)[:, None, :]


def init_weights(model: EncoderDecoder, seed: int) -> None:
    """Draw all weights as `llm_core.model.init.drawn` does, by their names.

    t5: as published (mesh-tensorflow): embedding and own head of variance 1, queries of 1 / (dim x
    head_dim), else 1 / inputs. transformer: matrices of 2 / (inputs + outputs) (Glorot and Bengio,
    2010), the embedding of 1 / dim.
    """
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.fill_(0.0 if name.endswith(".bias") else 1.0)
            else:
                shape = tuple(weight.shape)
                weight.copy_(drawn(name, shape, _std(model.config, name, shape), seed))


def _std(config: Seq2SeqConfig, name: str, shape: tuple[int, ...]) -> float:
    outputs, inputs = shape
    if config.kind == "transformer":
        is_embedding = name == "embedding.weight"
        return config.dim**-0.5 if is_embedding else math.sqrt(2 / (inputs + outputs))
    if name in ("embedding.weight", "head.weight"):
        return 1.0
    if name.endswith(".q.weight"):
        return float((config.dim * config.head_dim) ** -0.5)
    if name.endswith("bias.weight"):
        return float(config.dim**-0.5)
    return float(inputs**-0.5)
