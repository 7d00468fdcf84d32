"""From text to ids and back: one class for every kind of tokenizer, read from `tokenizer.json`.

Encoding runs in `tokenizers`; special tokens are never parsed from text. Text is cut into words at places where no
token can cross, and the ids of words are remembered, so most of a corpus is a look-up; ids are those of the whole
text encoded at once. Decoding is a table from id to bytes, so any ids give bytes, and any text comes back as it was.
`bytes_per_token` is the length of each entry: its sum over a document's ids is the document's UTF-8 length, which makes
losses comparable between tokenizers.
"""

from __future__ import annotations

import functools
import itertools
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers.pre_tokenizers import ByteLevel

from tasks.artifact import ArtifactMismatch, write_json

END_OF_TEXT = "<|endoftext|>"
PAD = "<|pad|>"
UNKNOWN = "<unk>"
SPECIAL_TOKENS = (END_OF_TEXT, PAD)
"""Ids 0 and 1 of every tokenizer; no text encodes to them."""

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
BYTES_FILE = "bytes_per_token.npy"


BLANKS = r"\t\x0b\x0c \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""What `\\s` is to the pre-tokenizer's regular expressions, less line ends. Python's own `\\s` has U+001C to U+001F too."""

WORDS = {
    # No pre-token of `tasks.bpe` goes on after a letter or digit into a sign or line end, after any of these into a blank,
    # or beyond the last line end of a run of spaces.
    "BPE": re.compile(
        rf"[{BLANKS}]*(?:[^\r\n{BLANKS}A-Za-z0-9]*[A-Za-z0-9]+(?=[!-/:-@\[-`{{-~\r\n])|[^\r\n{BLANKS}]+(?:[\r\n{BLANKS}]*[\r\n])?)"
        rf"|[\r\n{BLANKS}]*[\r\n]|[{BLANKS}]+"
    ),
    # No piece of `tasks.unigram` has a space after another sign; this is its own pre-tokenizer.
    "Unigram": re.compile(r" +[^ ]*|[^ ]+"),
}
MAX_WORD_CHARS = 64
MAX_REMEMBERED_WORDS = 1 << 18


class Tokenizer:
    """A trained tokenizer. `eos_id` ends every document, `pad_id` fills; text never encodes to either."""

    def __init__(self, model: tokenizers.Tokenizer) -> None:
        eos_id, pad_id = (model.token_to_id(token) for token in SPECIAL_TOKENS)
        if eos_id is None or pad_id is None:
            raise ArtifactMismatch(f"this tokenizer has no {' or '.join(SPECIAL_TOKENS)}; rebuild it with force=[tokenizer]")
        model.encode_special_tokens = True
        self._model = model
        self.vocab_size: int = model.get_vocab_size(with_added_tokens=True)
        self.eos_id: int = eos_id
        self.pad_id: int = pad_id
        self.unknown_id: int | None = model.token_to_id(UNKNOWN) if model_type(model) == "Unigram" else None
        self._words = WORDS[model_type(model)]
        self._ids_of: dict[str, bytes] = {}
        pieces = token_bytes(model)
        self.bytes_per_token: np.ndarray = np.array([len(p) for p in pieces], np.int32)
        self._bytes = np.frombuffer(b"".join(pieces), np.uint8)
        self._starts = np.cumsum(self.bytes_per_token, dtype=np.int64) - self.bytes_per_token

    def encode(self, text: str) -> np.ndarray:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """int32 ids of each text, without special tokens."""
        words = [self._words.findall(text) for text in texts]
        if len(self._ids_of) > MAX_REMEMBERED_WORDS:
            self._ids_of.clear()
        new = sorted(set(itertools.chain.from_iterable(words)) - self._ids_of.keys())
        encodings = self._model.encode_batch_fast(new, add_special_tokens=False)
        self._ids_of |= {word: np.array(e.ids, np.int32).tobytes() for word, e in zip(new, encodings, strict=True)}
        ids = [np.frombuffer(b"".join(map(self._ids_of.__getitem__, row)), np.int32) for row in words]
        for word in new:
            if len(word) > MAX_WORD_CHARS:
                del self._ids_of[word]
        return ids

    def decode_bytes(self, ids: Iterable[int] | np.ndarray) -> bytes:
        """The bytes the ids stand for; special tokens give none."""
        ids = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), np.int64)
        sizes = self.bytes_per_token[ids].astype(np.int64)
        ends = np.cumsum(sizes)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(self._starts[ids] - (ends - sizes), sizes)
        return self._bytes[places].tobytes()

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """Text; bytes that are no UTF-8, as after half a character, become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of an artifact or of an exported model folder."""
    file = Path(folder) / TOKENIZER_FILE
    if not file.exists():
        raise ArtifactMismatch(f"{folder} has no {TOKENIZER_FILE}; rebuild it with force=[tokenizer]")
    return Tokenizer(tokenizers.Tokenizer.from_file(str(file)))


def save_tokenizer(model: tokenizers.Tokenizer, folder: Path) -> Tokenizer:
    """Write the three files every reader needs; the config is what Hugging Face's AutoTokenizer reads."""
    model.save(str(folder / TOKENIZER_FILE), pretty=False)
    write_json(
        folder / CONFIG_FILE,
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": END_OF_TEXT,
            "eos_token": END_OF_TEXT,
            "pad_token": PAD,
            "split_special_tokens": True,  # text that spells a special token stays text
            "clean_up_tokenization_spaces": False,
            "add_prefix_space": False,
        },
    )
    tokenizer = Tokenizer(model)
    np.save(folder / BYTES_FILE, tokenizer.bytes_per_token)
    return tokenizer


def export_hugging_face(tokenizer_folder: Path, model_folder: Path) -> None:
    """Put the tokenizer beside a model so that `AutoTokenizer.from_pretrained(model_folder)` gives equal ids."""
    model_folder.mkdir(parents=True, exist_ok=True)
    for name in (TOKENIZER_FILE, CONFIG_FILE):
        shutil.copyfile(tokenizer_folder / name, model_folder / name)


def model_type(model: tokenizers.Tokenizer) -> str:
    """`BPE` or `Unigram`."""
    name = type(model.model).__name__
    if name not in WORDS:
        raise ArtifactMismatch(f"a tokenizer of type {name} is none of {', '.join(WORDS)}; rebuild it with force=[tokenizer]")
    return name


def token_bytes(model: tokenizers.Tokenizer) -> list[bytes]:
    """The bytes of each token id; none for special tokens."""
    byte_level = model_type(model) == "BPE"
    to_bytes, silent = (_byte_level_bytes, SPECIAL_TOKENS) if byte_level else (_piece_bytes, (*SPECIAL_TOKENS, UNKNOWN))
    pieces = [b""] * model.get_vocab_size(with_added_tokens=True)
    for token, id in model.get_vocab(with_added_tokens=True).items():
        if token not in silent:
            pieces[id] = to_bytes(token)
    return pieces


def _byte_level_bytes(token: str) -> bytes:
    return bytes(_byte_of_letter()[letter] for letter in token)


def _piece_bytes(piece: str) -> bytes:
    if fallback := re.fullmatch(r"<0x([0-9A-F]{2})>", piece):
        return bytes.fromhex(fallback[1])
    return piece.encode()


@functools.cache
def _byte_of_letter() -> dict[str, int]:
    """The 256 letters that byte-level BPE writes bytes with (GPT-2): printable Latin-1 as itself, the rest from U+0100 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in shown]
    letters = {chr(b): b for b in shown} | {chr(0x100 + n): b for n, b in enumerate(hidden)}
    assert set(letters) == set(ByteLevel.alphabet())
    return letters
