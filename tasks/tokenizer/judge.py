"""Measures a tokenizer on this corpus: counts over a sample of each split, by language and by
source.

`bytes_per_token`: UTF-8 bytes over tokens. `fertility`: tokens over words, runs without white
space. `unknown_frac`, `partial_character_frac` and `single_character_frac`: shares of tokens that
are unknown, hold bytes of no whole text, or are one character. `round_trip_frac`: share of
documents that come back byte for byte.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from tasks.runtime.artifact import Artifact
from tasks.tokenizer.encoder import Tokenizer
from tasks.tokenizer.sample import Rows, read_texts, sample

MEASURED_BYTES = 8_000_000
"""At most this much text of each split is measured."""
MAX_GROUPS = 100
LONGEST_SHOWN = 30


def judge(documents: Artifact, rows: Rows, tokenizer: Tokenizer, seed: int) -> dict[str, Any]:
    """The metrics named above, of everything and of each language and source."""
    pieces = [_text(tokenizer.decode_bytes([id])) for id in range(tokenizer.vocab_size)]
    is_partial = np.array([piece is None for piece in pieces])
    is_single = np.array([piece is not None and len(piece) == 1 for piece in pieces])
    unknown_id = -1 if tokenizer.unknown_id is None else tokenizer.unknown_id
    total, splits = Counter[str](), {}
    languages: dict[str, Counter[str]] = {}
    sources: dict[str, Counter[str]] = {}
    for split in sorted(set(rows.split)):
        chosen = sample(rows, split, MEASURED_BYTES, seed)
        splits[split] = Counter[str]()
        texts = read_texts(documents, chosen)
        for text, stratum in zip(texts, rows.stratum[chosen].tolist(), strict=True):
            raw, ids = text.encode(), tokenizer.encode(text)
            counts = {
                "documents": 1,
                "bytes": len(raw),
                "tokens": len(ids),
                "words": len(text.split()),
                "partial": int(is_partial[ids].sum()),
                "single": int(is_single[ids].sum()),
                "round_trips": int(tokenizer.decode_bytes(ids) == raw),
                "unknown": int(np.count_nonzero(ids == unknown_id)),
            }
            source, language = rows.strata[stratum]
            for group in (
                total,
                splits[split],
                languages.setdefault(language, Counter()),
                sources.setdefault(source, Counter()),
            ):
                group.update(counts)
    longest = sorted(
        range(tokenizer.vocab_size), key=lambda id: (-int(tokenizer.bytes_per_token[id]), id)
    )[:LONGEST_SHOWN]
    return _shares(total) | {
        "bytes_per_token": {split: _ratio(c, "bytes", "tokens") for split, c in splits.items()},
        "by_language": _table(languages),
        "by_source": _table(sources),
        "sample_tokens": [tokenizer.decode([id]) for id in longest],
    }


def _shares(counts: Counter[str]) -> dict[str, float]:
    return {
        "fertility": _ratio(counts, "tokens", "words"),
        "unknown_frac": _ratio(counts, "unknown", "tokens"),
        "partial_character_frac": _ratio(counts, "partial", "tokens"),
        "single_character_frac": _ratio(counts, "single", "tokens"),
        "round_trip_frac": _ratio(counts, "round_trips", "documents"),
    }


def _table(groups: dict[str, Counter[str]]) -> dict[str, Any]:
    """The largest groups by name; the rest is summed up."""
    ranked = sorted(groups, key=lambda name: (-groups[name]["bytes"], name))
    shown = {name: groups[name] for name in sorted(ranked[:MAX_GROUPS])}
    if rest := ranked[MAX_GROUPS:]:
        shown["(other)"] = sum((groups[name] for name in rest), Counter[str]())
    return {
        name: {"documents": c["documents"], "bytes_per_token": _ratio(c, "bytes", "tokens")}
        | _shares(c)
        for name, c in shown.items()
    }


def _ratio(counts: Counter[str], over: str, under: str) -> float:
    return counts[over] / counts[under] if counts[under] else 0.0


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
