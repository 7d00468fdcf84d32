"""Which tokens should text be made of? Train a tokenizer on the training documents, or take a given
one, and measure it.

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

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import AddedToken

from llm_core.config import NOT_IN_KEY, ConfigError
from tasks.runtime.artifact import Artifact
from tasks.runtime.parts import RunParts, serial
from tasks.runtime.stage import StageFailure
from tasks.tokenizer import bpe, sentencepieces
from tasks.tokenizer.encoder import (
    BYTES_FILE,
    CONFIG_FILE,
    END_OF_TEXT,
    PAD,
    SPECIAL_TOKENS,
    TOKENIZER_FILE,
    UNKNOWN,
    Tokenizer,
    export_hugging_face,
    load_tokenizer,
    save_tokenizer,
)
from tasks.tokenizer.importing import MODEL_FILE, import_tokenizer, imported_files
from tasks.tokenizer.judge import judge
from tasks.tokenizer.pretokenizers import PreTokenizerName
from tasks.tokenizer.sample import describe_strata, list_rows, read_texts, sample

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

MAX_VOCAB_SIZE = 1 << 20
SMALLEST = {
    "bpe": bpe.MIN_VOCAB_SIZE,
    "wordpiece": bpe.MIN_WORDPIECE_VOCAB_SIZE,
    "unigram": sentencepieces.MIN_VOCAB_SIZE,
    "sentencepiece_bpe": sentencepieces.MIN_VOCAB_SIZE,
}
RESERVED_TOKEN = "<|reserved_{}|>"


@dataclass(frozen=True)
class TokenizerConfig:
    """Which tokenizer is trained or imported."""

    kind: Literal["bpe", "unigram", "wordpiece", "sentencepiece_bpe", "import"] = "bpe"
    """bpe and wordpiece are byte-level; unigram and sentencepiece_bpe are sentencepiece's, with
    byte fallback; import takes the file at `path`."""
    vocab_size: int = 4096
    """Number of tokens, special tokens included; an import keeps its own. BPE gives fewer when the
    text has no more pairs to merge."""
    sample_bytes: int = 100_000_000
    """Largest amount of training text, in UTF-8; the sample comes close to it."""
    seed: int = 0
    """Chooses the documents of the sample."""
    sample_exponent: float = 1.0
    """How the sample mixes sources and languages. 1: as in the corpus; towards 0: all alike."""
    pre_tokenizer: PreTokenizerName = "bounded"
    """How byte-level BPE cuts text first. WordPiece needs `bounded`; sentencepiece always cuts
    before spaces."""
    pad_vocab_to: int = 1
    """The vocabulary is padded with reserved special tokens to a multiple of this, which suits
    matrix units."""
    special_tokens: tuple[str, ...] = ()
    """Further special tokens, such as those of a chat template."""
    chat_template: str | None = None
    """Jinja text for `apply_chat_template`. Null: an import's own, or none."""
    path: Path | None = field(default=None, metadata=NOT_IN_KEY)
    """What kind=import reads: tokenizer.json, a sentencepiece .model, or a folder. Its content is
    in the key."""
    eos_token: str | None = None
    """End-of-text token of an import. Null: the one that its files name."""
    pad_token: str | None = None
    """Padding token of an import. Null: the one that its files name, or its end-of-text token."""

    def __post_init__(self) -> None:
        if self.kind != "import" and self.path is not None:
            raise ConfigError(
                f"path ({self.path}) belongs to kind=import; write tokenizer=import"
                " tokenizer.path=FILE"
            )
        if (
            self.kind != "import"
            and not SMALLEST[self.kind]
            <= self.vocab_size - len(self.special_tokens)
            <= MAX_VOCAB_SIZE
        ):
            raise ConfigError(
                f"vocab_size ({self.vocab_size}) of {self.kind} must be from"
                f" {SMALLEST[self.kind] + len(self.special_tokens)}, what bytes and special tokens"
                f" take, to {MAX_VOCAB_SIZE}; try 4096"
            )
        if self.kind != "import" and (self.eos_token or self.pad_token):
            raise ConfigError(
                f"eos_token and pad_token are for kind=import; {self.kind} has {END_OF_TEXT} and"
                f" {PAD}"
            )
        if self.sample_bytes < 1:
            raise ConfigError(
                f"sample_bytes ({self.sample_bytes}) must be at least 1; try 100000000"
            )
        if not 0 <= self.sample_exponent <= 1:
            raise ConfigError(
                f"sample_exponent ({self.sample_exponent}) must lie between 0 and 1; 1 keeps the"
                " corpus' mixture"
            )
        if self.pre_tokenizer != "bounded" and self.kind != "bpe":
            raise ConfigError(
                f"pre_tokenizer ({self.pre_tokenizer}) is for kind=bpe; leave it at bounded for"
                f" {self.kind}"
            )
        if not 1 <= self.pad_vocab_to <= 4096:
            raise ConfigError(
                f"pad_vocab_to ({self.pad_vocab_to}) must lie between 1 and 4096; try 64 or 128"
            )
        own = [*SPECIAL_TOKENS, UNKNOWN]
        taken = [
            t
            for k, t in enumerate(self.special_tokens)
            if not t.strip() or t in own or t in self.special_tokens[:k]
        ]
        if taken:
            raise ConfigError(
                f"special_tokens ({taken[0]!r}) must be names of their own; {', '.join(own)} are"
                " there already"
            )

    def input_files(self) -> dict[str, Path]:
        """{name: file}, whose contents enter the key. Raises ConfigError where an import has
        none."""
        if self.kind != "import":
            return {}
        if self.path is None:
            raise ConfigError(
                "tokenizer.path (null) must name what tokenizer=import reads; write"
                " tokenizer.path=FILE"
            )
        return imported_files(self.path)


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
    metrics: dict[str, Any] = {
        "kind": config.kind,
        "strata": describe_strata(rows, "train", chosen),
    }
    counters: dict[str, Any] = {
        "documents": int(chosen.sum()),
        "bytes": sampled_bytes,
        "skipped_bytes": 0,
    }
    eos_token, pad_token, template = END_OF_TEXT, PAD, config.chat_template
    trained_size = config.vocab_size - len(config.special_tokens)
    model_file: bytes | None = None
    if config.kind == "import":
        assert config.path is not None
        counters |= {"documents": 0, "bytes": 0}
        given = import_tokenizer(config.path, config.eos_token, config.pad_token)
        model, model_file = given.model, given.model_file
        eos_token, pad_token, template = (
            given.eos_token,
            given.pad_token,
            template or given.chat_template,
        )
    elif config.kind in ("bpe", "wordpiece"):
        texts = read_texts(documents, chosen)
        if config.kind == "bpe":
            model = bpe.train_bpe(texts, trained_size, config.pre_tokenizer)
        else:
            model = bpe.train_wordpiece(texts, trained_size)
    else:
        method: sentencepieces.Method = "unigram" if config.kind == "unigram" else "bpe"
        model, model_file, training = sentencepieces.train_pieces(
            list(read_texts(documents, chosen)), trained_size, method
        )
        counters["uncovered_bytes"] = training.uncovered_bytes
        counters["skipped_bytes"] = sampled_bytes - training.used_bytes - training.uncovered_bytes
    if model_file is not None:
        (out_dir / MODEL_FILE).write_bytes(model_file)
    add_special_tokens(model, config.special_tokens, config.pad_vocab_to)
    tokenizer = save_tokenizer(
        model, out_dir, eos_token, pad_token, config.special_tokens, template
    )
    metrics |= {"vocab_size": tokenizer.vocab_size} | judge(documents, rows, tokenizer, config.seed)
    if metrics["round_trip_frac"] < 1.0:
        raise StageFailure(
            f"the {config.kind} tokenizer does not give {1 - metrics['round_trip_frac']:.2%} of"
            " documents back byte for byte; take one without normalisation that has a token for"
            " every byte, e.g. tokenizer=bpe"
        )
    return Artifact(out_dir, "tokenizer", counters, metrics)


def add_special_tokens(model: tokenizers.Tokenizer, tokens: tuple[str, ...], multiple: int) -> None:
    """Append special tokens, and reserved ones until the vocabulary is a multiple."""
    model.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in tokens]
    )
    missing = -model.get_vocab_size(with_added_tokens=True) % multiple
    reserved = [RESERVED_TOKEN.format(number) for number in range(missing)]
    if taken := [token for token in reserved if model.token_to_id(token) is not None]:
        raise StageFailure(
            f"{taken[0]} is a token of this tokenizer already; set tokenizer.pad_vocab_to=1"
        )
    model.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in reserved]
    )
