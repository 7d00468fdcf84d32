"""From text to ids and back: one class for every kind of tokenizer, read from `tokenizer.json`.

The reference is `tokenizers`; special tokens are never parsed from text. Much text goes through a
compiled encoder (`tasks.tokenizer.fast_bpe`) where it knows the tokenizer, which is held against
the reference first. Otherwise text is cut into words at places where no token can cross
(`tasks.tokenizer.pretokenizers`), and the ids of words are remembered; where no such places are
known, whole texts go to the reference. The ids are the same in all three. Decoding is a table from
id to bytes, so any ids give bytes, and any text comes back as it was. `bytes_per_token` is the
length of each entry: its sum over a document's ids is the document's UTF-8 length, which makes
losses comparable between tokenizers.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from llm_core.config import ConfigError
from tasks.runtime.artifact import ArtifactMismatch, write_json
from tasks.tokenizer.fast_bpe import CONTINUES, FastEncoder, fast_encoder
from tasks.tokenizer.files import (
    CONFIG_FILE,
    NAMING_FILES,
    add_special,
    hide_special,
    named_token,
    naming_files,
    read_object,
    read_tokenizer,
)
from tasks.tokenizer.pretokenizers import letter_bytes, word_cuts

END_OF_TEXT = "<|endoftext|>"
PAD = "<|pad|>"
UNKNOWN = "<unk>"
SPECIAL_TOKENS = (END_OF_TEXT, PAD)
"""Ids 0 and 1 of every tokenizer that is trained here; no text encodes to them."""

TOKENIZER_FILE = "tokenizer.json"
BYTES_FILE = "bytes_per_token.npy"

FAST_FROM_CHARS = 100_000
"""Below it compiling, or loading what is compiled, would take longer than encoding."""

WORDPIECE_FROM_CHARS = 2_000
"""The same for WordPiece, where the library takes the cube of the length of a word."""

CHECKED_TEXTS, CHECKED_CHARS = 16, 4_000
MAX_WORD_CHARS = 64
MAX_REMEMBERED_WORDS = 1 << 18


class Tokenizer:
    """A trained tokenizer. `eos_id` ends every document, `pad_id` fills; text never encodes to
    either.

    `start_ids` precede a text that a model is to continue; `encode` never adds them.
    `drops_first_space` says that a text is encoded with a space before it, which its decoder
    drops.
    """

    def __init__(
        self, model: tokenizers.Tokenizer, eos_token: str = END_OF_TEXT, pad_token: str = PAD
    ) -> None:
        eos_id, pad_id = model.token_to_id(eos_token), model.token_to_id(pad_token)
        if eos_id is None or pad_id is None:
            raise ArtifactMismatch(
                f"the tokenizer has no token {eos_token} or {pad_token}; rebuild it with"
                " force=[tokenizer]"
            )
        model = hide_special(model)
        model.encode_special_tokens = True
        self._model = model
        is_wordpiece = isinstance(model.model, tokenizers.models.WordPiece)
        self._fast_from = WORDPIECE_FROM_CHARS if is_wordpiece else FAST_FROM_CHARS
        self.vocab_size: int = model.get_vocab_size(with_added_tokens=True)
        self.eos_id: int = eos_id
        self.pad_id: int = pad_id
        self.unknown_id: int | None = unknown_id(model)
        self.start_ids: tuple[int, ...] = start_ids(model)
        self.drops_first_space: bool = _drops_first_space(model)
        self._words = word_cuts(model)
        self._fast: tuple[FastEncoder | None] | None = None
        self._ids_of: dict[str, bytes] = {}
        pieces = token_bytes(model)
        self.bytes_per_token: np.ndarray = np.array([len(p) for p in pieces], np.int32)
        self._bytes = np.frombuffer(b"".join(pieces), np.uint8)
        self._starts = np.cumsum(self.bytes_per_token, dtype=np.int64) - self.bytes_per_token

    def encode(self, text: str) -> np.ndarray:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """int32 ids of each text, without special tokens."""
        is_much = sum(map(len, texts)) >= self._fast_from
        fast = self._fast_encoder(texts) if is_much else None
        if fast is None:
            return self.encode_words(texts)
        return [
            self.encode_whole([text])[0] if ids is None else ids
            for text, ids in zip(texts, fast.encode_batch(texts), strict=True)
        ]

    def encode_words(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The same ids by `tokenizers` and a memory of words."""
        if self._words is None:
            return self.encode_whole(texts)
        words = [self._words.findall(text) for text in texts]
        if len(self._ids_of) > MAX_REMEMBERED_WORDS:
            self._ids_of.clear()
        new = sorted(set(itertools.chain.from_iterable(words)) - self._ids_of.keys())
        for word, ids in zip(new, self.encode_whole(new), strict=True):
            self._ids_of[word] = ids.tobytes()
        rows = [b"".join(map(self._ids_of.__getitem__, row)) for row in words]
        # Long words seldom come again and would fill the memory.
        for word in new:
            if len(word) > MAX_WORD_CHARS:
                del self._ids_of[word]
        return [np.frombuffer(row, np.int32) for row in rows]

    def _fast_encoder(self, texts: Sequence[str]) -> FastEncoder | None:
        """The compiled encoder, once it has given the reference's ids for the first texts it is
        shown."""
        if self._fast is None:
            self._fast = (fast_encoder(self._model),)
            if (fast := self._fast[0]) is not None:
                checked = [text[:CHECKED_CHARS] for text in texts[:CHECKED_TEXTS]]
                pairs = zip(fast.encode_batch(checked), self.encode_whole(checked), strict=True)
                if not all(ours is None or np.array_equal(ours, theirs) for ours, theirs in pairs):
                    warnings.warn(
                        "the compiled encoder gives other ids than `tokenizers`; the slower"
                        " reference encodes instead",
                        stacklevel=2,
                    )
                    self._fast = (None,)
        return self._fast[0]

    def encode_whole(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The same ids by `tokenizers` alone: the reference."""
        encodings = self._model.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def decode_bytes(self, ids: Iterable[int] | np.ndarray) -> bytes:
        """The bytes the ids stand for; special tokens give none."""
        ids = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), np.int64)
        sizes = self.bytes_per_token[ids].astype(np.int64)
        ends = np.cumsum(sizes)
        # From a byte's place in the text to its place in the table, a shift for each token.
        shifts = np.repeat(self._starts[ids] - (ends - sizes), sizes)
        places = np.arange(len(shifts)) + shifts
        return self._bytes[places].tobytes()

    def bytes_of(self, id: int) -> bytes:
        """The same for one id."""
        start = self._starts[id]
        return self._bytes[start : start + self.bytes_per_token[id]].tobytes()

    def name_of(self, id: int) -> str:
        """What the vocabulary calls an id; empty for one that it does not know."""
        return self._model.id_to_token(id) or ""

    def id_of(self, token: str) -> int | None:
        """The id that the vocabulary gives a token; None for one that it does not know."""
        return self._model.token_to_id(token)  # type: ignore[no-any-return]

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """Text; bytes that are not UTF-8, as after half a character, become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of an artifact, of an exported model folder or of one that others published.

    Raises ConfigError where its files are damaged or name no end of text.
    """
    folder = Path(folder)
    file = folder / TOKENIZER_FILE
    if not file.exists():
        raise ArtifactMismatch(
            f"{folder} has no {TOKENIZER_FILE}; rebuild it with force=[tokenizer]"
        )
    model = read_tokenizer(file)
    named = [read_object(other) for other in naming_files(folder).values()]
    eos = named_token(named, "eos_token", model) or END_OF_TEXT
    if model.token_to_id(eos) is None:
        raise ConfigError(
            f"{folder} has no end of text: {eos} is not in its vocabulary; name a token of"
            f" {TOKENIZER_FILE} as eos_token in {CONFIG_FILE} ({', '.join(NAMING_FILES)} are read)"
        )
    pad = named_token(named, "pad_token", model) or PAD
    if model.token_to_id(pad) is None:
        pad = eos
    add_special(model, (eos, pad))
    return Tokenizer(model, eos, pad)


def save_tokenizer(
    model: tokenizers.Tokenizer,
    folder: Path,
    eos_token: str = END_OF_TEXT,
    pad_token: str = PAD,
    special_tokens: Sequence[str] = (),
    chat_template: str | None = None,
) -> Tokenizer:
    """Write the three files every reader needs; the config is what Hugging Face's AutoTokenizer
    reads.

    Readers that add special tokens begin a text with end-of-text, as documents of training and our
    own prompts begin.
    """
    model = start_with(model, eos_token)
    model.save(str(folder / TOKENIZER_FILE), pretty=False)
    described: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": eos_token,
        "eos_token": eos_token,
        "pad_token": pad_token,
        "split_special_tokens": True,  # text that spells a special token stays text
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
    }
    if special_tokens:
        described["additional_special_tokens"] = list(special_tokens)
    if chat_template is not None:
        described["chat_template"] = chat_template
    write_json(folder / CONFIG_FILE, described)
    tokenizer = Tokenizer(model, eos_token, pad_token)
    np.save(folder / BYTES_FILE, tokenizer.bytes_per_token)
    return tokenizer


def export_hugging_face(tokenizer_folder: Path, model_folder: Path) -> None:
    """Put the tokenizer beside a model so that `AutoTokenizer.from_pretrained(model_folder)` gives
    equal ids."""
    model_folder.mkdir(parents=True, exist_ok=True)
    for name in (TOKENIZER_FILE, CONFIG_FILE):
        shutil.copyfile(tokenizer_folder / name, model_folder / name)


def start_with(model: tokenizers.Tokenizer, token: str) -> tokenizers.Tokenizer:
    """The same tokenizer, putting `token` before a text where special tokens are added, and nothing
    else anywhere."""
    start = {"SpecialToken": {"id": token, "type_id": 0}}
    text, other = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    named = {"id": token, "ids": [model.token_to_id(token)], "tokens": [token]}
    # Written as JSON, because the notation of TemplateProcessing cannot name tokens with blanks and
    # colons.
    template = {
        "type": "TemplateProcessing",
        "single": [start, text],
        "pair": [start, text, start, other],
        "special_tokens": {token: named},
    }
    return tokenizers.Tokenizer.from_str(
        json.dumps(json.loads(model.to_str()) | {"post_processor": template})
    )


def start_ids(model: tokenizers.Tokenizer) -> tuple[int, ...]:
    """The ids that this tokenizer's post-processor puts before a text."""
    encoding = model.encode("a", add_special_tokens=True)
    places = zip(encoding.ids, encoding.special_tokens_mask, strict=True)
    return tuple(id for id, _ in itertools.takewhile(lambda place: place[1], places))


def unknown_id(model: tokenizers.Tokenizer) -> int | None:
    """The id of text that has no tokens, where the model has such an id."""
    described = json.loads(model.to_str())["model"]
    if "unk_id" in described:
        return described["unk_id"]
    token = described.get("unk_token")
    return model.token_to_id(token) if token is not None else None


def token_bytes(model: tokenizers.Tokenizer) -> list[bytes]:
    """The bytes of each token id; none for special tokens and the unknown one."""
    added = model.get_added_tokens_decoder()
    to_bytes, silent_id = _spelling(model), unknown_id(model)
    pieces = [b""] * model.get_vocab_size(with_added_tokens=True)
    for token, id in model.get_vocab(with_added_tokens=True).items():
        if id >= len(pieces):
            raise ArtifactMismatch(
                f"the tokenizer has id {id} and only {len(pieces)} tokens; give one whose ids have"
                " no gaps"
            )
        if id in added:
            pieces[id] = b"" if added[id].special else token.encode()
        elif id != silent_id:
            pieces[id] = to_bytes(token)
    return pieces


def _spelling(model: tokenizers.Tokenizer) -> Callable[[str], bytes]:
    """How this model writes bytes, read off its decoder."""
    steps = _decoder_steps(model)
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        dropped = {"type": "Replace", "pattern": {"String": CONTINUES}, "content": ""}
        return functools.partial(_letter_bytes, prefix=CONTINUES if dropped in steps else "")
    if "ByteFallback" in kinds or "Metaspace" in kinds or not kinds:
        spaces = [
            step["pattern"].get("String")
            for step in steps
            if step["type"] == "Replace" and step["content"] == " "
        ]
        spaces += [step["replacement"] for step in steps if step["type"] == "Metaspace"]
        return functools.partial(_piece_bytes, space=spaces[0] if spaces else None)
    raise ArtifactMismatch(
        f"the tokenizer's decoder ({' + '.join(sorted(kinds))}) does not say which bytes a token"
        " stands for; give a byte-level tokenizer, or one of pieces with byte fallback"
    )


def _decoder_steps(model: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    decoder = json.loads(model.to_str())["decoder"]
    return [] if decoder is None else decoder.get("decoders", [decoder])


def _drops_first_space(model: tokenizers.Tokenizer) -> bool:
    """Whether the decoder leaves out the space with which a text begins."""
    return any(
        (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
        or (step["type"] == "Strip" and step["content"] == " " and step["start"] > 0)
        for step in _decoder_steps(model)
    )


def _letter_bytes(token: str, prefix: str) -> bytes:
    letters, spelled = letter_bytes(), token.removeprefix(prefix)
    # The library's decoder leaves a token with other characters as it is.
    known = set(spelled) <= letters.keys()
    return bytes(letters[letter] for letter in spelled) if known else spelled.encode()


def _piece_bytes(piece: str, space: str | None) -> bytes:
    if fallback := re.fullmatch(r"<0x([0-9A-F]{2})>", piece):
        return bytes.fromhex(fallback[1])
    return (piece.replace(space, " ") if space else piece).encode()
