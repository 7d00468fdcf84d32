"""Measures how well the model predicts unseen text: bits per UTF-8 byte on validation documents,
with error bars.

bits per byte = Σ −log2 p(token) / Σ bytes, over whole documents, each scored from its own start
with the end-of-text id as its only context (`llm_core.infer.bits_per_byte` has the window policy).
The bits of the closing end-of-text are in neither sum; they are reported apart. Bytes are those of
the text itself: a tokenizer that does not give a document back byte for byte is refused, for its
numbers would compare with nothing. 95 % intervals come from a bootstrap over documents. Beside it,
on exactly the same tokens and bytes: add-one unigram and bigram models of the training shards.

In: `id, text` of documents, `tokens, id, source, language, num_bytes` of the validation shards, the
tokens of the training shards. Out: `eval.json`, with a row per document for paired comparisons, and
`samples.json` (scrubbed). Numbers are rounded to what float32 passes can promise. Cost: one forward
over at most twice the scored tokens, and one pass over the training tokens. Leaves out: downstream
suites.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llm_core.config import ConfigError
from tasks.corpus.documentset import read_table
from tasks.corpus.statistics import ratio_bootstrap
from tasks.corpus.tally import OTHER, largest, tally_columns
from tasks.evaluation.config import EvaluateConfig, EvaluateStageConfig, GenerateConfig
from tasks.evaluation.generate import TextStream, answer_limits, generate_texts
from tasks.evaluation.models import open_models
from tasks.runtime.artifact import Artifact, write_json
from tasks.runtime.parts import RunParts, serial
from tasks.runtime.stage import StageFailure

if TYPE_CHECKING:
    from llm_core.data.shards import Document, TokenShards
    from llm_core.model.transformer import Transformer
    from tasks.tokenizer.encoder import Tokenizer

ROUND_DIGITS = 5
"""Of bits per byte."""
BITS_DIGITS = 2
"""Of the bits of a document."""
STREAM_TOKENS = 1 << 22
"""Training tokens read at a time for the baselines."""


@dataclass(frozen=True)
class Scored:
    """Per document, in order of id: bits by each model, bytes, and bits of its end-of-text."""

    documents: Sequence[Document]
    num_tokens: np.ndarray
    num_bytes: np.ndarray
    bits: Mapping[str, np.ndarray]
    eos_bits: np.ndarray


def evaluate_model(
    documents: Artifact,
    tokenizer: Artifact,
    shards: Artifact,
    train: Artifact,
    out_dir: Path,
    config: EvaluateStageConfig,
    run_parts: RunParts = serial,
) -> Artifact:
    """Score validation documents with the trained model and n-gram baselines, and write samples.

    Deterministic for equal input and config, in whatever order the shards hold the documents.
    Raises StageFailure without validation documents, or where the tokenizer is not lossless.
    """
    import torch

    from llm_core.data.shards import open_shards
    from tasks.tokenizer.encoder import load_tokenizer

    scoring, generation = config.evaluate, config.generate
    ranks, replicas = scoring.tensor_parallel, scoring.data_parallel
    with open_models(ranks, scoring.device, data_parallel=replicas) as models:
        model = models.load(train.path / "model", torch.float32)
        codec = load_tokenizer(tokenizer.path)
        validation, training = (
            open_shards(shards.path, "validation"),
            open_shards(shards.path, "train"),
        )
        for split in (validation, training):
            split.check_ids(model.config.vocab_size)
        chosen, skipped = choose_documents(validation, codec, scoring)
        check_round_trip(documents, codec, chosen)
        window, context = choose_window(train, model, scoring)
        prompts = choose_prompts(codec, chosen, scoring)
        # A prompt that does not fit is an error before anything is scored.
        answer_limits(model, codec, prompts, generation.max_new_tokens)
        scored = score(model, codec, training, chosen, window, context, scoring)
        samples = write_samples(model, codec, prompts, generation)
    counts = skipped | {
        "documents": len(chosen),
        "tokens": int(scored.num_tokens.sum()),
        "bytes": int(scored.num_bytes.sum()),
    }
    policy = _policy(window, context, scoring)
    result = summarise(scored, scoring) | {"policy": policy, "counts": counts}
    write_json(out_dir / "eval.json", result | {"documents": document_rows(scored)})
    write_json(out_dir / "samples.json", samples)
    return Artifact(out_dir, "evaluate", counts, result | {"samples": samples})


def _policy(window: int, context: int, config: EvaluateConfig) -> dict[str, Any]:
    """What the numbers mean, for whoever reads them elsewhere."""
    scored = "scored from there, whole documents"
    if config.max_document_tokens is not None:
        scored = f"the first {config.max_document_tokens} tokens of each document"
    return {
        "document_start": f"end-of-text id as the only context; {scored}",
        "end_of_text": "its bits are in no bits-per-byte figure; eos_bits_per_document has them",
        "window_tokens": window,
        "context_tokens": context,
        "interval": "95 % percentile bootstrap of the ratio over documents,"
        f" {config.bootstrap_samples} samples",
        "baselines": "add-one smoothed counts of the training shards, same tokens, same bytes",
    }


def choose_window(train: Artifact, model: Transformer, config: EvaluateConfig) -> tuple[int, int]:
    """Tokens of a window, and of those the ones that only give context.

    The record of training says which length it saw; beyond that a model is worse, whatever
    max_seq_len allows.
    """
    trained = train.config.get("train", {}).get("seq_len", model.config.max_seq_len)
    window = config.window_tokens or trained
    if window > model.config.max_seq_len:
        raise ConfigError(
            f"window_tokens ({window}) must be at most the model's max_seq_len"
            f" ({model.config.max_seq_len})"
        )
    return window, window // 2 if config.context_tokens is None else config.context_tokens


def choose_documents(
    validation: TokenShards, tokenizer: Tokenizer, config: EvaluateConfig
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
    """Raise StageFailure unless the tokens of every chosen document are exactly its text."""
    texts = read_texts(documents, {d.id for d in chosen})
    for document in chosen:
        if document.id not in texts:
            raise StageFailure(
                f"document {document.id.hex()} of the shards is not in {documents.path.name};"
                " rebuild with force=[shards]"
            )
        if tokenizer.decode_bytes(document.tokens) != texts[document.id].encode():
            raise StageFailure(
                f"the tokens of document {document.id.hex()} do not give its text back, so bits per"
                " byte would count other bytes; choose a lossless tokenizer, or rebuild with"
                " force=[tokenizer,shards]"
            )


def read_texts(documents: Artifact, ids: set[bytes]) -> dict[bytes, str]:
    wanted = pa.array(sorted(ids), pa.binary(16))
    texts: dict[bytes, str] = {}
    for file in documents.files("part-*.parquet"):
        table = read_table(file, ["id", "text"])
        table = table.filter(pc.is_in(table["id"], wanted))
        texts |= dict(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True))
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
    by_model = score_documents(model, tokens, eos, window, context, config.batch_tokens)
    unigram, bigram = score_ngrams(stream(training), tokens, model.config.vocab_size, eos)
    # The closing end-of-text is a token that the model predicts, but no byte of the text.
    is_text = [t != eos for t in tokens]
    bits = {
        name: np.array([b[text].sum() for b, text in zip(each, is_text, strict=True)])
        for name, each in (("model", by_model), ("unigram", unigram), ("bigram", bigram))
    }
    return Scored(
        documents=chosen,
        num_tokens=np.array([text.sum() for text in is_text]),
        num_bytes=np.array([tokenizer.bytes_per_token[t].sum() for t in tokens], np.int64),
        bits=bits,
        eos_bits=np.concatenate([b[~text] for b, text in zip(by_model, is_text, strict=True)]),
    )


def stream(training: TokenShards) -> Iterator[np.ndarray]:
    for begin in range(0, training.num_tokens, STREAM_TOKENS):
        yield training.read(begin, min(begin + STREAM_TOKENS, training.num_tokens))


def summarise(scored: Scored, config: EvaluateConfig) -> dict[str, Any]:
    """Headline, baselines and groups as plain numbers."""

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
        return {
            str(name): ratio(scored.bits["model"], np.flatnonzero(labels == name))
            for name in np.unique(labels)
        }

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


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, ROUND_DIGITS)


def choose_prompts(
    tokenizer: Tokenizer, chosen: Sequence[Document], config: EvaluateConfig
) -> list[list[int]]:
    """The configured prompts, and the first tokens of some documents."""
    prompts = [tokenizer.encode(text).tolist() for text in config.sample_prompts]
    for document in chosen[: config.num_document_prompts]:
        closed = document.tokens[-1] == tokenizer.eos_id
        text_tokens = document.tokens[:-1] if closed else document.tokens
        prompts.append(text_tokens[: config.document_prompt_tokens].tolist())
    return prompts


def write_samples(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    config: GenerateConfig,
) -> list[dict[str, str]]:
    """Continuations of prompts, all scrubbed. Prompt and text are whole characters."""
    from tasks.pii.scrub import scrub

    answers = generate_texts(
        model,
        tokenizer,
        prompts,
        config.sampling(),
        config.max_new_tokens,
        stop_strings=config.stop,
    )
    texts = [TextStream(tokenizer).add(prompt) for prompt in prompts]
    return [
        {"prompt": scrub(text), "text": scrub(answer.text)}
        for text, answer in zip(texts, answers, strict=True)
    ]
