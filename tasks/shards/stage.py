"""Writes what training reads: documents as token ids in memory-mappable shards.

Columns in: `id`, `text`, `source`, `language`, `split`, `repeats`. Out: `<split>-00000.arrow` … for
`train` and `validation`, Arrow IPC, one record batch each: `tokens` large_list<uint16 or uint32>,
`id`, `source`, `language`, `num_bytes` int64, `continues` bool. A row is a document and ends with
the end-of-text id; a document is written `repeats` times. Documents are in the order of a keyed
hash of their ids, copies each have a place of their own, so neighbours in the stream have nothing
in common and the order depends on nothing but ids and `seed`. The width is that of the tokenizer's
largest id.

No shard holds more than `max_shard_tokens`. A shard is closed before a document that does not fit;
a document longer than a whole shard is cut: each of its rows but the last has `continues` true and
no end-of-text, and fills a shard of its own. `num_bytes` counts each row's own bytes, so it always
sums to the document.

Every document is decoded again and compared with its text, byte by byte. Parts are the files of
documents: encoded and sorted each on its own, then merged; memory is one shard and 32 bytes per
document.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from llm_core.data.order import hash_ids, mix
from llm_core.data.shards import digest_tokens
from tasks.corpus.documentset import ID, id_matrix, read_table
from tasks.runtime.artifact import Artifact, check_accounting, digest_file
from tasks.runtime.keys import digest, key_config
from tasks.runtime.parts import Part, PartResult, RunParts, serial
from tasks.runtime.stage import StageFailure
from tasks.shards.config import ShardsConfig
from tasks.shards.earlier import link_earlier, write_order
from tasks.shards.exchange import SPLITS
from tasks.shards.foreign_shards import read_foreign
from tasks.tokenizer.encoder import TOKENIZER_FILE, Tokenizer, load_tokenizer

BATCH_DOCUMENTS = 256


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
        parts = [
            Part(
                file.name,
                digest([documents.file_digest(file.name), tokenizer_digest]),
                {"documents": str(file), "tokenizer": str(tokenizer.path)},
            )
            for file in documents.files("part-*.parquet")
        ]
    results = run_parts(encode_part if config.path is None else import_part, parts, config, out_dir)

    model = load_tokenizer(tokenizer.path)
    read = sum(int(result.counters["documents"]) for result in results)
    empty = sum(int(result.counters.get("empty", 0)) for result in results)
    metadata = {
        "tokenizer_digest": tokenizer_digest,
        "config_digest": digest(key_config(config)),
        "seed": str(config.seed),
        "eos_id": str(model.eos_id),
    }
    scheme = metadata | {"dtype": str(token_dtype(model.vocab_size))}
    earlier = link_earlier(config.earlier, out_dir, scheme, SPLITS)
    splits = {
        split: merge_split(results, split, out_dir, model, config, metadata, earlier[split])
        for split in SPLITS
    }
    write_order(out_dir, scheme, splits)
    if splits["train"]["documents"] == 0:
        without = f", {empty} of them without tokens" if empty else ""
        raise StageFailure(
            f"split train has no documents ({read} read{without},"
            f" {splits['validation']['documents']} in validation); loosen the filters or lower the"
            " validation share"
        )
    counters = {
        "read": read,
        "kept": read - empty,
        "dropped": {"EMPTY": empty},
        "quarantined": 0,
        "tokens": sum(s["tokens"] for s in splits.values()),
        "verified": sum(int(result.counters["verified"]) for result in results),
    }
    check_accounting("shards", counters)
    metrics = {"splits": splits, "dtype": str(token_dtype(model.vocab_size))}
    return Artifact(out_dir, "shards", counters, metrics)


def token_dtype(vocab_size: int) -> np.dtype:
    """The narrowest of uint16 and uint32 that holds the largest id."""
    return np.dtype(np.uint16 if vocab_size - 1 <= np.iinfo(np.uint16).max else np.uint32)


def encode_part(part: Part, directory: Path, config: ShardsConfig) -> Mapping[str, Any]:
    """Encode one file of documents into `<split>.arrow` files, each copy at the place its hash
    gives it."""
    model = load_tokenizer(Path(part.payload["tokenizer"]))
    dtype = token_dtype(model.vocab_size)
    columns = ["id", "text", "source", "language", "split", "repeats"]
    source = read_table(part.payload["documents"], columns)
    ids = id_matrix(source["id"])
    hashes, repeats = hash_ids(ids, config.seed), source["repeats"].to_numpy()
    names = np.array(source["split"].to_pylist(), object)
    if unknown := sorted(set(names) - set(SPLITS)):
        raise StageFailure(
            f"{part.name} has documents of split {unknown[0]!r}, which is not one of"
            f" {', '.join(SPLITS)}; rebuild it with force=[documents]"
        )
    for split in SPLITS:
        rows = np.flatnonzero(names == split)
        tokens, sizes = _encode(source.take(rows), model, dtype)
        copies, places = _copies(hashes[rows], repeats[rows])
        order = sort_by_hash(places, ids[rows][copies])
        copies, places = copies[order], places[order]
        table = source.take(rows[copies])
        encoded = {
            "tokens": tokens.take(pa.array(copies)),
            "id": table["id"],
            "source": table["source"],
            "language": table["language"],
            "num_bytes": pa.array(sizes[copies]),
            "hash": pa.array(places),
        }
        _write(pa.table(encoded), directory / f"{split}.arrow")
    return {"documents": len(names), "verified": len(names)}


def import_part(part: Part, directory: Path, config: ShardsConfig) -> Mapping[str, Any]:
    """Write the documents of another engine as `encode_part` writes ours. Decoding cannot be
    checked: there is no text."""
    model = load_tokenizer(Path(part.payload["tokenizer"]))
    tables, num_empty = read_foreign(
        config.form, Path(part.payload["folder"]), model, token_dtype(model.vocab_size)
    )
    for split, table in tables.items():
        ids = id_matrix(table["id"])
        hashes = hash_ids(ids, config.seed)
        order = pa.array(sort_by_hash(hashes, ids))
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
    order = sort_by_hash(hashes, np.concatenate([id_matrix(p["id"]) for p in parts]))

    plan = plan_shards(lengths[order], config.max_shard_tokens)
    tokens = [p["tokens"].combine_chunks().values.to_numpy() for p in parts]
    dtype = token_dtype(model.vocab_size)
    if earlier["shards"] and not len(order):
        plan = []
    counts = dict(earlier)
    counts["documents"] += len(order)
    counts["shards"] += len(plan)
    for number, pieces in enumerate(plan, earlier["shards"]):
        chosen = order[[piece.document for piece in pieces]].astype(np.int64)
        ends = np.cumsum([piece.stop - piece.start for piece in pieces], dtype=np.int64)
        flat = np.empty(int(ends[-1]) if len(ends) else 0, dtype)
        row_offsets = np.concatenate([[0], ends]).astype(np.int64)
        places = itertools.pairwise(row_offsets)
        for piece, document, (start, end) in zip(pieces, chosen, places, strict=True):
            part, row = part_of[document], row_of[document]
            begin = offsets[part][row]
            flat[start:end] = tokens[part][begin + piece.start : begin + piece.stop]
        running = np.concatenate([[0], np.cumsum(model.bytes_per_token[flat], dtype=np.int64)])
        columns = {
            "tokens": _lists(row_offsets, flat),
            **_take_facts(parts, part_of[chosen], row_of[chosen]),
            "num_bytes": pa.array(np.diff(running[row_offsets])),
            "continues": pa.array([piece.continues for piece in pieces], pa.bool_()),
        }
        described = dict(metadata) | {
            "split": split,
            "num_tokens": str(len(flat)),
            "tokens_digest": digest_tokens(flat),
            "largest_id": str(int(flat.max(initial=0))),
            "shard": str(number),
            "num_shards": str(counts["shards"]),
        }
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


def sort_by_hash(hashes: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The order of documents: by hash, and by id where hashes are equal."""
    words = np.ascontiguousarray(ids).view(">u8").reshape(-1, 2)
    return np.lexsort((words[:, 1], words[:, 0], hashes))


