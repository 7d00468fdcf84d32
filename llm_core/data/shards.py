"""Opens the token shards of a split as memory maps and reads them without copies.

A shard is an Arrow IPC file with one record batch: `tokens` large_list<uint16 or uint32>, `id`
binary(16), `source`, `language`, `num_bytes` int64, `continues` bool. A row is a document and ends
with the end-of-text id. A document longer than a whole shard is cut into rows; `continues` says
that it goes on in the next row (the first of the next shard). Shards with chats also have
`loss_mask` large_list<uint8>, as long as `tokens`: 1 where a token is to be learnt with
`loss_on=assistant`. A pair of answers is a row with both branches, prompt and answer each; in the
mask of the rejected one, `REJECTED_TOKEN` is added. The schema metadata says what the split is made
of and how many shards it has.

Opening reads footers and the facts of documents, where a damaged offset would lead out of the file;
tokens come from the page cache when they are touched, and `verify` holds them against their
digests.
"""

from __future__ import annotations

import bisect
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llm_core.config import ConfigError

COLUMNS = {
    "tokens": (pa.large_list(pa.uint16()), pa.large_list(pa.uint32())),
    "id": (pa.binary(16),),
    "source": (pa.string(),),
    "language": (pa.string(),),
    "num_bytes": (pa.int64(),),
    "continues": (pa.bool_(),),
}
"""The types that each column may have."""

LOSS_MASK = "loss_mask"
PAIRS = "pairs"
"""Metadata of a shard that holds a pair of answers."""
REJECTED_TOKEN = 2
"""Added to the mask of the rejected branch of a pair, which begins where the chosen one ends."""

NUMBERS = ("num_tokens", "eos_id", "shard", "num_shards")
METADATA = ("tokenizer_digest", "config_digest", "seed", "split", *NUMBERS)


class ShardError(ValueError):
    """A shard that is missing, damaged or of another split; the message names the file."""


class Document(NamedTuple):
    """One document of a split: its token ids (end-of-text last) and where it comes from."""

    tokens: np.ndarray
    id: bytes
    source: str | None
    language: str | None
    num_bytes: int


@dataclass(frozen=True)
class Shard:
    """One open file: `tokens` and `loss_mask` are read-only views of the memory map."""

    path: Path
    batch: pa.RecordBatch
    tokens: np.ndarray
    metadata: dict[str, str]
    loss_mask: np.ndarray | None = None
    """uint8; None where all tokens are to be learnt."""

    @property
    def largest_id(self) -> int:
        """Of its tokens: what the writer noted, else all are read."""
        noted = self.metadata.get("largest_id", "")
        return int(noted) if noted.isdecimal() else int(self.tokens.max(initial=0))


