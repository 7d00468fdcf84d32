"""Documents in order of preference, settings that cut them, and what cuts leave of them."""

from __future__ import annotations

import random
from dataclasses import replace

from tasks.dedup.config import CutsConfig, DedupConfig
from tests.support.data.dedup_runs import named, words

PARAGRAPHS = DedupConfig(
    method="exact", survivor=("date", "id"), cuts=CutsConfig(pieces="paragraph", min_piece_units=3)
)
LINES = replace(PARAGRAPHS, cuts=CutsConfig(pieces="line", min_piece_units=3))
RUNS = replace(PARAGRAPHS, cuts=CutsConfig(substring_units=20))


def dated(texts: list[str]) -> list[dict]:
    """In order of preference."""
    return [d | {"added_at": f"{i:06}"} for i, d in enumerate(named(texts))]


def remaining(documents: list[dict], rows: dict[str, dict]) -> dict[str, str]:
    """What is left of each kept document; checks that cuts are ordered, disjoint and on character
    borders."""
    left = {}
    for document in documents:
        row, data = rows[document["name"]], document["text"].encode("utf-8")
        if not row["kept"]:
            assert not row["cuts"]
            continue
        pieces, pos = [], 0
        for cut in row["cuts"]:
            assert pos <= cut["start"] < cut["end"] <= len(data)
            data[cut["start"] : cut["end"]].decode("utf-8")
            pieces.append(data[pos : cut["start"]])
            pos = cut["end"]
        left[document["name"]] = b"".join([*pieces, data[pos:]]).decode("utf-8")
    return left


def repetitive_texts(seed: int, separator: str) -> list[str]:
    rng = random.Random(seed)
    lines = [" ".join(words(rng.getrandbits(30), rng.randint(1, 6))) for _ in range(12)]
    return [
        separator.join(rng.choice(lines) for _ in range(rng.randint(1, 8)))
        for _ in range(rng.randint(2, 12))
    ]
