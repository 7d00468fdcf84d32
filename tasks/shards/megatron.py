"""Exchanges token shards with Megatron-LM, streaming and without copies of text.

`<split>.bin` holds the ids of all documents, little-endian; `<split>.idx` is the magic
`MMIDIDX\\0\\0`, version 1 (uint64), a code for the integer type (uint8), the number of sequences
and of document borders (uint64 each), then the length of each sequence (int32), its place in the
.bin in bytes (int64), and the borders (int64, 0 first): the layout that Megatron-LM's
`indexed_dataset.py` describes. A document is one sequence. It knows no unsigned 32-bit type, so
wide ids become int32. Imports also take the names that Megatron's own `preprocess_data.py` writes.
The loss mask of chats is a second pair, `<split>_loss_mask`, of uint8 and the same lengths, as
Megatron-LLM (EPFL) keeps its roles.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from llm_core.data.shards import TokenShards
from tasks.shards.foreign import ExchangeError, ForeignDocument, mapped_bytes

MAGIC = b"MMIDIDX\0\0"
HEADER = struct.Struct("<9sQBQQ")
DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Integer types by the code of an .idx file."""

WRITTEN_NAMES = "*_document.idx"
HELD_OUT_PREFIXES, TEST_PREFIX = ("validation", "valid", "val_"), "test"
MASK_SUFFIX = "_loss_mask"


def export_megatron(shards: TokenShards, out_dir: Path) -> int:
    """`<split>.bin` and `<split>.idx`; documents written."""
    narrow = all(shard.tokens.dtype == np.uint16 for shard in shards.shards)
    code = 8 if narrow else 4
    dtype = np.dtype(DTYPES[code])
    starts, stops = shards.document_bounds()
    lengths = stops - starts
    ids = (np.ascontiguousarray(shard.tokens, dtype) for shard in shards.shards)
    _write_pair(out_dir / shards.split, code, ids, starts, lengths)
    if shards.has_loss_mask:
        bounds = zip(shards.starts, shards.starts[1:], strict=False)
        masks = (shards.read_loss_mask(*some).astype(np.uint8) for some in bounds)
        _write_pair(out_dir / f"{shards.split}{MASK_SUFFIX}", 1, masks, starts, lengths)
    return len(lengths)


def _write_pair(
    prefix: Path, code: int, values: Iterable[np.ndarray], starts: np.ndarray, lengths: np.ndarray
) -> None:
    """`<prefix>.bin` and `<prefix>.idx` of documents that begin at these values."""
    with prefix.with_suffix(".bin").open("wb") as stream:
        for some in values:
            stream.write(some.data)
    with prefix.with_suffix(".idx").open("wb") as stream:
        stream.write(HEADER.pack(MAGIC, 1, code, len(lengths), len(lengths) + 1))
        stream.write(lengths.astype("<i4").tobytes())
        stream.write((starts * np.dtype(DTYPES[code]).itemsize).astype("<i8").tobytes())
        stream.write(np.arange(len(lengths) + 1, dtype="<i8").tobytes())


def megatron_indexes(folder: Path, split: str) -> list[Path]:
    """The indexes of a split: `train.idx`, else the `PREFIX_text_document.idx` that Megatron's
    `preprocess_data.py` writes, those of a prefix like `valid` for validation. `folder` may also be
    such a prefix itself. Those of tests are left alone."""
    if not folder.is_dir():
        alone = folder.with_name(f"{folder.name}.idx")
        return [alone] if split == "train" and alone.is_file() else []
    if (named := folder / f"{split}.idx").exists():
        return [named]
    found = {path: path.name.startswith(HELD_OUT_PREFIXES) for path in folder.glob(WRITTEN_NAMES)}
    return sorted(
        path
        for path, is_held_out in found.items()
        if is_held_out == (split != "train") and not path.name.startswith(TEST_PREFIX)
    )


def megatron_files(folder: Path, split: str) -> list[Path]:
    """What an import of a split reads: the pairs of its ids and of their loss masks."""
    indexes = megatron_indexes(folder, split)
    indexes += [mask for mask in map(_mask_index, indexes) if mask.exists()]
    return [path for one in indexes for path in (one, one.with_suffix(".bin"))]


def _mask_index(index: Path) -> Path:
    return index.with_name(f"{index.stem}{MASK_SUFFIX}.idx")


def read_megatron(folder: Path, split: str) -> Iterator[ForeignDocument]:
    """Documents of the `.bin`/`.idx` pairs of a split, with their loss masks. Raises
    ExchangeError."""
    for index in megatron_indexes(folder, split) or [folder / f"{split}.idx"]:
        masks = _mask_index(index)
        if not masks.exists():
            yield from map(ForeignDocument, _read_pair(index))
            continue
        for tokens, mask in itertools.zip_longest(_read_pair(index), _read_pair(masks)):
            if tokens is None or mask is None or len(tokens) != len(mask):
                raise ExchangeError(f"{masks} does not fit {index.name}; export them together")
            yield ForeignDocument(tokens, loss_mask=mask)


def _read_pair(index: Path) -> Iterator[np.ndarray]:
    """Documents of a pair, empty ones too; sequences of one document are joined."""
    data = index.with_suffix(".bin")
    content = mapped_bytes(index)
    try:
        magic, version, code, num_sequences, num_borders = HEADER.unpack_from(content)
    except struct.error as error:
        raise ExchangeError(f"{index} is too short for an index") from error
    if (magic, version) != (MAGIC, 1) or code not in DTYPES:
        raise ExchangeError(f"{index} is not an index of version 1 with integer tokens")
    dtype, place = np.dtype(DTYPES[code]), HEADER.size
    # Python's numbers, of any size: 2**62 sequences must not come round to a few.
    if len(content) < place + 12 * num_sequences + 8 * num_borders:
        raise ExchangeError(
            f"{index} is cut off: its {len(content)} bytes are too few for {num_sequences}"
            " sequences"
        )
    lengths = np.frombuffer(content, "<i4", num_sequences, place)
    pointers = np.frombuffer(content, "<i8", num_sequences, place + 4 * num_sequences)
    borders = np.frombuffer(content, "<i8", num_borders, place + 12 * num_sequences)
    tokens = np.frombuffer(mapped_bytes(data), np.uint8)
    sizes = lengths.astype(np.int64) * dtype.itemsize
    # Without a sum that could pass 2**63: a place near it would end before the file does.
    inside = (pointers >= 0) & (lengths >= 0) & (pointers <= len(tokens) - sizes)
    ends = pointers + sizes
    whole = not num_borders or (borders[0], borders[-1]) == (0, num_sequences)
    if not (inside.all() and whole and np.all(np.diff(borders) >= 0)):
        raise ExchangeError(
            f"{data} does not hold what {index.name} says; one of them is cut off or of another"
            " corpus"
        )
    for first, last in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        pieces = [tokens[pointers[k] : ends[k]].view(dtype) for k in range(first, last)]
        # One sequence is not copied out of the file.
        yield pieces[0] if len(pieces) == 1 else np.concatenate([np.zeros(0, dtype), *pieces])
