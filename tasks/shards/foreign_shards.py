"""Reads the documents of shards that another engine wrote as a table, and checks them against our
rules.

Reads `tasks.shards.exchange` forms; gives per split the columns `tokens`, `id`, `source`,
`language`, `num_bytes`, one row per document. A document ends with the end-of-text id, which is
appended where it is missing; inside one it would be a border, so such documents are an error, as
are ids that the tokenizer has not. A document without tokens, or with end-of-text alone, is dropped
and counted: its end-of-text would be a training token that no text stands for. Documents without an
id get a digest of their place and tokens. Where the other engine has no validation split, one
document in `HELD_OUT_EVERY`, by a hash of its id, is held out. Memory: one split.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from llm_core.data.order import hash_ids
from tasks.corpus.documentset import ID
from tasks.runtime.stage import StageFailure
from tasks.shards.exchange import READERS, ExchangeError, ForeignDocument, has_split
from tasks.tokenizer.encoder import Tokenizer

HELD_OUT_EVERY = 100
SCHEMA = (("id", ID), ("source", pa.string()), ("language", pa.string()), ("num_bytes", pa.int64()))


class ForeignShards(NamedTuple):
    """{split: its documents}, and how many had no tokens."""

    splits: dict[str, pa.Table]
    num_empty: int


def read_foreign(form: str, folder: Path, model: Tokenizer, dtype: np.dtype) -> ForeignShards:
    """The documents of a folder. Raises StageFailure on damaged files, and on tokens that are not
    of `model`."""
    try:
        if has_split(form, folder, "validation"):
            both = {
                split: _table(READERS[form](folder, split), split, form, model, dtype)
                for split in ("train", "validation")
            }
            return ForeignShards(
                {split: table for split, (table, _) in both.items()},
                sum(n for _, n in both.values()),
            )
        table, num_empty = _table(READERS[form](folder, "train"), "train", form, model, dtype)
    except ExchangeError as error:
        raise StageFailure(f"shards.path: {error}") from error
    ids = np.frombuffer(b"".join(table["id"].to_pylist()), np.uint8).reshape(-1, 16)
    held_out = hash_ids(ids, 0) % np.uint64(HELD_OUT_EVERY) == 0
    # A small corpus may have none below the threshold; training needs something to validate on.
    if len(ids) > 1 and not held_out.any():
        held_out[np.argmin(hash_ids(ids, 0))] = True
    splits = {
        "train": table.filter(pa.array(~held_out)),
        "validation": table.filter(pa.array(held_out)),
    }
    return ForeignShards(splits, num_empty)


def _table(
    documents: Iterable[ForeignDocument], split: str, form: str, model: Tokenizer, dtype: np.dtype
) -> tuple[pa.Table, int]:
    """The documents of a split, and how many were empty. Numbers in ids and messages count both."""
    pieces: list[np.ndarray] = []
    num_empty = 0
    facts: dict[str, list[object]] = {name: [] for name, _ in SCHEMA}
    for number, document in enumerate(documents):
        tokens = np.asarray(document.tokens).astype(np.int64)
        what = f"document {number} of split {split}"
        if len(tokens) and (tokens.min() < 0 or tokens.max() >= model.vocab_size):
            raise StageFailure(
                f"{what} has id"
                f" {tokens.max() if tokens.max() >= model.vocab_size else tokens.min()}, the"
                f" tokenizer has {model.vocab_size} ids; give the tokenizer they were made with,"
                " tokenizer=import tokenizer.path=FILE"
            )
        if not len(tokens) or (len(tokens) == 1 and tokens[0] == model.eos_id):
            num_empty += 1
            continue
        if tokens[-1] != model.eos_id:
            tokens = np.append(tokens, model.eos_id)
        if np.any(tokens[:-1] == model.eos_id):
            raise StageFailure(
                f"{what} has end-of-text ({model.eos_id}) before its end; set tokenizer.eos_token"
                " to theirs"
            )
        pieces.append(tokens.astype(dtype))
        digest = hashlib.blake2b(f"{split} {number} ".encode() + tokens.tobytes(), digest_size=16)
        facts["id"].append(document.id or digest.digest())
        facts["source"].append(document.source or form)
        facts["language"].append(document.language)
        facts["num_bytes"].append(int(model.bytes_per_token[tokens].sum()))
    offsets = np.cumsum([0] + [len(piece) for piece in pieces], dtype=np.int64)
    flat = np.concatenate(pieces) if pieces else np.zeros(0, dtype)
    columns = {"tokens": pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(flat))}
    return (
        pa.table(columns | {name: pa.array(facts[name], kind) for name, kind in SCHEMA}),
        num_empty,
    )
