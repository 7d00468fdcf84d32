"""Byte-level BPE and WordPiece at the speed of a look-up: a compiled encoder with the ids of
`tokenizers`, for the cuts it knows.

It takes over where a tokenizer is byte-level BPE with one of the pre-tokenisers of
`tasks.tokenizer.pretokenizers`, no normaliser and no added tokens but special ones, or WordPiece as
`tasks.tokenizer.bpe` trains it: `tokenizers` tries every end of a piece from the end of the word on
and copies what is between, which is cubic in the length of a word. `fast_encoder` gives None for
every other. Character classes are asked of the expressions' own engine, once per process, so they
agree with it whatever its edition of Unicode. Documents with a pre-token beyond the kernel's limit
come back as None.

Memory: about 40 MB of remembered pre-tokens. Cost: see docs/lab-notes/tokenizer.md; compiling takes
seconds, once.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import tokenizers
from tokenizers import Regex, pre_tokenizers

from tasks.tokenizer.pretokenizers import MAX_BOUNDED_BYTES, PATTERNS, letter_bytes, split_pattern

NUM_CODE_POINTS = 0x110000
CHARACTER_BLOCKS = ((0, 0xD800), (0xE000, 0x40000), (0xE0000, 0xE0200))
"""All code points that may be letters, marks, digits or spaces: without surrogates, private use and
planes that are empty."""

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

FOREIGN = ("dropout", "byte_fallback", "continuing_subword_prefix", "end_of_word_suffix")
"""Settings of BPE that change its ids and that the kernel does not know."""

CONTINUES = "\u2192"
"""Begins pieces inside a word in WordPiece; byte-level letters go up to U+0143, so it is never
text."""


def fast_encoder(model: tokenizers.Tokenizer) -> FastEncoder | None:
    """An encoder with the ids of `model`, where there is one."""
    pattern = split_pattern(model)
    described = json.loads(model.to_str())["model"]
    if described["type"] == "WordPiece":
        vocab = described["vocab"]
        singles = {prefix + letter for letter in letter_bytes() for prefix in ("", CONTINUES)}
        if (
            pattern == PATTERNS["bounded"]
            and described["max_input_chars_per_word"] >= MAX_BOUNDED_BYTES
            and described["continuing_subword_prefix"] == CONTINUES
            and singles <= vocab.keys()
        ):
            return FastEncoder(pattern, PieceTree(vocab))
    elif described["type"] == "BPE" and pattern in LIMITS:
        vocab, whole_words = described["vocab"], bool(described.get("ignore_merges"))
        is_plain = not any(map(described.get, FOREIGN))
        if is_plain and letter_bytes().keys() <= vocab.keys():
            return FastEncoder(pattern, Merges(vocab, described["merges"], whole_words))
    return None


class Merges:
    """What the kernel needs of BPE: `pairs` by merge, and `whole` words that are tokens whatever
    the merges say."""

    def __init__(
        self, vocab: dict[str, int], merges: Sequence[Sequence[str] | str], whole_words: bool
    ) -> None:
        self.byte_ids = np.empty(256, np.int32)
        for letter, byte in letter_bytes().items():
            self.byte_ids[byte] = vocab[letter]
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
        ids = [(vocab[a], vocab[b], vocab[a + b]) for a, b in pairs]
        self.pairs = _pair_table(ids)
        self.node_tokens = np.zeros(0, np.int32)
        letters = letter_bytes()
        self.whole = [
            (bytes(letters[c] for c in token), id)
            for token, id in vocab.items()
            if whole_words and token and set(token) <= letters.keys()
        ]


class PieceTree:
    """What the kernel needs of WordPiece: its pieces as a tree, `pairs` being (node, byte) and
    their products nodes."""

    def __init__(self, vocab: dict[str, int]) -> None:
        from tasks.kernels.tokenizer.bpe import INSIDE_ROOT, WORD_ROOT

        letters = letter_bytes()
        edges: dict[tuple[int, int], int] = {}
        tokens = {WORD_ROOT: -1, INSIDE_ROOT: -1}
        for token, id in vocab.items():
            spelling = token.removeprefix(CONTINUES)
            if not spelling or not set(spelling) <= letters.keys():
                continue
            node = WORD_ROOT if spelling == token else INSIDE_ROOT
            for letter in spelling:
                node = edges.setdefault(
                    (node, letters[letter]), len(edges) + len((WORD_ROOT, INSIDE_ROOT))
                )
                tokens.setdefault(node, -1)
            tokens[node] = id
        self.byte_ids = np.zeros(256, np.int32)
        self.pairs = _pair_table([(*edge, child) for edge, child in edges.items()])
        self.node_tokens = np.array([tokens[node] for node in range(len(tokens))], np.int32)
        self.whole: list[tuple[bytes, int]] = []


def _pair_table(
    pairs: Sequence[tuple[int, int, int]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A hash table of (left, right, product), by rank."""
    from tasks.kernels.tokenizer.bpe import NO_PAIR, NO_RANK, fill_pairs

    size = 1 << max(4, (2 * len(pairs)).bit_length())
    table = np.full(size, NO_PAIR), np.full(size, NO_RANK, np.int64), np.zeros(size, np.int32)
    columns = np.ascontiguousarray(np.array(pairs, np.int32).reshape(-1, 3).T)
    fill_pairs(*columns, *table)
    return table


