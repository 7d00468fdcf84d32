"""Greedy decoding with two caches: keys and values of the source, computed once, and those of the
target so far."""

from __future__ import annotations

import torch
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.seq2seq.batch import PADDING
from llm_core.seq2seq.model import EncoderDecoder, Source


# B rows · S source tokens · Q tokens of this pass · K target tokens so far · V vocabulary
class Decoder:
    """Reads sources once, then targets in passes of any length, all rows at the same place.

    documents_BS: 0 for tokens of a source, `PADDING` after it. Memory: keys and values of
    max_tokens target tokens and of the sources, for each layer of the decoder.
    """

    def __init__(
        self, model: EncoderDecoder, source_BS: Tensor, documents_BS: Tensor, max_tokens: int
    ) -> None:
        config = model.config
        self.model, self.num_tokens, self.max_tokens = model, 0, max_tokens
        with torch.no_grad():
            self.source: Source = model.encode(source_BS, documents_BS)
        self.source_allowed_B1S = (documents_BS != PADDING)[:, None, :]
        sizes = config.num_decoder_layers, 2, len(source_BS), config.num_heads, max_tokens
        like = model.embedding.weight
        self.kept = like.new_empty(*sizes, config.head_dim)

    @torch.no_grad()
    def logits(self, ids_BQ: Tensor) -> Tensor:
        """logits_BQV of the tokens that follow these. Raises ConfigError beyond max_tokens."""
        begin, stop = self.num_tokens, self.num_tokens + ids_BQ.shape[1]
        if stop > self.max_tokens:
            raise ConfigError(
                f"max_tokens ({self.max_tokens}) must hold all {stop} target tokens; give a decoder"
                f" with max_tokens={stop}"
            )
        columns_Q = torch.arange(begin, stop, device=ids_BQ.device)
        allowed_1QK = (torch.arange(stop, device=ids_BQ.device) <= columns_Q[:, None])[None]
        model = self.model
        hidden_BQD = model.decoder(
            model.embed(ids_BQ, columns_Q[None]),
            allowed_1QK,
            None,
            self.source,
            self.source_allowed_B1S,
            self._extended,
        )
        self.num_tokens = stop
        return model.head(model.before_head(hidden_BQD))  # type: ignore[no-any-return]

    def _extended(self, layer: int, k_BHQD: Tensor, v_BHQD: Tensor) -> tuple[Tensor, Tensor]:
        begin, stop = self.num_tokens, self.num_tokens + k_BHQD.shape[2]
        k_BHKD, v_BHKD = self.kept[layer, :, :, :, :stop]
        k_BHKD[:, :, begin:], v_BHKD[:, :, begin:] = k_BHQD, v_BHQD
        return k_BHKD, v_BHKD


@torch.no_grad()
def greedy(
    model: EncoderDecoder, source_BS: Tensor, documents_BS: Tensor, max_tokens: int
) -> list[list[int]]:
    """The most probable next token of each source, again and again, until eos_id, which is left
    out, or max_tokens. Ties go to the lower id."""
    config = model.config
    decoder = Decoder(model, source_BS, documents_BS, max_tokens)
    ids_B1 = source_BS.new_full((len(source_BS), 1), config.pad_id)
    found, ended_B = [], torch.zeros(len(source_BS), dtype=torch.bool, device=source_BS.device)
    for _ in range(max_tokens):
        ids_B1 = decoder.logits(ids_B1).argmax(dim=-1)
        ended_B = ended_B | (ids_B1[:, 0] == config.eos_id)
        found.append(ids_B1)
        if ended_B.all():
            break
    rows = torch.cat([*found, torch.full_like(ids_B1, config.eos_id)], dim=1).tolist()
    return [row[: row.index(config.eos_id)] for row in rows]
