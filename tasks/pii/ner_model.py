"""Applies a named-entity model to documents: which type of personal data each token belongs to.

Token classification (Devlin et al. 2019, section 5.3) by any such model of Transformers, in float32
on one thread of the CPU. A token has a type where the labels of that type together have at least
`min_score` of its probability.

Every window of tokens is computed alone, without padding: other rows of a batch change the last
bits of a product, and so, once in a while, a span. The same text therefore has the same spans in
any company. Long documents are read in windows that overlap; each token is judged where it has at
least `MARGIN_TOKENS` on both sides. What is cut, and where, depends on the document alone.
Cost: that of the model; a base model of 86 million weights needs some 0.2 GFLOP a token.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from llm_core.config import ConfigError
from tasks.pii.config import PiiConfig
from tasks.pii.ner_folder import TOKENIZER_FILE, label_types

WINDOW_TOKENS = 256
MARGIN_TOKENS = 32
MAX_PIECE_CHARS = 4096
"""Tokenized at once. Some tokenizers take quadratic time for a text without blanks."""
_ONE_THREAD = threading.Lock()
"""The number of threads belongs to the process, so one caller at a time sets it to one."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of one text that have a type. Arrays of equal length, in order."""

    starts: np.ndarray
    """Offsets in code points, int64."""
    ends: np.ndarray
    types: np.ndarray
    """Places in `EntityModel.types`, int64."""


@dataclass(frozen=True)
class EntityModel:
    """A loaded model with its tokenizer."""

    model: Any
    tokenizer: Any
    types: tuple[str, ...]
    members: np.ndarray
    """bool [types, labels]: which labels stand for each type."""
    min_score: float
    before: list[int]
    """Ids of the special tokens around a window."""
    after: list[int]
    window: int
    """Tokens of a window, special ones not counted."""
    margin: int

    def tokens_of(self, text: str) -> Tokens:
        """Tokens of `text` that have a type. Raises ConfigError where the model gives NaN."""
        ids, starts, ends = self._tokenized(text)
        scores = np.concatenate(
            [np.zeros((0, len(self.types)), np.float32), *self._scores_of_windows(ids)]
        )
        types = scores.argmax(axis=1)
        chosen = np.flatnonzero(scores.max(axis=1) >= self.min_score)
        return Tokens(starts[chosen], ends[chosen], types[chosen])

    def _tokenized(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids, first and last code point of each token, int64 each."""
        ids, starts, ends = [], [], []
        for begin, end in pieces(text):
            encoded = self.tokenizer.encode(text[begin:end], add_special_tokens=False)
            ids += encoded.ids
            starts += [begin + start for start, _ in encoded.offsets]
            ends += [begin + stop for _, stop in encoded.offsets]
        return np.array(ids, np.int64), np.array(starts, np.int64), np.array(ends, np.int64)

    def _scores_of_windows(self, ids: np.ndarray) -> Iterator[np.ndarray]:
        """float32 [tokens, types] of one window after the other, each token once."""
        import torch

        for first, last, low, high in windows(len(ids), self.window, self.margin):
            row = torch.tensor([[*self.before, *ids[low:high].tolist(), *self.after]])
            with torch.inference_mode():
                logits_TL = self.model(row).logits[0].float()  # T tokens · L labels
                labels_TL = torch.softmax(logits_TL, dim=-1).numpy()
            if np.isnan(labels_TL).any():
                raise ConfigError(
                    "ner: the model gives NaN; its training went wrong, so give another"
                )
            inside = labels_TL[len(self.before) + first - low : len(self.before) + last - low]
            yield np.stack([inside[:, labels].sum(axis=1) for labels in self.members], axis=1)

    def tokens_of_all(self, texts: Iterator[str]) -> Iterator[Tokens]:
        """`tokens_of` each text, on one thread whatever the process has set."""
        import torch

        with _ONE_THREAD:
            before = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                for text in texts:
                    yield self.tokens_of(text)
            finally:
                torch.set_num_threads(before)


def pieces(text: str) -> Iterator[tuple[int, int]]:
    """(first, last) code point of pieces of a text that are tokenized by themselves: whole lines
    where they fit, cut before a blank where there is one."""
    begin = 0
    while len(text) - begin > MAX_PIECE_CHARS:
        stop = begin + MAX_PIECE_CHARS
        # Before the blank: a tokenizer that joins it to the next word gives the same tokens.
        cut = next((at for sign in "\n " if (at := text.rfind(sign, begin + 1, stop)) > 0), stop)
        yield begin, cut
        begin = cut
    if begin < len(text):
        yield begin, len(text)


def windows(num_tokens: int, window: int, margin: int) -> Iterator[tuple[int, int, int, int]]:
    """For each window the tokens [first, last) that it judges and those [low, high) that it reads.

    Those that are judged follow each other without a gap.
    """
    if num_tokens <= window:
        if num_tokens:
            yield 0, num_tokens, 0, num_tokens
        return
    step = window - 2 * margin
    for first in range(0, num_tokens, step):
        last = min(first + step, num_tokens)
        yield first, last, max(0, first - margin), min(last + margin, num_tokens)


@functools.lru_cache(maxsize=1)
def load_model(
    folder: Path, digest: str, types: tuple[str, ...], labels: tuple[tuple[str, str], ...]
) -> EntityModel:
    """A model of a folder whose files have this digest, without its threshold.

    Raises ConfigError where files are damaged or weights are missing.
    """
    from tokenizers import Tokenizer
    from transformers import AutoModelForTokenClassification
    from transformers.utils import logging

    kinds = label_types(folder, types, dict(labels))
    members = np.array([[kind == name for kind in kinds] for name in types])
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
        model, facts = AutoModelForTokenClassification.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            attn_implementation="eager",
            dtype="float32",
            output_loading_info=True,
        )
    # The libraries raise Exception itself for a damaged file, among others.
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"ner ({folder}) cannot be loaded ({reason}); copy it again") from error
    finally:
        if shown:
            logging.enable_progress_bar()
    if missing := sorted(facts["missing_keys"]):
        raise ConfigError(
            f"ner ({folder}) has no weights {', '.join(missing[:3])}; give a model that is trained"
            " for token classification"
        )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    framed = tokenizer.encode("a")
    special = np.array(framed.special_tokens_mask, bool)
    first = int(special.argmin()) if len(special) else 0
    last = len(special) - int(special[::-1].argmin())
    before, after = framed.ids[:first], framed.ids[last:]
    # Some models number positions from behind the padding.
    most = (getattr(model.config, "max_position_embeddings", None) or WINDOW_TOKENS) - 2
    window = max(4, min(WINDOW_TOKENS, most - len(before) - len(after)))
    margin = min(MARGIN_TOKENS, window // 4)
    return EntityModel(model.eval(), tokenizer, types, members, 0.5, before, after, window, margin)


def model_of(config: PiiConfig, digest: str) -> EntityModel:
    """The model that a configuration names, loaded once by a process."""
    assert config.ner is not None, "only with a model"
    labels = tuple(sorted(config.ner_labels.items()))
    loaded = load_model(config.ner, digest, config.ner_types, labels)
    return replace(loaded, min_score=config.ner_min_score)
