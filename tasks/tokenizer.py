"""Which tokens should text be made of? Train a tokenizer on the training documents, and measure it.

Methods: byte-level BPE (`tasks.bpe`) and Unigram (`tasks.unigram`). Both are lossless, keep end-of-text at id 0 and
padding at id 1, and never read special tokens from text. Columns in: `id`, `text`, `language`, `split`; only rows of split
`train` are trained on. Out: `tokenizer.json` (and sentencepiece's own `tokenizer.model` for Unigram),
`tokenizer_config.json`, `bytes_per_token.npy`.

Cost: a corpus larger than `sample_bytes` is sampled, by documents, by a keyed hash of their ids; BPE streams it, Unigram holds it
in memory. Measured on at most MEASURED_BYTES of each split: bytes per token, tokens per word (a run without white space), share
of unknown tokens, of tokens that hold only part of a character, and of documents that come back byte for byte.
Leaves out: normalisation of text, and a sample balanced over languages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from llm_core.config import ConfigError
from llm_core.order import hash_ids
from tasks import bpe, unigram
from tasks.artifact import Artifact
from tasks.encoder import BYTES_FILE, CONFIG_FILE, TOKENIZER_FILE, Tokenizer, export_hugging_face, load_tokenizer, save_tokenizer
from tasks.parts import RunParts, serial
from tasks.stage import StageFailure

__all__ = [
    "BYTES_FILE",
    "CONFIG_FILE",
    "TOKENIZER_FILE",
    "Tokenizer",
    "TokenizerConfig",
    "export_hugging_face",
    "load_tokenizer",
    "train_tokenizer",
]

MEASURED_BYTES = 8_000_000
MAX_VOCAB_SIZE = 1 << 20


@dataclass(frozen=True)
class TokenizerConfig:
    kind: Literal["bpe", "unigram"] = "bpe"
    """Byte-level byte-pair encoding, or Unigram with byte fallback."""
    vocab_size: int = 4096
    """Tokens, special tokens included. BPE gives fewer when the text has no more pairs to merge."""
    sample_bytes: int = 100_000_000
    """Train on at most about this much text (UTF-8)."""
    seed: int = 0
    """Chooses the documents of the sample."""

    def __post_init__(self) -> None:
        smallest = {"bpe": bpe.MIN_VOCAB_SIZE, "unigram": unigram.MIN_VOCAB_SIZE}[self.kind]
        if not smallest <= self.vocab_size <= MAX_VOCAB_SIZE:
            raise ConfigError(
                f"vocab_size ({self.vocab_size}) of {self.kind} must be from {smallest}, what bytes and special tokens take, "
                f"to {MAX_VOCAB_SIZE}; try 4096"
            )
        if self.sample_bytes < 1:
            raise ConfigError(f"sample_bytes ({self.sample_bytes}) must be at least 1; try 100000000")


def train_tokenizer(documents: Artifact, out_dir: Path, config: TokenizerConfig, run_parts: RunParts = serial) -> Artifact:
    """Train a tokenizer on documents of split `train`.

    Deterministic for equal documents and config. Raises StageFailure when there is no text to train on, or
    less than a Unigram vocabulary of this size needs.
    """
    rows = _list_rows(documents)
    chosen = _sample(rows, rows["split"] == "train", config.sample_bytes, config.seed)
    trained_bytes = int(rows["num_bytes"][chosen].sum())
    if not trained_bytes:
        raise StageFailure("tokenizer found no text in split train; loosen the filters or give more documents")
    texts = (text for text, _ in _texts(documents, chosen))
    metrics: dict[str, Any] = {"kind": config.kind}
    counters: dict[str, Any] = {"documents": int(chosen.sum()), "bytes": trained_bytes, "skipped_bytes": 0}
    if config.kind == "bpe":
        model = bpe.train_bpe(texts, config.vocab_size)
    else:
        model, model_file, training = unigram.train_unigram(list(texts), config.vocab_size)
        (out_dir / "tokenizer.model").write_bytes(model_file)
        counters["uncovered_bytes"] = training.uncovered_bytes
        counters["skipped_bytes"] = trained_bytes - training.used_bytes - training.uncovered_bytes
    tokenizer = save_tokenizer(model, out_dir)
    metrics |= {"vocab_size": tokenizer.vocab_size} | _measure(documents, rows, tokenizer, config.seed)
    if metrics["round_trip_frac"] < 1.0:
        raise StageFailure(f"the {config.kind} tokenizer does not give {1 - metrics['round_trip_frac']:.2%} of documents back")
    return Artifact(out_dir, "tokenizer", counters, metrics)


def _list_rows(documents: Artifact) -> dict[str, np.ndarray]:
    """split, hash-ready id, UTF-8 length and language of every document, in file order."""
    ids, splits, sizes, languages = [], [], [], []
    for file in documents.files("part-*.parquet"):
        for batch in pq.ParquetFile(file).iter_batches(columns=["id", "text", "language", "split"], use_threads=False):
            ids.append(np.frombuffer(b"".join(batch["id"].to_pylist()), np.uint8).reshape(-1, 16))
            sizes.append(pc.binary_length(batch["text"]).to_numpy().astype(np.int64))
            splits.append(np.array(batch["split"].to_pylist(), object))
            languages.append(np.array(batch["language"].to_pylist(), object))
    if not ids:
        raise StageFailure("tokenizer got no documents; loosen the filters or give more documents")
    columns = {"id": ids, "num_bytes": sizes, "split": splits, "language": languages}
    return {name: np.concatenate(chunks) for name, chunks in columns.items()}


def _sample(rows: dict[str, np.ndarray], allowed: np.ndarray, max_bytes: int, seed: int) -> np.ndarray:
    """Mask of allowed documents, in the order of their keyed hash until `max_bytes` are reached."""
    hashes = hash_ids(rows["id"], seed)
    order = np.flatnonzero(allowed)
    order = order[np.argsort(hashes[order], kind="stable")]
    before = np.cumsum(rows["num_bytes"][order]) - rows["num_bytes"][order]
    mask = np.zeros(len(allowed), bool)
    mask[order[before < max_bytes]] = True
    return mask


def _texts(documents: Artifact, mask: np.ndarray) -> Iterator[tuple[str, str]]:
    """(text, language) of the masked documents, in file order."""
    row = 0
    for file in documents.files("part-*.parquet"):
        for batch in pq.ParquetFile(file).iter_batches(columns=["text", "language"], use_threads=False):
            chosen = mask[row : row + batch.num_rows]
            row += batch.num_rows
            if chosen.any():
                kept = batch.filter(chosen)
                yield from zip(kept["text"].to_pylist(), (x or "und" for x in kept["language"].to_pylist()), strict=True)


def _measure(documents: Artifact, rows: dict[str, np.ndarray], tokenizer: Tokenizer, seed: int) -> dict[str, Any]:
    splits: dict[str, Counter[str]] = {}
    languages: dict[str, Counter[str]] = {}
    total = Counter[str]()
    is_partial = np.array([not _is_text(tokenizer.decode_bytes([id])) for id in range(tokenizer.vocab_size)])
    for split in sorted(set(rows["split"])):
        chosen = _sample(rows, rows["split"] == split, MEASURED_BYTES, seed)
        for text, language in _texts(documents, chosen):
            raw, ids = text.encode(), tokenizer.encode(text)
            counts = {"documents": 1, "bytes": len(raw), "tokens": len(ids), "words": len(text.split())}
            counts |= {"partial": int(is_partial[ids].sum()), "round_trips": int(tokenizer.decode_bytes(ids) == raw)}
            counts |= {"unknown": int(np.sum(ids == tokenizer.unknown_id)) if tokenizer.unknown_id is not None else 0}
            for group in (total, splits.setdefault(split, Counter()), languages.setdefault(language, Counter())):
                group.update(counts)
    longest = sorted(range(tokenizer.vocab_size), key=lambda id: (-int(tokenizer.bytes_per_token[id]), id))[:30]
    return {
        "bytes_per_token": {split: _ratio(c, "bytes", "tokens") for split, c in splits.items()},
        "fertility": _ratio(total, "tokens", "words"),
        "unknown_frac": _ratio(total, "unknown", "tokens"),
        "partial_character_frac": _ratio(total, "partial", "tokens"),
        "round_trip_frac": _ratio(total, "round_trips", "documents"),
        "by_language": {
            language: {"bytes_per_token": _ratio(c, "bytes", "tokens"), "documents": c["documents"]}
            for language, c in sorted(languages.items())
        },
        "sample_tokens": [tokenizer.decode([id]) for id in longest],
    }


def _ratio(counts: Counter[str], over: str, under: str) -> float:
    return counts[over] / counts[under] if counts[under] else 0.0


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