class FastEncoder:
    """`encode_batch` remembers pre-tokens between calls."""

    def __init__(self, pattern: str, rules: Merges | PieceTree) -> None:
        self._classes = _classes(marks_are_letters=pattern == PATTERNS["bounded"])
        self._limits = np.array(LIMITS[pattern], np.int64)
        self._as_gpt2 = pattern == PATTERNS["gpt2"]
        self._rules = rules
        self._forget()

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray | None]:
        """int32 ids of each text; None for a text with a pre-token that is too long for the
        kernel."""
        from tasks.kernels.tokenizer.bpe import NUM_WORDS, encode_documents

        column = pa.array(texts, pa.large_string())
        _, offsets, data = column.buffers()
        begins = np.frombuffer(offsets, np.int64)[: len(texts) + 1]
        has_text = data is not None and data.size
        buf = np.frombuffer(data, np.uint8) if has_text else np.zeros(1, np.uint8)
        if 3 * int(self._state[NUM_WORDS]) > TABLE_SLOTS:
            self._forget()
        out, ends = np.empty(int(begins[-1]), np.int32), np.empty(len(texts), np.int64)
        rules = (self._rules.byte_ids, *self._rules.pairs, self._rules.node_tokens)
        encode_documents(
            buf, begins, self._classes, self._limits, self._as_gpt2, *rules, *self._table, out, ends
        )
        # A text that the kernel gave up on has -1 minus the place where its ids would end.
        places = np.where(ends < 0, -ends - 1, ends)
        starts = np.concatenate([np.zeros(1, np.int64), places[:-1]])
        return [
            None if e < 0 else out[s:e] for s, e in zip(starts.tolist(), ends.tolist(), strict=True)
        ]

    def _forget(self) -> None:
        """Empty the table but for the words that are tokens whatever the merges say."""
        from tasks.kernels.tokenizer.bpe import remember

        self._state = np.zeros(3, np.int64)
        self._table = (
            np.zeros(TABLE_SLOTS, np.uint64),  # hashes
            np.zeros((TABLE_SLOTS, 3), np.int64),  # words
            np.zeros(TABLE_SLOTS, np.int32),  # numbers of ids
            np.empty(MAX_WORD_BYTES, np.uint8),
            np.empty(MAX_WORD_IDS, np.int32),
            self._state,
        )
        for raw, id in self._rules.whole:
            word, ids = np.frombuffer(raw, np.uint8), np.array([id], np.int32)
            remember(word, 0, len(raw), ids, 1, *self._table)


@functools.lru_cache(maxsize=2)
def _classes(marks_are_letters: bool) -> np.ndarray:
    """uint8 class of every code point, by the engine of the expressions."""
    from tasks.kernels.tokenizer.bpe import LETTER, LINE_END, NUMBER, OTHER, SPACE

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
