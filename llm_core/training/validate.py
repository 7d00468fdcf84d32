"""Loss and bits per byte on a fixed sample of a split, weighted by tokens, equal for every layout
and micro batch.

Windows of `seq_len` tokens, each starting at the last token of the one before; where the split has
more than wanted, they are spread evenly over it. Bits per byte = nats of tokens that stand for
bytes / (ln 2 x their UTF-8 bytes): end-of-text and other special tokens count in neither sum. It
reads whole windows with no more context than the window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.data.batch import IGNORED, Batch
from llm_core.data.config import DataConfig
from llm_core.data.loader import Loader
from llm_core.data.shards import TokenShards
from llm_core.data.sources import largest
from llm_core.parallel.ranks import Ranks
from llm_core.training.preference.pairs import Pairs, of_chosen

DEFAULT = DataConfig()


@dataclass(frozen=True)
class ValidationSet:
    """Windows of a split; `bytes_per_token_V` gives the UTF-8 bytes of each token id."""

    ids_BT: Tensor
    targets_BT: Tensor
    bytes_per_token_V: Tensor
    documents_BT: Tensor | None = None
    """Which document of its window each token belongs to, where attention keeps them apart."""
    sources: tuple[str, ...] = ()
    """Names of the sources that are counted apart; none where all is of one."""
    sources_BT: Tensor | None = None
    """int64 place of each target's source among them."""
    references_B2: Tensor | None = None
    """Of pairs of answers, once they are computed (`llm_core.data.batch`)."""


@dataclass(frozen=True)
class ValidationResult:
    val_loss: float
    """Nats per token, special tokens included; of pairs of answers, their mean loss."""
    val_bpb: float
    """Of pairs, that of the chosen answers."""


def read_validation_set(
    shards: TokenShards,
    seq_len: int,
    max_sequences: int,
    bytes_per_token: np.ndarray,
    config: DataConfig = DEFAULT,
) -> ValidationSet:
    """Raises ConfigError when the split has no token to predict, or no pair."""
    if config.packing == "pairs":
        return _pairs_of_split(shards, seq_len, max_sequences, bytes_per_token, config)
    num_windows = math.ceil((shards.num_tokens - 1) / seq_len)
    if num_windows < 1:
        raise ConfigError(
            f"split {shards.split!r} has {shards.num_tokens} tokens, nothing to predict; give it"
            " more documents"
        )
    chosen = min(num_windows, max_sequences)
    tokens_BS = np.full((chosen, seq_len + 1), IGNORED, np.int64)
    for row in range(chosen):
        start = row * num_windows // chosen * seq_len
        window = shards.read(start, min(start + seq_len + 1, shards.num_tokens))
        tokens_BS[row, : len(window)] = window
    ids_BT = np.where(tokens_BS[:, :-1] == IGNORED, 0, tokens_BS[:, :-1])
    starts = np.arange(chosen) * num_windows // chosen * seq_len
    places_BT = np.minimum(starts[:, None] + 1 + np.arange(seq_len), shards.num_tokens - 1)
    if config.loss_on == "assistant":
        for row, start in enumerate(starts.tolist()):
            learnt = shards.read_loss_mask(start + 1, min(start + 1 + seq_len, shards.num_tokens))
            tokens_BS[row, 1 : 1 + len(learnt)][~learnt] = IGNORED
    targets_BT = torch.from_numpy(tokens_BS[:, 1:].copy())
    documents_BT = None
    if config.mask_documents:
        documents_BT = torch.from_numpy(shards.number_documents(ids_BT, starts))
    sources, sources_BT = sources_of(shards, places_BT, tokens_BS[:, 1:] != IGNORED)
    return ValidationSet(
        torch.from_numpy(ids_BT),
        targets_BT,
        torch.from_numpy(bytes_per_token),
        documents_BT,
        sources,
        sources_BT,
    )


