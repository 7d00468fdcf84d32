"""Trains a tokenizer on the training documents, or imports one, and measures it.

Methods: byte-level BPE and WordPiece (`tasks.tokenizer.bpe`), Unigram and sentencepiece's BPE
(`tasks.tokenizer.sentencepieces`), or a file that is there (`tasks.tokenizer.importing`). All are
lossless and never read special tokens from text; those trained here keep end-of-text at id 0 and
padding at id 1, and further special tokens at the end. Columns in: `id`, `text`, `source`,
`language`, `split`; only rows of split `train` are trained on. Out: `tokenizer.json` (and
sentencepiece's own `tokenizer.model` where there is one), `tokenizer_config.json`,
`bytes_per_token.npy`: a folder that Hugging Face's AutoTokenizer reads.

Cost: a corpus larger than `sample_bytes` is sampled over sources and languages
(`tasks.tokenizer.sample`); BPE and WordPiece stream it, the others hold it in memory. What is
measured: `tasks.tokenizer.judge`. Leaves out: normalisation of text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers

from llm_core.printing import percent
from tasks.runtime.artifact import Artifact
from tasks.runtime.parts import RunParts, serial
from tasks.runtime.stage import StageFailure
from tasks.tokenizer import bpe, sentencepieces
from tasks.tokenizer.config import TokenizerConfig
from tasks.tokenizer.encoder import END_OF_TEXT, PAD, save_tokenizer
from tasks.tokenizer.files import add_special
from tasks.tokenizer.importing import MODEL_FILE, import_tokenizer
from tasks.tokenizer.judge import judge
from tasks.tokenizer.sample import describe_strata, list_rows, read_texts, sample

RESERVED_TOKEN = "<|reserved_{}|>"


def train_tokenizer(
    documents: Artifact, out_dir: Path, config: TokenizerConfig, run_parts: RunParts = serial
) -> Artifact:
    """Train a tokenizer on documents of split `train`, or import one.

    Deterministic for equal documents and config. Raises StageFailure when there is no text to train
    on, less than a sentencepiece vocabulary of this size needs, or when documents do not come back.
    """
    rows = list_rows(documents)
    chosen = sample(rows, "train", config.sample_bytes, config.seed, config.sample_exponent)
    sampled_bytes = int(rows.num_bytes[chosen].sum())
    if not sampled_bytes:
        raise StageFailure(
            "tokenizer found no text in split train; loosen the filters or give more documents"
        )
    strata = describe_strata(rows, "train", chosen)
    counters = {"documents": int(chosen.sum()), "bytes": sampled_bytes, "skipped_bytes": 0}
    eos_token, pad_token, template = END_OF_TEXT, PAD, config.chat_template
    trained_size = config.vocab_size - len(config.special_tokens)
    model_file: bytes | None = None
    if config.kind == "import":
        assert config.path is not None
        counters |= {"documents": 0, "bytes": 0}
        given = import_tokenizer(config.path, config.eos_token, config.pad_token)
        model, model_file = given.model, given.model_file
        eos_token, pad_token = given.eos_token, given.pad_token
        template = template or given.chat_template
    elif config.kind == "bpe":
        texts = read_texts(documents, chosen)
        model = bpe.train_bpe(texts, trained_size, config.pre_tokenizer)
    elif config.kind == "wordpiece":
        texts = read_texts(documents, chosen)
        model = bpe.train_wordpiece(texts, trained_size, config.merge_score)
    else:
        method: sentencepieces.Method = "unigram" if config.kind == "unigram" else "bpe"
        held = list(read_texts(documents, chosen))
        model, model_file, training = sentencepieces.train_pieces(held, trained_size, method)
        counters["uncovered_bytes"] = training.uncovered_bytes
        counters["skipped_bytes"] = sampled_bytes - training.used_bytes - training.uncovered_bytes
    if model_file is not None:
        (out_dir / MODEL_FILE).write_bytes(model_file)
    add_special_tokens(model, config.special_tokens, config.pad_vocab_to)
    tokenizer = save_tokenizer(
        model, out_dir, eos_token, pad_token, config.special_tokens, template
    )
    metrics: dict[str, Any] = {
        "kind": config.kind,
        "strata": strata,
        "vocab_size": tokenizer.vocab_size,
        **judge(documents, rows, tokenizer, config.seed),
    }
    if metrics["round_trip_frac"] < 1.0:
        raise StageFailure(
            f"the {config.kind} tokenizer does not give"
            f" {percent(1 - metrics['round_trip_frac'], '.2')} of documents back byte for byte;"
            " choose one without normalisation that has a token for every byte, e.g. tokenizer=bpe"
        )
    return Artifact(out_dir, "tokenizer", counters, metrics)


def add_special_tokens(model: tokenizers.Tokenizer, tokens: tuple[str, ...], multiple: int) -> None:
    """Append special tokens, and reserved ones until the vocabulary is a multiple."""
    add_special(model, tokens)
    missing = -model.get_vocab_size(with_added_tokens=True) % multiple
    reserved = [RESERVED_TOKEN.format(number) for number in range(missing)]
    if taken := [token for token in reserved if model.token_to_id(token) is not None]:
        raise StageFailure(
            f"the tokenizer has a token {taken[0]} already, so its vocabulary cannot be padded;"
            " set tokenizer.pad_vocab_to=1"
        )
    add_special(model, reserved)