def _copies(hashes: np.ndarray, repeats: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(document, place in the order) of every copy; the first copy of a document stands where it
    would stand alone."""
    documents = np.repeat(np.arange(len(repeats)), repeats)
    copy = np.arange(len(documents)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    places = hashes[documents]
    later = copy > 0
    places[later] = mix(places[later] ^ mix(copy[later].astype(np.uint64)))
    return documents, places


def _encode(table: pa.Table, model: Tokenizer, dtype: np.dtype) -> tuple[pa.Array, np.ndarray]:
    """(token lists, UTF-8 lengths); raises StageFailure where decoding does not give the text
    back."""
    pieces, lengths, sizes = [], [], []
    for start in range(0, len(table), BATCH_DOCUMENTS):
        batch = table.slice(start, BATCH_DOCUMENTS)
        texts = batch["text"].to_pylist()
        for row, (text, ids) in enumerate(zip(texts, model.encode_batch(texts), strict=True)):
            raw = text.encode()
            if model.decode_bytes(ids) != raw:
                name = batch["id"][row].as_py().hex()
                raise StageFailure(
                    f"the tokenizer does not give document {name} back; rebuild it with"
                    " force=[tokenizer]"
                )
            pieces += [ids.astype(dtype), np.array([model.eos_id], dtype)]
            lengths.append(len(ids) + 1)
            sizes.append(len(raw))
    flat = np.concatenate([np.zeros(0, dtype), *pieces])
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    return _lists(offsets, flat), np.array(sizes, np.int64)


def _lists(offsets: np.ndarray, flat: np.ndarray) -> pa.LargeListArray:
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(flat))


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
