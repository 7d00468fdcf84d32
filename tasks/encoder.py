"""From text to ids and back: one class for every kind of tokenizer, read from `tokenizer.json`.

Encoding runs in `tokenizers`; special tokens are never parsed from text. Decoding is a table from id to bytes,
so any ids give bytes, and any text comes back as it was. `bytes_per_token` is the length of each entry: its sum
over a document's ids is the document's UTF-8 length, which makes losses comparable between tokenizers.
"""

from __future__ import annotations

import functools
import json
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
        pieces = token_bytes(model)
        self.bytes_per_token: np.ndarray = np.array([len(p) for p in pieces], np.int32)
        self._bytes = np.frombuffer(b"".join(pieces), np.uint8)
        self._starts = np.cumsum(self.bytes_per_token, dtype=np.int64) - self.bytes_per_token

    def encode(self, text: str) -> np.ndarray:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """int32 ids of each text, without special tokens."""
        encodings = self._model.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

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

    def token_text(self, id: int) -> str:
        return self.decode([id])


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


def token_bytes(model: tokenizers.Tokenizer) -> list[bytes]:
    """The bytes of each token id; none for special tokens."""
    kind = json.loads(model.to_str())["model"]["type"]
    to_bytes = _byte_level_bytes if kind == "BPE" else _piece_bytes
    pieces = [b""] * model.get_vocab_size(with_added_tokens=True)
    for token, id in model.get_vocab(with_added_tokens=True).items():
        if token not in (*SPECIAL_TOKENS, UNKNOWN):
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
