"""Chooses a kind of tokenizer and its vocabulary: the settings of `tasks.tokenizer.stage`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from llm_core.config import IN_KEY_IF_SET, NOT_IN_KEY, ConfigError
from tasks.tokenizer import bpe, sentencepieces
from tasks.tokenizer.encoder import END_OF_TEXT, PAD, SPECIAL_TOKENS, UNKNOWN
from tasks.tokenizer.files import add_special
from tasks.tokenizer.importing import import_tokenizer, imported_files
from tasks.tokenizer.pretokenizers import PreTokenizerName

MAX_VOCAB_SIZE = 1 << 20

SMALLEST = {
    "bpe": bpe.MIN_VOCAB_SIZE,
    "wordpiece": bpe.MIN_WORDPIECE_VOCAB_SIZE,
    "unigram": sentencepieces.MIN_VOCAB_SIZE,
    "sentencepiece_bpe": sentencepieces.MIN_VOCAB_SIZE,
}


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
    merge_score: bpe.MergeScore = field(default="count", metadata=IN_KEY_IF_SET)
    """Which pair of pieces WordPiece merges next. count: the most frequent. likelihood: the one
    with the largest count over the product of its pieces' counts, as published; slower."""
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
        if self.kind != "import":
            self._check_training()
        if self.sample_bytes < 1:
            raise ConfigError(
                f"sample_bytes ({self.sample_bytes}) must be at least 1; try 100000000"
            )
        if not 0 <= self.sample_exponent <= 1:
            raise ConfigError(
                f"sample_exponent ({self.sample_exponent}) must be from 0 to 1; 1 keeps the mixture"
                " of the corpus"
            )
        if self.pre_tokenizer != "bounded" and self.kind != "bpe":
            raise ConfigError(
                f"pre_tokenizer ({self.pre_tokenizer}) is for kind=bpe; leave it at bounded for"
                f" {self.kind}"
            )
        if self.merge_score != "count" and self.kind != "wordpiece":
            raise ConfigError(
                f"merge_score ({self.merge_score}) is for kind=wordpiece; leave it at count for"
                f" {self.kind}"
            )
        if not 1 <= self.pad_vocab_to <= 4096:
            raise ConfigError(
                f"pad_vocab_to ({self.pad_vocab_to}) must be from 1 to 4096; try 64 or 128"
            )
        taken = [*SPECIAL_TOKENS, UNKNOWN]
        for token in self.special_tokens:
            if not token.strip() or token in taken:
                raise ConfigError(
                    f"special_tokens has {token!r}, which is blank or a token already; give each"
                    " one a name of its own"
                )
            taken.append(token)

    def _check_training(self) -> None:
        """Raise ConfigError for settings that only an import has, or a vocabulary out of range."""
        if self.path is not None:
            raise ConfigError(
                f"path ({self.path}) is for kind=import; write tokenizer=import tokenizer.path=FILE"
            )
        if self.eos_token or self.pad_token:
            raise ConfigError(
                f"eos_token and pad_token are for kind=import; {self.kind} has {END_OF_TEXT} and"
                f" {PAD}"
            )
        num_special = len(self.special_tokens)
        smallest = SMALLEST[self.kind] + num_special
        if not smallest <= self.vocab_size <= MAX_VOCAB_SIZE + num_special:
            raise ConfigError(
                f"vocab_size ({self.vocab_size}) of {self.kind} must be from {smallest} (bytes"
                f" and special tokens) to {MAX_VOCAB_SIZE + num_special}; try 4096"
            )

    def num_ids(self) -> int:
        """Number of ids of the vocabulary; a trained one has fewer if its text has too few pairs.
        Raises ConfigError for an import that cannot be read."""
        size = self.vocab_size
        if self.kind == "import":
            self.input_files()  # which asks for a path
            assert self.path is not None
            model = import_tokenizer(self.path, self.eos_token, self.pad_token).model
            add_special(model, self.special_tokens)
            size = model.get_vocab_size(with_added_tokens=True)
        return -(-size // self.pad_vocab_to) * self.pad_vocab_to

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
