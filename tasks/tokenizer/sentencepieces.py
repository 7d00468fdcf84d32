"""Unigram and byte-pair pieces, trained with `sentencepiece` (Kudo 2018; Kudo and Richardson 2018),
run by `tokenizers`.

sentencepiece trains under identity rules: no normalisation, no added or removed spaces. It silently
skips lines longer than its limit and lines with the signs it uses itself; here text is cut to
chunks below the limit, at spaces or between code points, so nothing is skipped. Rare characters,
and those signs (U+2581 for a space, U+2585, tab, NUL), get no piece and are encoded as bytes; text
is cut around them. At most half of the vocabulary goes to single characters.

The trained pieces are rewritten as a `tokenizers` model with real spaces instead of U+2581: then
U+2581 in text is a character like any other and comes back. Pieces hold spaces only at their start,
so the best segmentation falls apart before each run of spaces, and each such word is segmented
alone (and remembered). Two things keep text from spelling byte and special tokens: their scores
lose against any spelling in single characters, and printable ASCII always has those. Byte pairs
need no such thing: no merge makes them. A pair of pieces merges where both together are a piece,
earlier trained ones first.
"""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from llm_core.printing import get_logger
from tasks.runtime.stage import StageFailure
from tasks.tokenizer.encoder import END_OF_TEXT, PAD, SPECIAL_TOKENS, UNKNOWN
from tasks.tokenizer.files import UNREACHABLE_SCORE, add_special
from tasks.tokenizer.pretokenizers import SPACE_PATTERN

logger = get_logger("tasks.tokenizer.sentencepieces")

Method = Literal["unigram", "bpe"]
SPACE = "\u2581"
RESERVED = "\u2581\u2585\t\0"
"""What sentencepiece uses for itself: lines with it would be skipped or misread."""

MAX_CHUNK_BYTES = 4096
CHARACTER_COVERAGE = 0.9995
MAX_WORD_CHARS = 256
"""A longer run without blanks is text that is written without them."""
MAX_PIECE_CHARS = 16
"""The longest piece that sentencepiece learns."""
MAX_UNBROKEN_WORK = 1 << 25
"""Characters times squared lengths; docs/lab-notes/tokenizer.md."""

PRINTABLE_ASCII = "".join(map(chr, range(0x21, 0x7F)))
MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS) + 1 + len(PRINTABLE_ASCII) + 1
NUM_THREADS = 4  # a constant: the order of floating-point sums, and so the model, depends on it


@dataclass
class ChunkCount:
    """Bytes of text that went to the trainer, and of characters without pieces, which it need not
    see."""

    used_bytes: int = 0
    uncovered_bytes: int = 0


class VocabularyTooLarge(ValueError):
    """The text gives fewer pieces than asked for; `limit` is what the trainer would take."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit


def train_pieces(
    texts: list[str], vocab_size: int, method: Method
) -> tuple[Tokenizer, bytes, ChunkCount]:
    """(tokenizer, sentencepiece model file, what went into training).

    Raises StageFailure with the largest possible size when the text is too small for `vocab_size`.
    """
    try:
        model, count = train_model(texts, vocab_size, method)
    except VocabularyTooLarge as error:
        limit = error.limit
        # A smaller vocabulary gives fewer characters a piece, which may lower the limit again;
        # small texts train fast.
        while limit >= MIN_VOCAB_SIZE:
            try:
                train_model(texts, limit, method)
                break
            except VocabularyTooLarge as lower:
                limit = lower.limit
        smaller = f"set tokenizer.vocab_size={limit} or less, " if limit >= MIN_VOCAB_SIZE else ""
        raise StageFailure(
            f"tokenizer.vocab_size ({vocab_size}) is more than the pieces that this text gives;"
            f" {smaller}choose tokenizer=bpe, or give more text"
        ) from error
    return from_sentencepiece(model, method), model, count


def train_model(texts: list[str], vocab_size: int, method: Method) -> tuple[bytes, ChunkCount]:
    """A sentencepiece model file. Raises VocabularyTooLarge."""
    import sentencepiece

    characters = Counter[str]()
    for text in texts:
        characters.update(text)
    without = {ord(c): "\0" for c in characters.keys() - choose_characters(characters, vocab_size)}
    count, model = ChunkCount(), io.BytesIO()
    chunks = [chunk for text in texts for chunk in split_chunks(text, without, count)]
    if method == "unigram":
        chunks = bound_unbroken(chunks, characters, count)
    if not chunks:
        raise VocabularyTooLarge(0)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(chunks),
            model_writer=model,
            model_type=method,
            vocab_size=vocab_size,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            allow_whitespace_only_pieces=True,
            split_digits=True,
            byte_fallback=True,
            character_coverage=1.0,
            required_chars=PRINTABLE_ASCII,
            max_sentence_length=MAX_CHUNK_BYTES,
            num_threads=NUM_THREADS,
            eos_id=0,
            eos_piece=END_OF_TEXT,
            pad_id=1,
            pad_piece=PAD,
            unk_id=2,
            unk_piece=UNKNOWN,
            bos_id=-1,
            minloglevel=2,
        )
    except RuntimeError as error:
        if found := re.search(r"Please set it to a value <= (\d+)", str(error)):
            raise VocabularyTooLarge(int(found[1])) from error
        raise StageFailure(
            f"sentencepiece could not train a vocabulary of {vocab_size} ({error}); try"
            " tokenizer=bpe"
        ) from error
    return model.getvalue(), count


def from_sentencepiece(model: bytes, method: Method) -> Tokenizer:
    """The same segmentation as a `tokenizers` model over raw text."""
    import sentencepiece

    trained = sentencepiece.SentencePieceProcessor(model_proto=model)
    unspelled = (trained.is_byte, trained.is_unknown, trained.is_unused)
    vocabulary, special = [], []
    for id in range(trained.vocab_size()):
        piece, is_control = trained.id_to_piece(id), trained.is_control(id)
        if is_control or any(is_of(id) for is_of in unspelled):
            vocabulary.append((piece, UNREACHABLE_SCORE))
        else:
            vocabulary.append((piece.replace(SPACE, " "), trained.get_score(id)))
        special += [piece] if is_control else []
    segments: models.Model
    if method == "unigram":
        segments = models.Unigram(vocabulary, unk_id=trained.unk_id(), byte_fallback=True)
    else:
        segments = byte_pairs(vocabulary, trained.id_to_piece(trained.unk_id()))
    tokenizer = Tokenizer(segments)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(SPACE_PATTERN), behavior="isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    add_special(tokenizer, special)
    return tokenizer


def byte_pairs(vocabulary: Sequence[tuple[str, float]], unknown: str) -> models.BPE:
    """Merges that build the same pieces: every split of a piece into two others, in the order of
    the pieces' scores."""
    spelled = {piece for piece, score in vocabulary if score != UNREACHABLE_SCORE}
    merges = []
    for rank, (piece, score) in enumerate(vocabulary):
        for cut in range(1, len(piece)) if piece in spelled else ():
            parts = piece[:cut], piece[cut:]
            if spelled.issuperset(parts):
                merges.append((-score, rank, cut, parts))
    ids = {piece: id for id, (piece, _) in enumerate(vocabulary)}
    in_order = [parts for *_, parts in sorted(merges)]
    return models.BPE(ids, in_order, unk_token=unknown, fuse_unk=True, byte_fallback=True)


