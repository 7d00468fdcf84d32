"""Scores held-out documents: bits per byte and perplexity of the model, with error bars, beside
n-gram baselines on the same tokens and bytes.

Perplexity is 2 to the power of bits per token, word or byte; a word is what stands between white
space, as `count_words` of lm-eval counts. Intervals are those of the bits, raised likewise. Which
of them compares with what: `docs/guides/evaluation.md`.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llm_core.config import ConfigError
from tasks.corpus.documentset import read_table
from tasks.corpus.statistics import ratio_bootstrap
from tasks.corpus.tally import OTHER, largest, tally_columns
from tasks.corpus.turns import TURNS_COLUMN, has_turns
from tasks.evaluation.config import EvaluateConfig
from tasks.runtime.artifact import Artifact
from tasks.runtime.stage import StageFailure

if TYPE_CHECKING:
    from llm_core.data.shards import Document, TokenShards
    from llm_core.model.transformer import Transformer
    from tasks.tokenizer.encoder import Tokenizer

ROUND_DIGITS = 5
"""Of bits per byte."""
PERPLEXITY_DIGITS = 3
BITS_DIGITS = 2
"""Of the bits of a document."""
COMPARED_DOCUMENTS = 20
"""Scored in float32 too, where the model is scored in less."""
STREAM_TOKENS = 1 << 22
"""Training tokens read at a time for the baselines."""


@dataclass(frozen=True)
class Scored:
    """Per document, in order of id: bits by each model, sizes, and bits of its end-of-text."""

    documents: Sequence[Document]
    num_tokens: np.ndarray
    num_words: np.ndarray
    num_bytes: np.ndarray
    bits: Mapping[str, np.ndarray]
    eos_bits: np.ndarray


def choose_window(train: Artifact, model: Transformer, config: EvaluateConfig) -> tuple[int, int]:
    """Tokens of a window, and of those the ones that only give context.

    The record of training says which length it saw; beyond that a model is worse, whatever
    max_seq_len allows. Only whole documents may be as long as the model reads.
    """
    trained = train.config.get("train", {}).get("seq_len", model.config.max_seq_len)
    if config.windows == "whole":
        trained = model.config.max_seq_len
    window = config.window_tokens or trained
    if window > model.config.max_seq_len:
        raise ConfigError(
            f"window_tokens ({window}) must be at most the model's max_seq_len"
            f" ({model.config.max_seq_len})"
        )
    return window, context_of(window, config)


def context_of(window: int, config: EvaluateConfig) -> int:
    """Tokens of a window that only give context."""
    if config.windows != "overlapping":
        return 0
    return window // 2 if config.context_tokens is None else config.context_tokens


def choose_documents(
    validation: TokenShards, config: EvaluateConfig
) -> tuple[list[Document], dict[str, int]]:
    """The documents to score, in order of id, and how many others there are."""
    ordered = sorted(validation.documents(), key=lambda d: d.id)
    filled = [d for d in ordered if d.num_bytes > 0]
    chosen = filled[: config.max_documents]
    if not chosen:
        raise StageFailure(
            f"evaluate found no text in the validation documents ({len(ordered)}); raise"
            " documents.validation_frac"
        )
    return chosen, {
        "empty": len(ordered) - len(filled),
        "over_max_documents": len(filled) - len(chosen),
    }


def check_round_trip(documents: Artifact, tokenizer: Tokenizer, chosen: Sequence[Document]) -> None:
    """Raise StageFailure unless the tokens of every chosen document are exactly its text, or, of a
    chat, as many bytes as its template made of it."""
    texts = read_texts(documents, {d.id for d in chosen})
    for document in chosen:
        if document.id not in texts:
            raise StageFailure(
                f"document {document.id.hex()} of the shards is not in {documents.path.name};"
                " rebuild with force=[shards]"
            )
        text, found = texts[document.id], tokenizer.decode_bytes(document.tokens)
        if len(found) != document.num_bytes if text is None else found != text.encode():
            raise StageFailure(
                f"the tokens of document {document.id.hex()} do not give its text back, so bits per"
                " byte would count other bytes; choose a lossless tokenizer, or rebuild with"
                " force=[tokenizer,shards]"
            )


def read_texts(documents: Artifact, ids: set[bytes]) -> dict[bytes, str | None]:
    """Text by id; None for a chat, whose tokens are those of its template too."""
    wanted = pa.array(sorted(ids), pa.binary(16))
    texts: dict[bytes, str | None] = {}
    for file in documents.files("part-*.parquet"):
        turns = [TURNS_COLUMN] if has_turns(file) else []
        table = read_table(file, ["id", "text", *turns])
        table = table.filter(pc.is_in(table["id"], wanted))
        found = table["text"].to_pylist()
        if turns:
            chats = table[TURNS_COLUMN].is_valid().to_pylist()
            found = [None if chat else text for text, chat in zip(found, chats, strict=True)]
        texts |= dict(zip(table["id"].to_pylist(), found, strict=True))
    return texts


def score(
    model: Transformer,
    tokenizer: Tokenizer,
    training: TokenShards,
    chosen: Sequence[Document],
    window: int,
    context: int,
    config: EvaluateConfig,
) -> Scored:
    """Bits of every chosen document by the model, the unigram and the bigram."""
    from llm_core.infer.bits_per_byte import score_documents
    from tasks.evaluation.ngrams import score_ngrams

    eos = tokenizer.eos_id
    tokens = [np.asarray(d.tokens[: config.max_document_tokens], np.int64) for d in chosen]
    by_model = score_documents(
        model, tokens, eos, window, context, config.batch_tokens, config.windows
    )
    unigram, bigram = score_ngrams(stream(training), tokens, model.config.vocab_size, eos)
    # The closing end-of-text is a token that the model predicts, but no byte of the text.
    is_text = [t != eos for t in tokens]
    bits = {
        name: np.array([b[text].sum() for b, text in zip(each, is_text, strict=True)])
        for name, each in (("model", by_model), ("unigram", unigram), ("bigram", bigram))
    }
    texts = [
        tokenizer.decode_bytes(t[text]).decode("utf-8", "replace")
        for t, text in zip(tokens, is_text, strict=True)
    ]
    return Scored(
        documents=chosen,
        num_tokens=np.array([text.sum() for text in is_text]),
        num_words=np.array([len(re.split(r"\s+", text)) for text in texts]),
        num_bytes=np.array([tokenizer.bytes_per_token[t].sum() for t in tokens], np.int64),
        bits=bits,
        eos_bits=np.concatenate([b[~text] for b, text in zip(by_model, is_text, strict=True)]),
    )


def wanted_dtype(config: EvaluateConfig, device_type: str) -> str:
    auto = "bfloat16" if device_type == "cuda" else "float32"
    return auto if config.dtype == "auto" else config.dtype


def to_scoring_dtype(
    model: Transformer,
    tokenizer: Tokenizer,
    chosen: Sequence[Document],
    window: int,
    context: int,
    config: EvaluateConfig,
    answer: Callable[[], Sequence[int]],
) -> dict[str, Any]:
    """Convert the model in place to the type it is scored in; give that type and what it costs.

    bfloat16 costs bits per byte, measured on the first documents, and changes a share of the
    answers. answer: gives the choices of the model in some items of suites.
    """
    import torch

    from llm_core.infer.bits_per_byte import score_documents
    from llm_core.infer.cache.rows import place_of

    dtype, device = place_of(model)
    wanted = wanted_dtype(config, device.type)
    if wanted != "bfloat16" or dtype != torch.float32:
        model.to(getattr(torch, wanted))
        return {"dtype": wanted}
    first = chosen[:COMPARED_DOCUMENTS]
    tokens = [np.asarray(d.tokens[: config.max_document_tokens], np.int64) for d in first]
    sizes = tokenizer.eos_id, window, context, config.batch_tokens, config.windows
    num_bytes = sum(int(tokenizer.bytes_per_token[t].sum()) for t in tokens)
    exact = math.fsum(np.concatenate(score_documents(model, tokens, *sizes)))
    answers = answer()
    model.bfloat16()
    changed = sum(one != other for one, other in zip(answers, answer(), strict=True))
    rough = math.fsum(np.concatenate(score_documents(model, tokens, *sizes)))
    found = {
        "dtype": wanted,
        "bits_per_byte_more_than_float32": rounded((rough - exact) / num_bytes),
        "dtypes_compared_on_documents": len(first),
    }
    if not answers:
        return found
    share = {"answers_changed_from_float32_frac": rounded(changed / len(answers))}
    return found | share | {"dtypes_compared_on_items": len(answers)}


def stream(training: TokenShards) -> Iterator[np.ndarray]:
    for begin in range(0, training.num_tokens, STREAM_TOKENS):
        yield training.read(begin, min(begin + STREAM_TOKENS, training.num_tokens))


def summarise(scored: Scored, config: EvaluateConfig) -> dict[str, Any]:
    """Headline, baselines, perplexities and groups as plain numbers."""
    sizes = {"token": scored.num_tokens, "word": scored.num_words, "byte": scored.num_bytes}

    def perplexity(rows: np.ndarray | slice = slice(None)) -> dict[str, Any]:
        found = {}
        for unit, counts in sizes.items():
            bits, num_samples = scored.bits["model"][rows], config.bootstrap_samples
            interval = ratio_bootstrap(bits, counts[rows], num_samples, config.seed)
            found[unit] = {
                name: None if bits is None else _raised(bits)
                for name in ("value", "low", "high")
                for bits in [getattr(interval, name)]
            }
        return found

    def ratio(bits: np.ndarray, rows: np.ndarray | slice = slice(None)) -> dict[str, Any]:
        num_bytes, num_samples = scored.num_bytes[rows], config.bootstrap_samples
        interval = ratio_bootstrap(bits[rows], num_bytes, num_samples, config.seed)
        numbers = ("value", "low", "high", "standard_error")
        return {name: rounded(getattr(interval, name)) for name in numbers} | {
            "documents": interval.num_observations,
            "bytes": int(num_bytes.sum()),
            "small": interval.num_observations < config.small_group_documents,
        }

    def groups(names: Sequence[str | None]) -> dict[str, Any]:
        named = [name or "und" for name in names]
        shown = largest(tally_columns(pa.array(named), pa.array(scored.num_bytes)))
        labels = np.array([name if name in shown else OTHER for name in named])
        found = {}
        for name in np.unique(labels):
            rows = np.flatnonzero(labels == name)
            group = {"perplexity": perplexity(rows)}
            found[str(name)] = ratio(scored.bits["model"], rows) | group
        return found

    headline, unigram, bigram = (
        ratio(scored.bits[name]) for name in ("model", "unigram", "bigram")
    )
    best = "bigram" if bigram["value"] <= unigram["value"] else "unigram"
    documents, num_bytes = headline["documents"], headline["bytes"]
    return {
        "val_bpb": {**headline, "level": 0.95, "num_documents": documents, "num_bytes": num_bytes},
        "unigram_bpb": unigram["value"],
        "bigram_bpb": bigram["value"],
        "baselines": {"unigram": unigram, "bigram": bigram},
        # Paired: both models are resampled together, so the interval is that of the difference.
        "gain_over_best_baseline": (
            ratio(scored.bits[best] - scored.bits["model"]) | {"baseline": best}
        ),
        "perplexity": perplexity(),
        "bits_per_token": rounded(math.fsum(scored.bits["model"]) / int(scored.num_tokens.sum())),
        "eos_bits_per_document": (
            rounded(float(scored.eos_bits.mean())) if len(scored.eos_bits) else None
        ),
        "by_source": groups([d.source for d in scored.documents]),
        "by_language": groups([d.language for d in scored.documents]),
    }


def document_rows(scored: Scored) -> list[dict[str, Any]]:
    """One row per document, so that two models can be compared on the same documents."""
    return [
        {
            "id": d.id.hex(),
            "bits": round(float(bits), BITS_DIGITS),
            "bytes": int(num_bytes),
            "tokens": int(tokens),
        }
        for d, bits, num_bytes, tokens in zip(
            scored.documents, scored.bits["model"], scored.num_bytes, scored.num_tokens, strict=True
        )
    ]


def _raised(bits: float) -> float | None:
    """2 to the power of `bits`; None where a double cannot hold it: text without spaces."""
    return round(2.0**bits, PERPLEXITY_DIGITS) if bits < sys.float_info.max_exp else None


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, ROUND_DIGITS)


def policy_of(window: int, context: int, config: EvaluateConfig) -> dict[str, Any]:
    """What the numbers mean, for whoever reads them elsewhere."""
    scored = "scored from there, whole documents"
    if config.max_document_tokens is not None:
        scored = f"the first {config.max_document_tokens} tokens of each document"
    return {
        "document_start": f"end-of-text id as the only context; {scored}",
        "end_of_text": "its bits are in no bits-per-byte figure; eos_bits_per_document has them",
        "windows": config.windows,
        "window_tokens": window,
        "context_tokens": context,
        "interval": "95 % bootstrap of the ratio over documents, percentiles expanded for few of"
        f" them, {config.bootstrap_samples} samples",
        "token perplexity": "compares with models of the same tokenizer",
        "word perplexity": "compares across tokenizers on the same text; means nothing for scripts"
        " without spaces between words",
        "byte perplexity": "compares across tokenizers on the same text",
        "baselines": "add-one smoothed counts of the training shards, same tokens, same bytes",
    }