@dataclass(frozen=True)
class TokenShards:
    """All tokens of a split as one stream, shard after shard."""

    split: str
    shards: tuple[Shard, ...]
    starts: tuple[int, ...]
    """Place in the stream of each shard's first token, and the end of the stream."""

    @property
    def num_tokens(self) -> int:
        return self.starts[-1]

    @property
    def num_documents(self) -> int:
        return sum(shard.batch.num_rows - int(np.sum(_continues(shard))) for shard in self.shards)

    @property
    def eos_id(self) -> int:
        return int(self.shards[0].metadata["eos_id"])

    @property
    def tokenizer_digest(self) -> str:
        return self.shards[0].metadata["tokenizer_digest"]

    @property
    def turn_end_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer in a chat, other than the end of text."""
        noted = [json.loads(shard.metadata.get("turn_end_ids", "[]")) for shard in self.shards]
        return tuple(sorted({int(id) for ids in noted for id in ids}))

    @property
    def has_loss_mask(self) -> bool:
        return any(shard.loss_mask is not None for shard in self.shards)

    @property
    def has_pairs(self) -> bool:
        """Whether documents are pairs of answers among them."""
        return any(PAIRS in shard.metadata for shard in self.shards)

    def check_ids(self, vocab_size: int) -> None:
        """Raises ConfigError where an id is not below `vocab_size`."""
        for shard in self.shards:
            largest = max(shard.largest_id, self.eos_id)
            if largest >= vocab_size:
                raise ConfigError(
                    f"shard {shard.path} has id {largest}, the model has ids 0 to {vocab_size - 1};"
                    f" set model.vocab_size to {largest + 1} or more, or give shards of the"
                    " tokenizer that the model was made for"
                )

    def verify(self) -> None:
        """Read everything once. Raises ShardError where tokens are not those that were written."""
        for shard in self.shards:
            for name, held in (("tokens", shard.tokens), (LOSS_MASK, shard.loss_mask)):
                written = shard.metadata.get(f"{name}_digest")
                if written is not None and (held is None or written != digest_tokens(held)):
                    raise ShardError(
                        f"shard {shard.path} does not hold the {name} that were written; rebuild"
                        " it with force=[shards]"
                    )

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens [start, stop) of the stream as int64, across shard borders."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens [{start}, {stop}) are not in a stream of {self.num_tokens}")
        out = np.empty(stop - start, np.int64)
        for shard, place, begin, end in self._stretches(start, stop):
            out[place : place + end - begin] = shard.tokens[begin:end]
        return out

    def read_loss_mask(self, start: int, stop: int, branches: bool = False) -> np.ndarray:
        """Whether each token of [start, stop) is to be learnt, as bool; true without a mask.

        branches: those of the rejected branches of pairs too.
        """
        out = np.ones(stop - start, bool)
        for shard, place, begin, end in self._stretches(start, stop):
            if shard.loss_mask is not None:
                mask = shard.loss_mask[begin:end]
                out[place : place + end - begin] = (mask & 1 if branches else mask) == 1
        return out

    def rejected_starts(self) -> np.ndarray:
        """int64: places of the stream where the rejected branch of a pair begins, in order."""
        found, before = [np.zeros(0, np.int64)], False
        for shard, base in zip(self.shards, self.starts[:-1], strict=True):
            if shard.loss_mask is None or not len(shard.loss_mask):
                continue
            is_rejected = shard.loss_mask >= REJECTED_TOKEN
            begins = is_rejected & ~np.concatenate([[before], is_rejected[:-1]])
            found.append(np.flatnonzero(begins) + base)
            before = bool(is_rejected[-1])
        return np.concatenate(found)

    def _stretches(self, start: int, stop: int) -> Iterator[tuple[Shard, int, int, int]]:
        """(shard, place in [start, stop), first and end token of the shard)."""
        k, place = bisect.bisect_right(self.starts, start) - 1, start
        while place < stop:
            base, end = self.starts[k], min(stop, self.starts[k + 1])
            yield self.shards[k], place - start, place - base, end - base
            k, place = k + 1, end

    def read_pair(self, start: int, ids: np.ndarray, targets: np.ndarray) -> None:
        """Fill `ids` with tokens from `start` on, and `targets` with those one place further."""
        k = bisect.bisect_right(self.starts, start) - 1
        begin, size = start - self.starts[k], len(ids)
        if start + size < self.starts[k + 1]:
            tokens = self.shards[k].tokens
            ids[:] = tokens[begin : begin + size]
            targets[:] = tokens[begin + 1 : begin + size + 1]
            return
        tokens = self.read(start, start + size + 1)
        ids[:], targets[:] = tokens[:-1], tokens[1:]

    def document_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """int64 (documents,) first and end place of each document, in stream order."""
        stops = []
        for shard, base in zip(self.shards, self.starts[:-1], strict=True):
            offsets = shard.batch["tokens"].offsets.to_numpy()
            # Offsets of a slice need not begin at 0.
            stops.append((offsets[1:] - offsets[0] + base)[~_continues(shard)])
        ends = np.concatenate(stops).astype(np.int64)
        return np.concatenate([np.zeros(min(1, len(ends)), np.int64), ends[:-1]]), ends

    def number_documents(self, ids_RT: np.ndarray, starts_R: np.ndarray) -> np.ndarray:
        """int32 (R, T): in rows of ids from these places of the stream on, which document the token
        behind each id is of. Numbers grow along a row from 0 or 1 on."""
        if not self.has_loss_mask:
            return np.cumsum(ids_RT == self.eos_id, axis=1, dtype=np.int32)
        # Turns of a chat may end with end-of-text too.
        _, stops = self.document_bounds()
        places_RT = starts_R[:, None] + 1 + np.arange(ids_RT.shape[1])
        numbers_RT = np.searchsorted(stops, places_RT, "right")
        first_R = np.searchsorted(stops, starts_R, "right")
        return (numbers_RT - first_R[:, None]).astype(np.int32)

    def document_sources(self) -> tuple[list[str], np.ndarray]:
        """(names in order, int64 (documents,) the place of each document's source among them)."""
        names = [
            shard.batch["source"].filter(pc.invert(shard.batch["continues"]))
            for shard in self.shards
        ]
        column = (
            pa.chunked_array(names, pa.string()).fill_null("").combine_chunks().dictionary_encode()
        )
        found = column.dictionary.to_pylist()
        order = sorted(found)
        place = np.array([order.index(name) for name in found], np.int64)
        return order, place[column.indices.to_numpy()] if len(found) else np.zeros(0, np.int64)

    def documents(self) -> Iterator[Document]:
        """Documents in stream order; tokens are views, except of one that was cut over shards."""
        pieces: list[np.ndarray] = []
        num_bytes = 0
        for shard in self.shards:
            offsets = shard.batch["tokens"].offsets.to_numpy()
            continues = _continues(shard)
            sizes = shard.batch["num_bytes"].to_numpy()
            for row in range(shard.batch.num_rows):
                pieces.append(
                    shard.tokens[offsets[row] - offsets[0] : offsets[row + 1] - offsets[0]]
                )
                num_bytes += int(sizes[row])
                if continues[row]:
                    continue
                tokens = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
                id, source, language = (
                    shard.batch[name][row].as_py() for name in ("id", "source", "language")
                )
                yield Document(tokens, id, source, language, num_bytes)
                pieces, num_bytes = [], 0


def digest_tokens(tokens: np.ndarray) -> str:
    """128-bit BLAKE2b of token ids as they are stored, in hex."""
    return hashlib.blake2b(np.ascontiguousarray(tokens).data, digest_size=16).hexdigest()


def open_shards(folder: Path, split: str) -> TokenShards:
    """Map every shard of a split. Raises ShardError that names a missing or damaged file."""
    paths = sorted(Path(folder).glob(f"{split}-*.arrow"))
    if not paths:
        raise ShardError(
            f"no shards of split {split!r} in {folder}; rebuild them with force=[shards]"
        )
    shards = tuple(_open(path) for path in paths)
    first = shards[0].metadata
    # Of a set that has grown at its end, earlier shards say how many there were before.
    num_shards = max(int(shard.metadata["num_shards"]) for shard in shards)
    for number in range(num_shards):
        name = f"{split}-{number:05d}.arrow"
        if number >= len(paths) or paths[number].name != name:
            raise ShardError(
                f"shard {Path(folder) / name} is missing; rebuild them with force=[shards]"
            )
    if len(paths) > num_shards:
        raise ShardError(
            f"shard {paths[num_shards]} is not of the {num_shards} of its set; rebuild them with"
            " force=[shards]"
        )
    expected = {"split": split} | {
        name: first[name] for name in ("tokenizer_digest", "config_digest", "seed")
    }
    for shard in shards:
        for name, value in expected.items():
            if shard.metadata.get(name) != value:
                raise ShardError(
                    f"shard {shard.path} has {name} {shard.metadata.get(name)}, the others have"
                    f" {value}; rebuild them with force=[shards]"
                )
    starts = np.cumsum([0] + [len(shard.tokens) for shard in shards])
    return TokenShards(split, shards, tuple(int(s) for s in starts))


def _open(path: Path) -> Shard:
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        metadata = {k.decode(): v.decode() for k, v in (reader.schema.metadata or {}).items()}
        batch = reader.get_batch(0)
        batch.validate(full=True)
        columns = all(batch.schema.field(name).type in types for name, types in COLUMNS.items())
        tokens = batch["tokens"].flatten().to_numpy(zero_copy_only=True)
        mask = _loss_mask(batch)
        numbers = {name: int(metadata[name]) for name in NUMBERS}
        is_whole = len(tokens) == numbers["num_tokens"] and set(METADATA) <= set(metadata)
    except (pa.ArrowException, OSError, KeyError, ValueError, IndexError) as error:
        raise ShardError(
            f"shard {path} cannot be read ({error}); rebuild it with force=[shards]"
        ) from error
    if not (columns and is_whole) or (mask is not None and len(mask) != len(tokens)):
        raise ShardError(
            f"shard {path} does not hold what its metadata says; rebuild it with force=[shards]"
        )
    return Shard(path, batch, tokens, metadata, mask)


def _loss_mask(batch: pa.RecordBatch) -> np.ndarray | None:
    if LOSS_MASK not in batch.schema.names:
        return None
    if batch.schema.field(LOSS_MASK).type != pa.large_list(pa.uint8()):
        raise ValueError(f"{LOSS_MASK} is {batch.schema.field(LOSS_MASK).type}")
    return batch[LOSS_MASK].flatten().to_numpy(zero_copy_only=True)  # type: ignore[no-any-return]


def _continues(shard: Shard) -> np.ndarray:
    return shard.batch["continues"].to_numpy(zero_copy_only=False)
