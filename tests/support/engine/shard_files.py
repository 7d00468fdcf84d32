"""Shards written by hand, so that readers are tested without the stage that usually writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from llm_core.data.shards import LOSS_MASK, TokenShards, digest_tokens, open_shards


def write_split(
    folder: Path,
    shards: list[list[list[int]]],
    split: str = "train",
    seed: int = 0,
    sources: Sequence[str] = ("web",),
    metadata: Mapping[str, str] | None = None,
    loss_mask: Callable[[int], int] | None = None,
) -> None:
    """`shards` holds documents, which hold ids; documents take the sources in turn. metadata: what
    shards note besides. loss_mask: of the token at a place of the stream."""
    number, place, noted = 0, 0, dict(metadata or {})
    for k, documents in enumerate(shards):
        ids = [(number + i).to_bytes(16, "big") for i in range(len(documents))]
        names = [sources[(number + i) % len(sources)] for i in range(len(documents))]
        number += len(documents)
        masks = []
        for document in documents if loss_mask else []:
            masks.append([loss_mask(place + i) for i in range(len(document))])
            place += len(document)
        mask = {LOSS_MASK: pa.array(masks, pa.large_list(pa.uint8()))} if loss_mask else {}
        batch = pa.record_batch(
            {
                "tokens": pa.array(documents, pa.large_list(pa.uint16())),
                "id": pa.array(ids, pa.binary(16)),
                "source": pa.array(names, pa.string()),
                "language": pa.array(["en"] * len(documents), pa.string()),
                "num_bytes": pa.array([len(d) for d in documents], pa.int64()),
                "continues": pa.array([False] * len(documents), pa.bool_()),
                **mask,
            }
        )
        described = noted | {
            "split": split,
            "tokenizer_digest": "t",
            "config_digest": "c",
            "seed": str(seed),
            "eos_id": "0",
        }
        described |= {
            "num_tokens": str(sum(map(len, documents))),
            "num_shards": str(len(shards)),
            "shard": str(k),
        }
        described["tokens_digest"] = digest_tokens(batch["tokens"].flatten().to_numpy())
        batch = batch.replace_schema_metadata(described)
        with pa.ipc.new_file(folder / f"{split}-{k:05d}.arrow", batch.schema) as writer:
            writer.write_batch(batch)


def counting_stream(folder: Path, num_tokens: int, shard_tokens: int = 97) -> TokenShards:
    """A stream whose token at place i is i, over several shards."""
    folder.mkdir(parents=True, exist_ok=True)
    bounds = [*range(0, num_tokens, shard_tokens), num_tokens]
    write_split(folder, [[np.arange(a, b).tolist()] for a, b in pairwise(bounds)])
    return open_shards(folder, "train")