def choose_characters(counts: Counter[str], vocab_size: int) -> set[str]:
    """Characters that get pieces: the usual share of the text, or fewer to leave longer pieces half
    of the vocabulary."""
    ranked = sorted(
        ((n, c) for c, n in counts.items() if c not in RESERVED), key=lambda x: (-x[0], x[1])
    )
    total = sum(n for n, _ in ranked)
    chosen, covered = set(PRINTABLE_ASCII), 0
    for number, character in ranked[: (vocab_size - MIN_VOCAB_SIZE) // 2]:
        if covered >= CHARACTER_COVERAGE * total:
            break
        chosen.add(character)
        covered += number
    return chosen


def bound_unbroken(
    chunks: list[str], characters: Mapping[str, int], count: ChunkCount
) -> list[str]:
    """The chunks, of those without blanks only as many as the trainer can take, evenly spread.

    Words are counted once each, but text without blanks is one word. At each of its characters as
    many pieces begin as end, and the trainer sums over all pairs of them, in each round. So the
    work is the length times the square of how many pieces begin at a character: about as many as
    there are lengths of strings that occur twice, ln(length) over the entropy of characters.
    """
    unbroken = [max(map(len, chunk.split(" "))) > MAX_WORD_CHARS for chunk in chunks]
    length = sum(len(chunk) for chunk, is_long in zip(chunks, unbroken, strict=True) if is_long)
    total = sum(characters.values())
    entropy = -sum(n / total * math.log(n / total) for n in characters.values())
    lengths = min(math.log(max(length, 2)) / max(entropy, 1e-9), MAX_PIECE_CHARS)
    share = MAX_UNBROKEN_WORK / (max(length, 1) * lengths**2)
    if share >= 1:
        return chunks
    kept, number = [], 0
    for chunk, is_long in zip(chunks, unbroken, strict=True):
        number += is_long
        # One of every 1 / share, by whole numbers passed.
        if not is_long or math.floor(number * share) > math.floor((number - 1) * share):
            kept.append(chunk)
        else:
            count.used_bytes -= len(chunk.encode())
    logger.warning(
        "unigram learns from %.2g %% of the text without blanks (%.1f million characters), since"
        " all of it would take too long; tokenizer=bpe learns from all of it",
        100 * share,
        length / 1e6,
    )
    return kept


def split_chunks(text: str, without: Mapping[int, str], count: ChunkCount) -> Iterator[str]:
    """Pieces of at most MAX_CHUNK_BYTES that the trainer takes whole, cut before a space where
    there is one.

    `without` maps the characters that have no piece to NUL; text is cut around them.
    """
    masked, place = text.translate(without), 0
    for span in re.finditer("[^\0]+", masked):
        count.uncovered_bytes += len(text[place : span.start()].encode())
        place, end = span.span()
        while place < end:
            # A code point has at most four bytes, so a first guess by length needs few corrections.
            stop = min(end, place + MAX_CHUNK_BYTES)
            while len(masked[place:stop].encode()) > MAX_CHUNK_BYTES:
                stop = place + (stop - place) * 3 // 4
            if stop < end and (space := masked.rfind(" ", place + 1, stop)) > place:
                stop = space
            count.used_bytes += len(masked[place:stop].encode())
            yield masked[place:stop]
            place = stop
    count.uncovered_bytes += len(text[place:].encode())
