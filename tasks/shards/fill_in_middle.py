"""Moves the middle of a document behind what follows it, so that a model learns to fill gaps.

Bavarian et al. 2022, "Efficient Training of Language Models to Fill in the Middle": two places,
drawn from the characters of a document, part it into prefix, middle and suffix, which are encoded
apart. P, S and M are control tokens:

| form | ids |
|---|---|
| PSM | P prefix S suffix M middle |
| SPM | P S suffix M prefix middle |

Which documents, where they part and in which form is a hash of their id: the same for any order and
number of workers. Validation stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llm_core.config import ConfigError
from llm_core.data.order import hash_ids, mix
from tasks.runtime.stage import StageFailure
from tasks.tokenizer.encoder import Tokenizer

CONTROLS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
)
"""P, S and M as Qwen and StarCoder call them."""


@dataclass(frozen=True)
class FillInMiddleConfig:
    """Which documents are parted, and how."""

    rate: float = 0.0
    """Share of the training documents. 0: none."""
    spm_frac: float = 0.5
    """Share of those in the form suffix, prefix, middle; the others are prefix, suffix, middle."""
    sources: tuple[str, ...] = ()
    """Sources whose documents are parted. Empty: all."""

    def __post_init__(self) -> None:
        for name in ("rate", "spm_frac"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} ({getattr(self, name):g}) must be from 0 to 1; try 0.5")


class FillInMiddle:
    """Encodes documents with their middle last. Raises StageFailure where the tokenizer has no
    control tokens for that."""

    def __init__(self, config: FillInMiddleConfig, model: Tokenizer, seed: int) -> None:
        self._config, self._model, self._seed = config, model, seed
        found = [[model.id_of(token) for token in triple] for triple in CONTROLS]
        whole = [ids for ids in found if None not in ids]
        if not whole or model.drops_first_space:
            tokens = ", ".join(CONTROLS[0])
            raise StageFailure(
                "shards.fill_in_middle needs a tokenizer without a space before texts and with"
                f" {tokens}; set tokenizer.special_tokens, or shards.fill_in_middle.rate=0"
            )
        self.control_ids: list[int] = [id for id in whole[0] if id is not None]

    def choose(self, ids: np.ndarray, sources: Sequence[str | None]) -> np.ndarray:
        """uint64 hash of each document that is parted, 0 for the others. ids: uint8[rows, 16]."""
        hashes = mix(hash_ids(ids, self._seed) ^ np.uint64(0xD1B54A32D192ED03)) | np.uint64(1)
        wanted = hashes.astype(np.float64) / 2.0**64 < self._config.rate
        if self._config.sources:
            wanted &= np.isin(np.array(sources, object), self._config.sources)
        return np.where(wanted, hashes, np.uint64(0))

    def encode(self, text: str, chosen: np.uint64) -> tuple[np.ndarray, bytes]:
        """(ids without the end of text, the bytes that they stand for, in their order)."""
        draws = mix(chosen + np.arange(1, 4, dtype=np.uint64))
        first, second = sorted((draws[:2] % np.uint64(len(text) + 1)).tolist())
        pieces = text[:first], text[first:second], text[second:]
        prefix, middle, suffix = self._model.encode_batch(pieces)
        P, S, M = ([id] for id in self.control_ids)
        if float(draws[2]) / 2.0**64 < self._config.spm_frac:
            order, ids = (2, 0, 1), [P, S, suffix, M, prefix, middle]
        else:
            order, ids = (0, 2, 1), [P, prefix, S, suffix, M, middle]
        raw = "".join(pieces[k] for k in order).encode()
        return np.concatenate([np.asarray(some, np.int64) for some in ids]), raw
