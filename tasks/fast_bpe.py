"""Byte-level BPE at the speed of a look-up: a compiled encoder with the ids of `tokenizers`, for the cuts it knows.

It takes over where a tokenizer is byte-level BPE with one of the pre-tokenisers of `tasks.pretokenizers`, no normaliser and no
added tokens but special ones; `fast_encoder` gives None for every other. Character classes are asked of the expressions' own
engine, once per process, so they agree with it whatever its edition of Unicode. Documents with a pre-token beyond the kernel's
limit come back as None.

Memory: about 40 MB of remembered pre-tokens. Cost: see docs/lab-notes.md; compiling takes seconds, once.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import tokenizers
from tokenizers import Regex, pre_tokenizers

from tasks.pretokenizers import PATTERNS, letter_bytes, split_pattern

NUM_CODE_POINTS = 0x110000
CHARACTER_BLOCKS = ((0, 0xD800), (0xE000, 0x40000), (0xE0000, 0xE0200))
"""All code points that may be letters, marks, digits or spaces: without surrogates, private use and planes that are empty."""

BLOCK_CHARACTERS = 1024
NO_LIMIT = 1 << 40
LIMITS = {
    PATTERNS["bounded"]: (64, 3, 32, 4, 32),
    PATTERNS["gpt4"]: (NO_LIMIT, 3, NO_LIMIT, NO_LIMIT, NO_LIMIT),
    PATTERNS["gpt2"]: (NO_LIMIT, NO_LIMIT, NO_LIMIT, NO_LIMIT, NO_LIMIT),
}
"""Longest runs of letters, digits, signs, line ends after signs, and spaces."""

TABLE_SLOTS = 1 << 19
MAX_WORD_BYTES = 1 << 22
MAX_WORD_IDS = 1 << 21


def fast_encoder(model: tokenizers.Tokenizer) -> FastEncoder | None:
    """An encoder with the ids of `model`, where there is one."""
    pattern = split_pattern(model)
    described = json.loads(model.to_str())["model"]
    plain = described["type"] == "BPE" and not described.get("dropout") and not described.get("byte_fallback")
    if pattern not in LIMITS or not plain or described.get("continuing_subword_prefix") or described.get("end_of_word_suffix"):
        return None
    if not set(letter_bytes()) <= set(described["vocab"]):
        return None
    return FastEncoder(pattern, described["vocab"], described["merges"], bool(described.get("ignore_merges")))


class FastEncoder:
    """`encode_batch` remembers pre-tokens between calls."""

    def __init__(self, pattern: str, vocab: dict[str, int], merges: Sequence[Sequence[str] | str], whole_words: bool) -> None:
        from tasks.kernels.bpe import NO_PAIR, NO_RANK, fill_pairs

        self._classes = _classes(marks_are_letters=pattern == PATTERNS["bounded"])
        self._limits = np.array(LIMITS[pattern], np.int64)
        self._as_gpt2 = pattern == PATTERNS["gpt2"]
        self._byte_ids = np.empty(256, np.int32)
        for letter, byte in letter_bytes().items():
            self._byte_ids[byte] = vocab[letter]
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
        left, right, products = (
            np.array([vocab[text] for text in column], np.int32)
            for column in ([a for a, _ in pairs], [b for _, b in pairs], [a + b for a, b in pairs])
        )
        size = 1 << max(4, (2 * len(pairs)).bit_length())
        self._pairs = (np.full(size, NO_PAIR), np.full(size, NO_RANK, np.int64), np.zeros(size, np.int32))
        fill_pairs(left, right, products, *self._pairs)
        letters = letter_bytes()
        spelled = [
            (bytes(letters[c] for c in token), id) for token, id in vocab.items() if token and set(token) <= letters.keys()
        ]
        self._whole = spelled if whole_words else []
        self._forget()

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray | None]:
        """int32 ids of each text; None for a text with a pre-token that is too long for the kernel."""
        from tasks.kernels.bpe import NUM_WORDS, encode_documents

        column = pa.array(texts, pa.large_string())
        _, offsets, data = column.buffers()
        begins = np.frombuffer(offsets, np.int64)[: len(texts) + 1]
        buf = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
        if 3 * int(self._state[NUM_WORDS]) > TABLE_SLOTS:
            self._forget()
        out, ends = np.empty(int(begins[-1]), np.int32), np.empty(len(texts), np.int64)
        encode_documents(
            buf, begins, self._classes, self._limits, self._as_gpt2, self._byte_ids, *self._pairs, *self._table, out, ends
        )
        places = np.where(ends < 0, -ends - 1, ends)
        starts = np.concatenate([np.zeros(1, np.int64), places[:-1]])
        return [None if e < 0 else out[s:e] for s, e in zip(starts.tolist(), ends.tolist(), strict=True)]

    def _forget(self) -> None:
        """Empty the table but for the words that are tokens whatever the merges say."""
        from tasks.kernels.bpe import remember

        self._state = np.zeros(3, np.int64)
        hashes, words, id_counts = (
            np.zeros(TABLE_SLOTS, np.uint64),
            np.zeros((TABLE_SLOTS, 3), np.int64),
            np.zeros(TABLE_SLOTS, np.int32),
        )
        self._table = (
            hashes,
            words,
            id_counts,
            np.empty(MAX_WORD_BYTES, np.uint8),
            np.empty(MAX_WORD_IDS, np.int32),
            self._state,
        )
        for raw, id in self._whole:
            remember(np.frombuffer(raw, np.uint8), 0, len(raw), np.array([id], np.int32), 1, *self._table)


@functools.lru_cache(maxsize=2)
def _classes(marks_are_letters: bool) -> np.ndarray:
    """uint8 class of every code point, by the engine of the expressions."""
    from tasks.kernels.bpe import LETTER, LINE_END, NUMBER, OTHER, SPACE

    table = np.full(NUM_CODE_POINTS, OTHER, np.uint8)
    letter = r"[\p{L}\p{M}]" if marks_are_letters else r"\p{L}"
    cuts = [
        (kind, pre_tokenizers.Split(Regex(f"{members}+"), "removed", invert=True))
        for kind, members in ((LETTER, letter), (NUMBER, r"\p{N}"), (SPACE, r"\s"))
    ]
    # In pieces: the library's time goes with the square of a text that falls into many.
    for first, last in CHARACTER_BLOCKS:
        for begin in range(first, last, BLOCK_CHARACTERS):
            text = "".join(map(chr, range(begin, min(last, begin + BLOCK_CHARACTERS))))
            for kind, cut in cuts:
                for _, (start, stop) in cut.pre_tokenize_str(text):
                    table[begin + start : begin + stop] = kind
    table[[0x0A, 0x0D]] = LINE_END
    table.setflags(write=False)
    return table
