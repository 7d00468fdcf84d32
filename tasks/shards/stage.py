"""Writes what training reads: documents as token ids in memory-mappable shards.

Columns in: `id`, `text`, `source`, `language`, `split`, `repeats`. Out: `<split>-00000.arrow` … for
`train` and `validation`, Arrow IPC, one record batch each: `tokens` large_list<uint16 or uint32>,
`id`, `source`, `language`, `num_bytes` int64, `continues` bool. A row is a document and ends with
the end-of-text id; a document is written `repeats` times. Documents are in the order of a keyed
hash of their ids, copies each have a place of their own, so neighbours in the stream have nothing
in common, unless `documents.group_key` makes groups of them (`tasks.shards.places`). The order
depends on nothing but ids and `seed`. The width is that of the tokenizer's largest id.

No shard holds more than `max_shard_tokens`. A shard is closed before a document that does not fit;
a document longer than a whole shard is cut: each of its rows but the last has `continues` true and
no end-of-text, and fills a shard of its own. `num_bytes` counts each row's own bytes, so it always
sums to the document.

Chats (`turns` in the documents) are written by the tokenizer's template, and every shard then has a
column `loss_mask` of uint8 beside `tokens`: 1 for what the assistant says, and for all of a plain
text (`tasks.shards.encoding`). Shards with pairs of answers say so (`PAIRS`).

Every document is decoded again and compared with its text. Parts are the files of
documents: encoded and sorted each on its own, then merged; memory is one shard and 32 bytes per
document.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from llm_core.data.order import hash_ids
from llm_core.data.shards import LOSS_MASK, PAIRS, REJECTED_TOKEN, digest_tokens
from llm_core.printing import get_logger
from tasks.corpus.documentset import ID, id_matrix, read_table
from tasks.corpus.groups import GROUP_COLUMN
from tasks.corpus.turns import TURNS_COLUMN, has_turns
from tasks.runtime.artifact import Artifact, check_accounting, digest_file
from tasks.runtime.keys import digest, key_config
from tasks.runtime.parts import Part, PartResult, RunParts, serial
from tasks.runtime.stage import StageFailure
from tasks.shards.config import ShardsConfig
from tasks.shards.earlier import link_earlier, write_order
from tasks.shards.encoding import DocumentEncoder, kept_tokenizer, lists, load_chats, loss_masks
from tasks.shards.exchange import SPLITS
from tasks.shards.fill_in_middle import FillInMiddle
from tasks.shards.foreign_shards import read_foreign
from tasks.shards.places import places_of_copies, sort_by_place
from tasks.tokenizer.encoder import TOKENIZER_FILE, Tokenizer, load_tokenizer
from tasks.tokenizer.files import CONFIG_FILE

logger = get_logger("tasks.shards.stage")


def write_shards(
    documents: Artifact,
    tokenizer: Artifact,
    out_dir: Path,
    config: ShardsConfig,
    run_parts: RunParts = serial,
) -> Artifact:
    """Encode every document and write the shards of each split.

    Deterministic for equal input and config, whatever the number of workers. Raises StageFailure
    when split `train` has no tokens.
    """
    tokenizer_digest = tokenizer.file_digest(TOKENIZER_FILE)
    if config.path is not None:
        files = {name: digest_file(path) for name, path in config.input_files().items()}
        payload = {"folder": str(config.path.resolve()), "tokenizer": str(tokenizer.path)}
        parts = [Part(config.form, digest([config.form, files, tokenizer_digest]), payload)]
    else:
        parts = _list_parts(documents, tokenizer, tokenizer_digest)
    results = run_parts(encode_part if config.path is None else import_part, parts, config, out_dir)

    model = load_tokenizer(tokenizer.path)
    read = sum(int(result.counters["documents"]) for result in results)
    empty = sum(int(result.counters.get("empty", 0)) for result in results)
    refusals = [result.counters["first_refusal"] for result in results if _refused(result)]
    refused = sum(map(_refused, results))
    metadata = {
        "tokenizer_digest": tokenizer_digest,
        "config_digest": digest(key_config(config)),
        "seed": str(config.seed),
        "eos_id": str(model.eos_id),
    }
    turn_ends = {id for result in results for id in result.counters.get("turn_end_ids", ())}
    if turn_ends:
        metadata["turn_end_ids"] = json.dumps(sorted(turn_ends))
    scheme = metadata | {"dtype": str(token_dtype(model.vocab_size))}
    earlier = link_earlier(config.earlier, out_dir, scheme, SPLITS)
    splits = {
        split: merge_split(results, split, out_dir, model, config, metadata, earlier[split])
        for split in SPLITS
    }
    write_order(out_dir, scheme, splits)
    if splits["train"]["documents"] == 0:
        without = f", {empty} of them without tokens" if empty else ""
        if refused:
            without += f", {refused} refused by the chat template, first {refusals[0]}"
        raise StageFailure(
            f"split train has no documents ({read} read{without},"
            f" {splits['validation']['documents']} in validation); loosen the filters or lower the"
            " validation share"
        )
    counters = {
        "read": read,
        "kept": read - empty - refused,
        "dropped": {"EMPTY": empty} | ({"REFUSED_BY_TEMPLATE": refused} if refused else {}),
        "quarantined": 0,
        "tokens": sum(s["tokens"] for s in splits.values()),
        "verified": sum(int(result.counters["verified"]) for result in results),
    }
    check_accounting("shards", counters)
    metrics: dict[str, Any] = {"splits": splits, "dtype": str(token_dtype(model.vocab_size))}
    if refusals:
        logger.warning("%s chats were refused by the template, first %s", refused, refusals[0])
        metrics["first_refusal"] = refusals[0]
    return Artifact(out_dir, "shards", counters, metrics)


def _list_parts(documents: Artifact, tokenizer: Artifact, tokenizer_digest: str) -> list[Part]:
    """One part per file of documents. Raises StageFailure where chats have no template."""
    parts = []
    for file in documents.files("part-*.parquet"):
        content = [documents.file_digest(file.name), tokenizer_digest]
        if chats := has_turns(file):
            load_chats(tokenizer.path, load_tokenizer(tokenizer.path))
            content.append(tokenizer.file_digest(CONFIG_FILE))
        payload = {"documents": str(file), "tokenizer": str(tokenizer.path), "chats": chats}
        parts.append(Part(file.name, digest(content), payload))
    return parts


def _refused(result: PartResult) -> int:
    return int(result.counters.get("refused", 0))


def token_dtype(vocab_size: int) -> np.dtype:
    """The narrowest of uint16 and uint32 that holds the largest id."""
    return np.dtype(np.uint16 if vocab_size - 1 <= np.iinfo(np.uint16).max else np.uint32)


def encode_part(part: Part, directory: Path, config: ShardsConfig) -> Mapping[str, Any]:
    """Encode one file of documents into `<split>.arrow` files, each copy at the place its hash
    gives it."""
    model = kept_tokenizer(Path(part.payload["tokenizer"]))
    dtype = token_dtype(model.vocab_size)
    columns = ["id", "text", "source", "language", "split", "repeats"]
    chats = load_chats(Path(part.payload["tokenizer"]), model) if part.payload["chats"] else None
    if chats:
        columns.append(TURNS_COLUMN)
    is_grouped = GROUP_COLUMN in pq.read_schema(part.payload["documents"]).names
    source = read_table(part.payload["documents"], columns + [GROUP_COLUMN] * is_grouped)
    ids, repeats = id_matrix(source["id"]), source["repeats"].to_numpy()
    groups = id_matrix(source[GROUP_COLUMN].fill_null(bytes(16))) if is_grouped else None
    names = np.array(source["split"].to_pylist(), object)
    if unknown := sorted(set(names) - set(SPLITS)):
        raise StageFailure(
            f"{part.name} has documents of split {unknown[0]!r}, which is not one of"
            f" {', '.join(SPLITS)}; rebuild it with force=[documents]"
        )
    gaps = config.fill_in_middle
    middle = FillInMiddle(gaps, model, config.seed) if gaps.rate else None
    encoder = DocumentEncoder(model, dtype, chats, middle)
    for split in SPLITS:
        rows = np.flatnonzero(names == split)
        found = encoder.encode(source.take(rows), split == "train")
        rows = rows[found.rows]
        of_rows = None if groups is None else groups[rows]
        copies, places = places_of_copies(ids[rows], of_rows, repeats[rows], config.seed)
        order = sort_by_place(places, ids[rows][copies])
        copies, places = copies[order], places[order]
        table = source.take(rows[copies])
        encoded = {
            "tokens": found.tokens.take(pa.array(copies)),
            "id": table["id"],
            "source": table["source"],
            "language": table["language"],
            "num_bytes": pa.array(found.num_bytes[copies]),
            "hash": pa.array(places),
        }
        if found.loss_mask is not None:
            encoded[LOSS_MASK] = found.loss_mask.take(pa.array(copies))
        _write(pa.table(encoded), directory / f"{split}.arrow")
    counts: dict[str, Any] = {"documents": len(names), "verified": len(names)}
    if chats:
        counts["verified"] -= encoder.num_refused
        counts |= {"refused": encoder.num_refused, "first_refusal": encoder.first_refusal}
        counts["turn_end_ids"] = sorted(encoder.turn_end_ids)
    return counts


def import_part(part: Part, directory: Path, config: ShardsConfig) -> Mapping[str, Any]:
    """Write the documents of another engine as `encode_part` writes ours. Decoding cannot be
    checked: there is no text."""
    model = kept_tokenizer(Path(part.payload["tokenizer"]))
    tables, num_empty = read_foreign(
        config.form, Path(part.payload["folder"]), model, token_dtype(model.vocab_size)
    )
    for split, table in tables.items():
        ids = id_matrix(table["id"])
        hashes = hash_ids(ids, config.seed)
        order = pa.array(sort_by_place(hashes, ids))
        in_order = table.append_column("hash", pa.array(hashes)).take(order)
        _write(in_order, directory / f"{split}.arrow")
    num_documents = sum(map(len, tables.values())) + num_empty
    return {"documents": num_documents, "empty": num_empty, "verified": 0}


def merge_split(
    results: Sequence[PartResult],
    split: str,
    out_dir: Path,
    model: Tokenizer,
    config: ShardsConfig,
    metadata: Mapping[str, str],
    earlier: Mapping[str, int],
) -> dict[str, int]:
    """Merge one split of all parts into shards that follow earlier ones; counts of all."""
    parts = [_read(result.path / f"{split}.arrow") for result in results]
    part_of = np.repeat(np.arange(len(parts)), [len(p) for p in parts])
    row_of = np.concatenate([np.arange(len(p)) for p in parts])
    offsets = [p["tokens"].combine_chunks().offsets.to_numpy() for p in parts]
    lengths = np.concatenate([np.diff(o) for o in offsets])
    hashes = np.concatenate([p["hash"].to_numpy() for p in parts])
    order = sort_by_place(hashes, np.concatenate([id_matrix(p["id"]) for p in parts]))

    plan = plan_shards(lengths[order], config.max_shard_tokens)
    tokens = [p["tokens"].combine_chunks().values.to_numpy() for p in parts]
    dtype = token_dtype(model.vocab_size)
    masks = loss_masks(parts, tokens)
    if earlier["shards"] and not len(order):
        plan = []
    counts = dict(earlier)
    counts["documents"] += len(order)
    counts["shards"] += len(plan)
    for number, pieces in enumerate(plan, earlier["shards"]):
        chosen = order[[piece.document for piece in pieces]].astype(np.int64)
        ends = np.cumsum([piece.stop - piece.start for piece in pieces], dtype=np.int64)
        flat = np.empty(int(ends[-1]) if len(ends) else 0, dtype)
        mask = np.empty(len(flat), np.uint8)
        row_offsets = np.concatenate([[0], ends]).astype(np.int64)
        places = itertools.pairwise(row_offsets)
        for piece, document, (start, end) in zip(pieces, chosen, places, strict=True):
            part, row = part_of[document], row_of[document]
            begin = offsets[part][row]
            flat[start:end] = tokens[part][begin + piece.start : begin + piece.stop]
            if masks:
                mask[start:end] = masks[part][begin + piece.start : begin + piece.stop]
        running = np.concatenate([[0], np.cumsum(model.bytes_per_token[flat], dtype=np.int64)])
        columns = {
            "tokens": lists(row_offsets, flat),
            **_take_facts(parts, part_of[chosen], row_of[chosen]),
            "num_bytes": pa.array(np.diff(running[row_offsets])),
            "continues": pa.array([piece.continues for piece in pieces], pa.bool_()),
        }
        if masks:
            columns[LOSS_MASK] = lists(row_offsets, mask)
        described = dict(metadata) | {
            "split": split,
            "num_tokens": str(len(flat)),
            "tokens_digest": digest_tokens(flat),
            "largest_id": str(int(flat.max(initial=0))),
            "shard": str(number),
            "num_shards": str(counts["shards"]),
        }
        if masks:
            described["loss_mask_digest"] = digest_tokens(mask)
        if masks and mask.max(initial=0) >= REJECTED_TOKEN:
            described[PAIRS] = "true"
        table = pa.table(columns).replace_schema_metadata(described)
        _write(table, out_dir / f"{split}-{number:05d}.arrow")
        counts["tokens"] += len(flat)
        counts["bytes"] += int(running[-1])
    return counts


@dataclass(frozen=True)
class Piece:
    """Tokens [start, stop) of a document; `continues` when more of it follows."""

    document: int
    start: int
    stop: int
    continues: bool


def plan_shards(lengths: np.ndarray, max_shard_tokens: int) -> list[list[Piece]]:
    """Which rows go into which shard; one empty shard when there are no documents."""
    shards: list[list[Piece]] = [[]]
    filled = 0
    for document, length in enumerate(lengths.tolist()):
        if filled and filled + length > max_shard_tokens:
            shards.append([])
            filled = 0
        start = 0
        while length - start > max_shard_tokens:
            shards[-1].append(Piece(document, start, start + max_shard_tokens, True))
            shards.append([])
            start += max_shard_tokens
        # The last piece of a long document shares its shard with what follows.
        shards[-1].append(Piece(document, start, length, False))
        filled += length - start
    return shards


def _take_facts(
    parts: Sequence[pa.Table], part_of: np.ndarray, row_of: np.ndarray
) -> dict[str, pa.Array]:
    """id, source and language of rows of several parts, in the given order."""
    schema = pa.schema([("id", ID), ("source", pa.string()), ("language", pa.string())])
    by_part = np.argsort(part_of, kind="stable")
    tables = [schema.empty_table()]
    for part in np.unique(part_of):
        rows = row_of[by_part][part_of[by_part] == part]
        tables.append(parts[part].select(schema.names).take(rows).cast(schema))
    # From the order of parts back to the given one.
    table = pa.concat_tables(tables).take(np.argsort(by_part)).combine_chunks()
    return {name: table[name] for name in schema.names}


def _write(table: pa.Table, path: Path) -> None:
    batch = table.combine_chunks()
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        batches = batch.to_batches() or [pa.RecordBatch.from_pylist([], schema=batch.schema)]
        assert len(batches) == 1, "a shard is one record batch"
        writer.write_batch(batches[0])


def _read(path: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
