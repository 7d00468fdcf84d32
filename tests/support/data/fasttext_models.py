"""Models of random numbers in the format of fastText, and fastText itself to ask about them."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

WORDS = ("</s>", "abc", "éa", "de")


@functools.cache
def stock(path: Path) -> Callable[..., list[tuple[float, str]]]:
    import fasttext

    return fasttext.load_model(str(path)).f.predict


def write_model(
    file: Path,
    *,
    quantised: bool = False,
    norms: bool = False,
    pruned: bool = False,
    words: Sequence[str] = WORDS,
    **settings: int,
) -> Path:
    """A model of random numbers in the format of fastText 0.9, version 12."""
    rng = np.random.default_rng(len(file.name))
    chosen = {"dim": 6, "ngrams": 1, "loss": 1, "buckets": 500, "minn": 1, "maxn": 3, **settings}
    dim, buckets = chosen["dim"], chosen["buckets"]
    labels = ["__label__x", "__label__y", "__label__z"]
    ints = [
        dim,
        5,
        5,
        1,
        5,
        chosen["ngrams"],
        chosen["loss"],
        3,
        buckets,
        chosen["minn"],
        chosen["maxn"],
        100,
    ]
    out = [struct.pack("<2i12id", 793712314, 12, *ints, 1e-4)]
    places = rng.choice(buckets, 40, replace=False).tolist() if pruned else []
    out.append(
        struct.pack(
            "<3i2q",
            len(words) + len(labels),
            len(words),
            len(labels),
            999,
            len(places) if pruned else -1,
        )
    )
    for number, word in enumerate([*words, *labels]):
        out.append(word.encode() + struct.pack("<xqb", 100 - 10 * number, number >= len(words)))
    out += [struct.pack("<2i", place, row) for row, place in enumerate(places)]

    def centroids(width: int, part: int) -> bytes:
        parts = -(-width // part)
        return (
            struct.pack("<4i", width, parts, part, width - part * (parts - 1))
            + rng.normal(size=width * 256).astype("<f4").tobytes()
        )

    def matrix(rows: int, quantised: bool) -> bytes:
        if not quantised:
            return (
                struct.pack("<2q", rows, dim) + rng.normal(size=(rows, dim)).astype("<f4").tobytes()
            )
        codes = rng.integers(0, 256, rows * -(-dim // 4)).astype("u1").tobytes()
        data = struct.pack("<?2qi", norms, rows, dim, len(codes)) + codes + centroids(dim, 4)
        return data + (
            rng.integers(0, 256, rows).astype("u1").tobytes() + centroids(1, 1) if norms else b""
        )

    rows = len(words) + (len(places) if pruned else buckets)
    out += [
        struct.pack("<?", quantised),
        matrix(rows, quantised),
        struct.pack("<?", norms),
        matrix(len(labels), norms),
    ]
    file.write_bytes(b"".join(out))
    return file
