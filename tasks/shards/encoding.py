"""Encodes documents: plain texts as they are, chats by the template of the tokenizer.

Every document ends with the end-of-text id and is decoded again: plain texts give the same bytes,
chats the same characters between control tokens, white space aside, which control tokens may take.
The loss mask of a chat is 1 for the assistant's tokens, and for the end of text where it ends an
answer; it is 1 for all tokens of a plain text beside chats. A pair is two chats in one row, of
which the last answer alone counts; the mask of the second has `REJECTED_TOKEN` added. What the
template refuses is left out, with its first reason.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from llm_core.config import ConfigError
from llm_core.data.shards import LOSS_MASK, REJECTED_TOKEN
from tasks.corpus.documentset import id_matrix
from tasks.corpus.turns import TURNS_COLUMN, branches_of, messages_of
from tasks.runtime.stage import StageFailure
from tasks.shards.fill_in_middle import FillInMiddle
from tasks.tokenizer.chat_template import TRAINING_DAY, Answers, ChatTemplate, load_chat_template
from tasks.tokenizer.encoder import TOKENIZER_FILE, Tokenizer, load_tokenizer
from tasks.tokenizer.template_files import NoTemplate

BATCH_DOCUMENTS = 256


class _Kept(threading.local):
    """The tokenizer that a thread used last."""

    file: tuple[Path, int, int] | None = None
    tokenizer: Tokenizer


_KEPT = _Kept()


def kept_tokenizer(folder: Path) -> Tokenizer:
    """As `load_tokenizer`, but this thread's last one while its file is unchanged: loading takes as
    long as many small parts, and `tokenizers` keeps 50 kB of each model that has encoded."""
    status = (folder / TOKENIZER_FILE).stat()
    if _KEPT.file != (file := (folder, status.st_ino, status.st_mtime_ns)):
        _KEPT.tokenizer, _KEPT.file = load_tokenizer(folder), file
    return _KEPT.tokenizer


@dataclass(frozen=True)
class EncodedDocuments:
    """Documents that were encoded, in order; `rows` says which of the table."""

    rows: np.ndarray
    tokens: pa.LargeListArray
    num_bytes: np.ndarray
    loss_mask: pa.LargeListArray | None
    """uint8, as many as tokens; None where no file of documents has chats."""


@dataclass
class DocumentEncoder:
    """Encodes tables of documents. chats: their template, where there may be some. middle: parts
    some of the plain texts of training."""

    model: Tokenizer
    dtype: np.dtype
    chats: ChatTemplate | None = None
    middle: FillInMiddle | None = None
    num_refused: int = 0
    first_refusal: str = ""
    turn_end_ids: set[int] = field(default_factory=set)
    """Control tokens that ended an answer, other than the end of text."""

    def encode(self, table: pa.Table, parts: bool = False) -> EncodedDocuments:
        """parts: whether `middle` may split documents. Raises StageFailure where decoding does not
        give the text back."""
        rows, pieces, masks, sizes = [], [], [], []
        for start in range(0, len(table), BATCH_DOCUMENTS):
            batch = table.slice(start, BATCH_DOCUMENTS)
            names, texts = batch["id"], batch["text"].to_pylist()
            turns = batch[TURNS_COLUMN].to_pylist() if self.chats else [None] * len(texts)
            parted = np.zeros(len(texts), np.uint64)
            if self.middle and parts:
                parted = self.middle.choose(id_matrix(names), batch["source"].to_pylist())
            kinds = list(zip(texts, turns, parted, strict=True))
            plain = [text for text, spans, part in kinds if spans is None and not part]
            encoded = iter(self.model.encode_batch(plain))
            for row, (text, spans, part) in enumerate(kinds):
                if spans is None:
                    if part and self.middle:
                        ids, raw = self.middle.encode(text, part)
                    else:
                        ids, raw = next(encoded), text.encode()
                    if self.model.decode_bytes(ids) != raw:
                        raise _not_given_back(names[row])
                    ids, counts, size = np.append(ids, self.model.eos_id), None, len(raw)
                elif (chat := self._encode_chat(text, spans, names[row])) is not None:
                    ids, counts = chat
                    size = int(self.model.bytes_per_token[ids].sum())
                else:
                    continue
                rows.append(start + row)
                pieces.append(ids.astype(self.dtype))
                sizes.append(size)
                if self.chats:
                    masks.append(np.ones(len(ids), np.uint8) if counts is None else counts)
        lengths = [len(piece) for piece in pieces]
        offsets = np.cumsum([0, *lengths], dtype=np.int64)
        flat = np.concatenate([np.zeros(0, self.dtype), *pieces])
        mask = None
        if self.chats:
            mask = lists(offsets, np.concatenate([np.zeros(0, np.uint8), *masks]))
        return EncodedDocuments(
            np.array(rows, np.int64), lists(offsets, flat), np.array(sizes, np.int64), mask
        )

    def _encode_chat(
        self, text: str, turns: Sequence[Mapping[str, Any]], name: pa.Scalar
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """(ids, their loss mask); None where the template refuses it."""
        messages = messages_of(text, turns)
        branches = branches_of(messages)
        ids, masks = [], []
        for each in branches or (messages,):
            if (chat := self._encode_turns(each, name)) is None:
                return None
            ids.append(chat.ids)
            masks.append(chat.is_answer.astype(np.uint8))
        if branches is None:
            return ids[0], masks[0]
        chosen, rejected = map(_last_answer, masks)
        return np.concatenate(ids), np.concatenate([chosen, rejected + np.uint8(REJECTED_TOKEN)])

    def _encode_turns(
        self, messages: Sequence[Mapping[str, str]], name: pa.Scalar
    ) -> Answers | None:
        assert self.chats is not None
        try:
            chat = self.chats.encode_answers(messages)
        except ConfigError as error:
            self.num_refused += 1
            self.first_refusal = self.first_refusal or f"document {name.as_py().hex()}: {error}"
            return None
        ids, is_answer, shown = chat
        if "".join(self.model.decode(ids).split()) != "".join(shown.split()):
            raise _not_given_back(name)
        last = np.flatnonzero(is_answer & ~np.append(is_answer[1:], False))
        self.turn_end_ids |= set(ids[last].tolist()) & self.chats.control_ids - {self.model.eos_id}
        if ids[-1] == self.model.eos_id:
            return chat
        # Where nothing else ends an answer, the end of text does.
        open_end = is_answer[-1] and ids[-1] not in self.chats.control_ids
        return Answers(np.append(ids, self.model.eos_id), np.append(is_answer, open_end), shown)


def _last_answer(mask: np.ndarray) -> np.ndarray:
    """A mask of the last run of ones alone."""
    last = np.flatnonzero(mask)[-1:]
    before = np.flatnonzero(mask[: last.max(initial=0)] == 0)
    return np.where(np.arange(len(mask)) > before.max(initial=-1), mask, 0).astype(np.uint8)


def load_chats(folder: Path, model: Tokenizer) -> ChatTemplate:
    """The template of a tokenizer. Raises StageFailure where it has none."""
    try:
        return load_chat_template(folder, model, now=lambda: TRAINING_DAY)
    except NoTemplate as error:
        raise StageFailure(
            "the documents hold chats, but the tokenizer has no chat template; set"
            " tokenizer.chat_template and tokenizer.special_tokens (tokenizer=chat has both)"
        ) from error


def lists(offsets: np.ndarray, flat: np.ndarray) -> pa.LargeListArray:
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(flat))


def loss_masks(parts: Sequence[pa.Table], tokens: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Of each part as many as tokens; none where no part has chats."""
    if not any(LOSS_MASK in part.column_names for part in parts):
        return []
    return [
        part[LOSS_MASK].combine_chunks().values.to_numpy()
        if LOSS_MASK in part.column_names
        else np.ones(len(some), np.uint8)
        for part, some in zip(parts, tokens, strict=True)
    ]


def _not_given_back(name: pa.Scalar) -> StageFailure:
    return StageFailure(
        f"the tokenizer does not give document {name.as_py().hex()} back; rebuild it with"
        " force=[tokenizer]"
    )
