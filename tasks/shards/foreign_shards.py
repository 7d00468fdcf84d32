"""Reads the documents of shards that another engine wrote as a table, and checks them against our
rules.

Reads `tasks.shards.exchange` forms; gives per split the columns `tokens`, `id`, `source`,
`language`, `num_bytes` and, with chats, `loss_mask`, one row per document. A document ends with the
end-of-text id, which is appended where it is missing; inside one it would be a border, so such
documents are an error, unless they have a loss mask: turns of chats may end with it. Ids that the
tokenizer has not are an error too. A document without tokens, or with end-of-text alone, is dropped
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
from llm_core.data.shards import LOSS_MASK
from tasks.corpus.documentset import ID, id_matrix
from tasks.runtime.stage import StageFailure
from tasks.shards.encoding import lists
from tasks.shards.exchange import READERS, SPLITS, has_split
from tasks.shards.foreign import ExchangeError, ForeignDocument
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
    splits, num_empty = {}, 0
    try:
        for split in SPLITS if has_split(form, folder, "validation") else ("train",):
            documents = READERS[form](folder, split)
            splits[split], without_tokens = _table(documents, split, form, model, dtype)
            num_empty += without_tokens
    except ExchangeError as error:
        raise StageFailure(f"shards.path: {error}") from error
    if "validation" in splits:
        return ForeignShards(splits, num_empty)
    table = splits["train"]
    ids = id_matrix(table["id"])
    held_out = hash_ids(ids, 0) % np.uint64(HELD_OUT_EVERY) == 0
    # A small corpus may have none below the threshold; training needs something to validate on.
    if len(ids) > 1 and not held_out.any():
        held_out[np.argmin(hash_ids(ids, 0))] = True
    train, validation = (table.filter(pa.array(rows)) for rows in (~held_out, held_out))
    return ForeignShards({"train": train, "validation": validation}, num_empty)


def _table(
    documents: Iterable[ForeignDocument], split: str, form: str, model: Tokenizer, dtype: np.dtype
) -> tuple[pa.Table, int]:
    """The documents of a split, and how many were empty. Numbers in ids and messages count both."""
    pieces: list[np.ndarray] = []
    masks: list[np.ndarray | None] = []
    num_empty = 0
    facts: dict[str, list[object]] = {name: [] for name, _ in SCHEMA}
    for number, document in enumerate(documents):
        tokens = np.asarray(document.tokens).astype(np.int64)
        what = f"document {number} of split {split}"
        foreign = tokens[(tokens < 0) | (tokens >= model.vocab_size)]
        if len(foreign):
            raise StageFailure(
                f"{what} has id {foreign[0]}, but the tokenizer has only {model.vocab_size} ids;"
                " give the tokenizer that made them, with tokenizer=import tokenizer.path=FILE"
            )
        if not len(tokens) or (len(tokens) == 1 and tokens[0] == model.eos_id):
            num_empty += 1
            continue
        mask = None if document.loss_mask is None else np.asarray(document.loss_mask) != 0
        if tokens[-1] != model.eos_id:
            tokens = np.append(tokens, model.eos_id)
            mask = None if mask is None else np.append(mask, mask[-1])
        masks.append(mask)
        if mask is None and np.any(tokens[:-1] == model.eos_id):
            raise StageFailure(
                f"{what} has end-of-text ({model.eos_id}) before its end; set tokenizer.eos_token"
                " to the token that ends documents there"
            )
        pieces.append(tokens.astype(dtype))
        digest = hashlib.blake2b(f"{split} {number} ".encode() + tokens.tobytes(), digest_size=16)
        facts["id"].append(document.id or digest.digest())
        facts["source"].append(document.source or form)
        facts["language"].append(document.language)
        facts["num_bytes"].append(int(model.bytes_per_token[tokens].sum()))
    offsets = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
    flat = np.concatenate([np.zeros(0, dtype), *pieces])
    columns = {"tokens": lists(offsets, flat)}
    columns |= {name: pa.array(facts[name], kind) for name, kind in SCHEMA}
    if any(mask is not None for mask in masks):
        learnt = [
            np.ones(len(piece), bool) if mask is None else mask
            for piece, mask in zip(pieces, masks, strict=True)
        ]
        columns[LOSS_MASK] = lists(offsets, np.concatenate(learnt).astype(np.uint8))
    return pa.table(columns), num_empty