def _pairs_of_split(
    shards: TokenShards,
    seq_len: int,
    max_sequences: int,
    bytes_per_token: np.ndarray,
    config: DataConfig,
) -> ValidationSet:
    loader = Loader(shards, seq_len, 1, 0, data=config)
    chosen = min(loader.num_samples, max_sequences)
    batch = loader.rows(np.arange(chosen) * loader.num_samples // chosen)
    table = torch.from_numpy(bytes_per_token)
    return ValidationSet(batch.ids_BT, batch.targets_BT, table, batch.documents_BT)


def padded_bytes_per_token(file: Path, vocab_size: int) -> np.ndarray:
    """Bytes per id, with zeros for ids that the model has and the tokenizer has not. Raises
    ConfigError for a file of another kind."""
    try:
        table = np.load(file, allow_pickle=False).astype(np.int64)
    except (ValueError, EOFError) as error:
        raise ConfigError(
            f"bytes_per_token ({file}) is not a table of numbers; give that of a tokenizer"
        ) from error
    if len(table) > vocab_size:
        raise ConfigError(
            f"model.vocab_size ({vocab_size}) must hold the {len(table)} ids of the tokenizer; 0"
            " takes them all"
        )
    return np.pad(table, (0, vocab_size - len(table)))


def sources_of(
    shards: TokenShards, places_BT: np.ndarray, counts_BT: np.ndarray
) -> tuple[tuple[str, ...], Tensor | None]:
    """(names, int64 sources_BT) of tokens at places of the stream; none if of one source."""
    names, source_of = shards.document_sources()
    _, stops = shards.document_bounds()
    sources_BT = source_of[np.searchsorted(stops, places_BT, "right")]
    tokens = np.bincount(sources_BT[counts_BT], minlength=len(names))
    shown, place = largest(names, tokens)
    return (shown, torch.from_numpy(place[sources_BT])) if len(shown) > 1 else ((), None)


def partial_sums(
    losses_BT: Tensor | None,
    targets_BT: Tensor,
    bytes_per_token_V: Tensor,
    sources_BT: Tensor | None = None,
    num_sources: int = 0,
) -> Tensor:
    """Float64 (1 + sources, 4) [nats, tokens, nats of tokens with bytes, bytes] of a micro batch,
    in all and by source.

    Zeros where its losses are elsewhere.
    """
    if losses_BT is None:
        return torch.zeros(1 + num_sources, 4, dtype=torch.float64, device=targets_BT.device)
    losses_BT = losses_BT.double()
    counted_BT = targets_BT != IGNORED
    bytes_BT = bytes_per_token_V[targets_BT.clamp(min=0)] * counted_BT
    of_bytes_BT = losses_BT * (bytes_BT > 0)
    whole = torch.stack(
        [losses_BT.sum(), counted_BT.sum().double(), of_bytes_BT.sum(), bytes_BT.sum().double()]
    )[None]
    if sources_BT is None:
        return whole
    # A product and not a scattered sum, whose order, and so its last bits, would not be fixed on a
    # GPU.
    of_each = torch.stack(
        [x.double().flatten() for x in (losses_BT, counted_BT, of_bytes_BT, bytes_BT)], dim=1
    )
    belongs = torch.arange(num_sources, device=targets_BT.device)[:, None] == sources_BT.flatten()
    return torch.cat([whole, belongs.double() @ of_each])


def pair_sums(
    losses_BT: Tensor, targets_BT: Tensor, bytes_per_token_V: Tensor, pairs: Pairs
) -> Tensor:
    """Float64 (2, 4) of a micro batch of pairs: as `partial_sums` with losses and number of pairs
    in place of those of tokens, then `Pairs.sums_4`."""
    chosen_BT = of_chosen(targets_BT, pairs.documents_BT)
    sums = partial_sums(losses_BT * (chosen_BT != IGNORED), chosen_BT, bytes_per_token_V)
    loss = pairs.losses(losses_BT, targets_BT, slice(None)).sum()
    sums[0, :2] = torch.stack([loss, pairs.sums_4[0]])
    return torch.cat([sums, pairs.sums_4[None]])


def micro_batches(data: ValidationSet, size: int, ranks: Ranks) -> list[Batch]:
    """This rank's share; as many on every rank: FSDP needs all in each."""
    whole = Batch(
        data.ids_BT, data.targets_BT, data.documents_BT, data.sources_BT, data.references_B2
    )

    def rows(start: int, stop: int) -> Batch:
        return Batch(*(None if part is None else part[start:stop] for part in whole))  # type: ignore[arg-type]

    batches = []
    for i in range(math.ceil(len(data.ids_BT) / (size * ranks.data_world))):
        start = (i * ranks.data_world + ranks.data_rank) * size
        batch = rows(start, start + size)
        if len(batch.ids_BT) == 0:  # past the end: a row that counts for nothing
            batch = rows(0, 1)
            batch = batch._replace(targets_BT=torch.full_like(batch.targets_BT, IGNORED))
        batches.append(batch)
    return batches


def result(sums: Tensor) -> ValidationResult:
    """Of a row of sums."""
    nats, tokens, nats_of_bytes, num_bytes = sums.tolist()
    return ValidationResult(nats / tokens, nats_of_bytes / (math.log(2) * max(1.0, num_bytes)))
