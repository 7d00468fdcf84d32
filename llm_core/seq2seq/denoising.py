"""Span corruption: spans of a text give way to sentinels, and the target is what they held (Raffel
et al., 2020, section 3.1.4).

A target begins with a sentinel and the first span, and has no sentinel after the last: a text ends
in a span, as in the code of the paper. Source and target end with eos_id. What is corrupted depends
on the seed and on the row's place in the order of all samples alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llm_core.config import ConfigError
from llm_core.data.loader import Loader
from llm_core.data.order import permute
from llm_core.data.shards import TokenShards
from llm_core.seq2seq.batch import Pair, Seq2SeqBatch, lay_out
from llm_core.seq2seq.config import Seq2SeqConfig


@dataclass(frozen=True)
class DenoisingConfig:
    """How much of a text is corrupted."""

    rate: float = 0.15
    """Share of tokens in spans."""
    mean_span: float = 3.0
    """Mean number of tokens in a span."""
    num_sentinels: int = 100
    """Ids at the end of the vocabulary; the first span has the last of them."""

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise ConfigError(f"rate ({self.rate}) must be above 0 and below 1; T5 has 0.15")
        if not self.mean_span >= 1:
            raise ConfigError(f"mean_span ({self.mean_span}) must be at least 1; T5 has 3")
        if self.num_sentinels < 1:
            raise ConfigError(
                f"num_sentinels ({self.num_sentinels}) must be at least 1; T5 has 100"
            )

    def counts(self, num_tokens: int) -> tuple[int, int]:
        """(tokens in spans, spans) of a text. At least one token stays, so a text of one has no
        span."""
        noise = min(max(round(num_tokens * self.rate), 1), max(num_tokens - 1, 0))
        spans = min(max(round(noise / self.mean_span), 1), noise, num_tokens - noise)
        return noise, spans

    def lengths(self, num_tokens: int) -> tuple[int, int]:
        """Tokens of source and target, with their ends."""
        noise, spans = self.counts(num_tokens)
        return num_tokens - noise + spans + 1, noise + spans + 1

    def text_tokens(self, source_len: int) -> int:
        """Tokens of the longest text whose source fits in source_len."""
        if source_len < self.lengths(2)[0]:
            raise ConfigError(
                f"source_len ({source_len}) must hold a token, a sentinel and the end; try 512"
            )
        num_tokens = 2
        while self.lengths(num_tokens + 1)[0] <= source_len:
            num_tokens += 1
        return num_tokens


def noise_mask(num_tokens: int, key: str, config: DenoisingConfig) -> np.ndarray:
    """bool (num_tokens,): which tokens are in spans. Spans and the stretches between them are
    drawn as partitions of their tokens, all equally likely; the text ends in a span."""
    noise, spans = config.counts(num_tokens)
    if not noise:
        return np.zeros(num_tokens, bool)
    kept = _parts(num_tokens - noise, spans, f"{key}:kept")
    dropped = _parts(noise, spans, f"{key}:dropped")
    lengths = np.stack([kept, dropped], axis=1).ravel()
    return np.repeat(np.arange(2 * spans) % 2 == 1, lengths)


def _parts(total: int, num_parts: int, key: str) -> np.ndarray:
    """int64 lengths of `num_parts` parts, none empty, that add up to `total`."""
    chosen = permute(np.arange(num_parts - 1), total - 1, key) if num_parts > 1 else np.zeros(0)
    borders = np.concatenate([[0], np.sort(chosen.astype(np.int64)) + 1, [total]])
    return np.diff(borders).astype(np.int64)


def corrupt(ids: np.ndarray, key: str, noise: DenoisingConfig, model: Seq2SeqConfig) -> Pair:
    """Source and target of a text. Raises ConfigError where it has more spans than sentinels."""
    mask = noise_mask(len(ids), key, noise)
    begins = mask & ~np.concatenate([[False], mask[:-1]])
    num_spans = int(begins.sum())
    if num_spans > noise.num_sentinels:
        raise ConfigError(
            f"num_sentinels ({noise.num_sentinels}) must be at least the {num_spans} spans of a"
            f" text of {len(ids)} tokens; raise it, or take shorter sources"
        )
    sentinels = model.vocab_size - 1 - np.arange(num_spans)
    source = ids.astype(np.int64)
    source[begins] = sentinels
    place = np.flatnonzero(begins)
    target = np.insert(ids.astype(np.int64), place, sentinels)
    in_target = np.insert(mask, place, True)
    end = [model.eos_id]
    return (
        np.concatenate([source[~mask | begins], end]),
        np.concatenate([target[in_target], end]),
    )


class Denoising:
    """Corrupted texts of one data-parallel rank, a pure function of the step: each row is a piece
    of the stream of tokens, as long as its source has room for."""

    def __init__(
        self,
        shards: TokenShards,
        source_len: int,
        global_batch_sequences: int,
        model: Seq2SeqConfig,
        noise: DenoisingConfig | None = None,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        """Raises ConfigError where the shards or the model use ids of sentinels."""
        self._noise, self._model, self._seed = noise or DenoisingConfig(), model, seed
        num_sentinels = self._noise.num_sentinels
        try:
            shards.check_ids(max(0, model.vocab_size - num_sentinels))
        except ConfigError as error:
            raise ConfigError(
                f"vocab_size ({model.vocab_size}) less num_sentinels ({num_sentinels}) leaves"
                f" {max(0, model.vocab_size - num_sentinels)} ids to texts, and split"
                f" {shards.split!r} has larger ones; raise vocab_size, or set num_sentinels lower"
            ) from error
        for name in ("pad_id", "eos_id"):
            if getattr(model, name) >= model.vocab_size - num_sentinels:
                raise ConfigError(
                    f"{name} ({getattr(model, name)}) is one of the last {num_sentinels} ids, which"
                    " are sentinels; raise vocab_size, or set num_sentinels lower"
                )
        text_tokens = self._noise.text_tokens(source_len)
        self._lengths = self._noise.lengths(text_tokens)
        self._loader = Loader(shards, text_tokens, global_batch_sequences, seed, rank, world)

    def batch(self, step: int) -> Seq2SeqBatch:
        """The rows of this rank."""
        rows = self._loader.batch(step)
        assert rows.numbers_B is not None
        numbers = rows.numbers_B.numpy()
        keys = [f"{self._seed}:{number}" for number in numbers.tolist()]
        pairs = [
            [corrupt(text, key, self._noise, self._model)]
            for text, key in zip(rows.targets_BT.numpy(), keys, strict=True)
        ]
        return lay_out(pairs, numbers, *self._lengths, self._model)
