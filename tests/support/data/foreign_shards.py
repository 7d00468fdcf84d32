"""Megatron files as other programs write them."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np


def write_megatron(
    folder: Path,
    documents: list[list[int]],
    dtype: str = "<i4",
    code: int = 4,
    empty_sequences: bool = False,
) -> None:
    """Each document is two sequences, as other programs may cut them; an empty one is none, or two
    without tokens."""
    folder.mkdir()
    sequences = [
        piece
        for document in documents
        if document or empty_sequences
        for piece in (document[:1], document[1:])
    ]
    lengths = np.array([len(s) for s in sequences], "<i4")
    pointers = (np.cumsum(lengths) - lengths).astype("<i8") * np.dtype(dtype).itemsize
    borders = np.cumsum(
        [0] + [2 * (bool(document) or empty_sequences) for document in documents]
    ).astype("<i8")
    (folder / "train.bin").write_bytes(
        np.concatenate([np.array(s, dtype) for s in sequences]).tobytes()
    )
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(lengths), len(borders))
    (folder / "train.idx").write_bytes(
        head + lengths.tobytes() + pointers.tobytes() + borders.tobytes()
    )
