"""Loss and bits per byte on a fixed sample of a split, weighted by tokens, equal for every layout and micro batch.

Windows of `seq_len` tokens, each starting at the last token of the one before; where the split has more than wanted, they are
spread evenly over it. Bits per byte = nats of tokens that stand for bytes / (ln 2 x their UTF-8 bytes): end-of-text and
other special tokens count in neither sum. It reads whole windows with no more context than the window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.loss import IGNORED, count_targets
from llm_core.parallel.ranks import Ranks
from llm_core.shards import TokenShards


@dataclass(frozen=True)
class ValidationSet:
    """Windows of a split; `bytes_per_token_V` gives the UTF-8 bytes of each token id."""

    ids_BT: Tensor
    targets_BT: Tensor
    bytes_per_token_V: Tensor
    documents_BT: Tensor | None = None
    """Which document of its window each token belongs to, where attention keeps them apart."""


@dataclass(frozen=True)
class ValidationResult:
    val_loss: float
    """Nats per token, special tokens included."""
    val_bpb: float


def read_validation_set(
    shards: TokenShards, seq_len: int, max_sequences: int, bytes_per_token: np.ndarray, mask_documents: bool = False
) -> ValidationSet:
    """Raises ConfigError when the split has no token to predict."""
    num_windows = math.ceil((shards.num_tokens - 1) / seq_len)
    if num_windows < 1:
        raise ConfigError(f"split {shards.split!r} has {shards.num_tokens} tokens, nothing to predict; give it more documents")
    chosen = min(num_windows, max_sequences)
    tokens_BS = np.full((chosen, seq_len + 1), IGNORED, np.int64)
    for row in range(chosen):
        start = row * num_windows // chosen * seq_len
        window = shards.read(start, min(start + seq_len + 1, shards.num_tokens))
        tokens_BS[row, : len(window)] = window
    ids_BT = np.where(tokens_BS[:, :-1] == IGNORED, 0, tokens_BS[:, :-1])
    targets_BT = torch.from_numpy(tokens_BS[:, 1:].copy())
    documents_BT = torch.from_numpy(np.cumsum(ids_BT == shards.eos_id, axis=1, dtype=np.int32)) if mask_documents else None
    return ValidationSet(torch.from_numpy(ids_BT), targets_BT, torch.from_numpy(bytes_per_token), documents_BT)


def partial_sums(losses_BT: Tensor | None, targets_BT: Tensor, bytes_per_token_V: Tensor) -> Tensor:
    """Float64 [nats, tokens, nats of tokens with bytes, bytes] of a micro batch; zeros where its losses are elsewhere."""
    if losses_BT is None:
        return torch.zeros(4, dtype=torch.float64, device=targets_BT.device)
    losses_BT = losses_BT.double()
    bytes_BT = bytes_per_token_V[targets_BT.clamp(min=0)] * (targets_BT != IGNORED)
    tokens = count_targets(targets_BT).double()
    return torch.stack([losses_BT.sum(), tokens, (losses_BT * (bytes_BT > 0)).sum(), bytes_BT.sum().double()])


def micro_batches(data: ValidationSet, size: int, ranks: Ranks) -> list[tuple[Tensor, ...]]:
    """This rank's share, (ids, targets) and documents where there are; the same number on every rank: FSDP needs all in each."""
    rounds = math.ceil(len(data.ids_BT) / (size * ranks.data_world))
    tensors = [data.ids_BT, data.targets_BT] + ([] if data.documents_BT is None else [data.documents_BT])
    batches = []
    for i in range(rounds):
        start = (i * ranks.data_world + ranks.data_rank) * size
        batch = [tensor[start : start + size] for tensor in tensors]
        if len(batch[0]) == 0:  # past the end: a row that counts for nothing
            batch = [tensor[:1] for tensor in tensors]
            batch[1] = torch.full_like(batch[1], IGNORED)
        batches.append(tuple(batch))
    return batches


def result(sums: Tensor) -> ValidationResult:
    nats, tokens, nats_of_bytes, num_bytes = sums.tolist()
    return ValidationResult(nats / tokens, nats_of_bytes / (math.log(2) * max(1.0, num_bytes)))
