"""Unigram language-model tokenizer, trained with `sentencepiece` (Kudo 2018), run by `tokenizers`.

sentencepiece trains under identity rules: no normalisation, no added or removed spaces, rare characters as bytes.
It silently skips lines longer than its limit and lines with the signs it uses itself; here text is cut to chunks
below the limit at spaces or between code points, and around those signs, so nothing is skipped. The signs
(U+2581 for a space, U+2585, tab, NUL) can be in no piece; they are encoded as bytes.

The trained pieces are rewritten as a `tokenizers` model with real spaces instead of U+2581: then U+2581 in
text is a character like any other and comes back. Pieces hold spaces only at their start, so the best segmentation falls apart
before each run of spaces, and each such word is segmented alone (and remembered). Two things keep text from spelling byte and
special tokens: their scores lose against any spelling in single characters, and printable ASCII always has those.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from tasks.encoder import END_OF_TEXT, PAD, SPECIAL_TOKENS, UNKNOWN
from tasks.stage import StageFailure

SPACE = "\u2581"
RESERVED = re.compile("[\u2581\u2585\t\0]+")
"""What sentencepiece uses for itself: lines with it would be skipped or misread."""

MAX_CHUNK_BYTES = 4096
CHARACTER_COVERAGE = 0.9995
UNREACHABLE_SCORE = -1000.0
"""Below the score of any spelling in single characters of a byte or special token's name."""

PRINTABLE_ASCII = "".join(map(chr, range(0x21, 0x7F)))
MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS) + 1 + len(PRINTABLE_ASCII) + 1
NUM_THREADS = 4  # a constant: the order of floating-point sums, and so the model, depends on it


@dataclass
class ChunkCount:
    """Bytes of text that went to the trainer, and of the signs it cannot take."""

    used_bytes: int = 0
    reserved_bytes: int = 0


def train_unigram(texts: list[str], vocab_size: int) -> tuple[Tokenizer, bytes, ChunkCount]:
    """(tokenizer, sentencepiece model file, what went into training).

    Raises StageFailure with the largest possible size when the text is too small for `vocab_size`.
    """
    import sentencepiece

    characters = Counter[str]()
    for text in texts:
        characters.update(text)
    coverage = choose_coverage(characters, vocab_size)
    count, model = ChunkCount(), io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(chunk for text in texts for chunk in split_chunks(text, count)),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            allow_whitespace_only_pieces=True,
            split_digits=True,
            byte_fallback=True,
            character_coverage=coverage,
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
        raise _explain(error, vocab_size) from error
    return from_sentencepiece(model.getvalue()), model.getvalue(), count


def from_sentencepiece(model: bytes) -> Tokenizer:
    """The same segmentation as a `tokenizers` Unigram model over raw text."""
    import sentencepiece

    trained = sentencepiece.SentencePieceProcessor(model_proto=model)
    vocabulary = []
    for id in range(trained.vocab_size()):
        spelled = not (trained.is_byte(id) or trained.is_control(id) or trained.is_unknown(id))
        piece = trained.id_to_piece(id)
        vocabulary.append((piece.replace(SPACE, " "), trained.get_score(id)) if spelled else (piece, UNREACHABLE_SCORE))
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=trained.unk_id(), byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" +[^ ]*|[^ ]+"), behavior="isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def choose_coverage(characters: Counter[str], vocab_size: int) -> float:
    """Share of the text's characters that get pieces: the usual one, or less to leave half of the vocabulary to longer pieces."""
    ranked = sorted(((n, c) for c, n in characters.items() if not RESERVED.match(c)), key=lambda x: (-x[0], x[1]))
    total = sum(n for n, _ in ranked)
    budget = max(1, (vocab_size - MIN_VOCAB_SIZE) // 2)
    covered, number = 0, 0
    while number < min(budget, len(ranked)) and covered < CHARACTER_COVERAGE * total:
        covered += ranked[number][0]
        number += 1
    if not total:
        return CHARACTER_COVERAGE
    # Half a character less than the exact share: rounding must not let one more in.
    return min(CHARACTER_COVERAGE, max(0.0, (covered - 0.5) / total))


def split_chunks(text: str, count: ChunkCount) -> Iterator[str]:
    """Pieces of at most MAX_CHUNK_BYTES that the trainer takes whole; begins at a space where there is one."""
    place = 0
    for reserved in [*RESERVED.finditer(text), None]:
        end = reserved.start() if reserved else len(text)
        while place < end:
            # A code point has at most four bytes, so a first guess by length needs few corrections.
            stop = min(end, place + MAX_CHUNK_BYTES)
            while len(text[place:stop].encode()) > MAX_CHUNK_BYTES:
                stop = place + max(1, (stop - place) * 3 // 4)
            if stop < end and (space := text.rfind(" ", place + 1, stop)) > place:
                stop = space
            count.used_bytes += len(text[place:stop].encode())
            yield text[place:stop]
            place = stop
        if reserved:
            count.reserved_bytes += len(reserved[0].encode())
            place = reserved.end()


def _explain(error: RuntimeError, vocab_size: int) -> StageFailure:
    if found := re.search(r"Please set it to a value <= (\d+)", str(error)):
        return StageFailure(
            f"tokenizer.vocab_size ({vocab_size}) is more than this text gives pieces for; "
            f"set tokenizer.vocab_size={found[1]} or less, or kind=bpe, or give more text"
        )
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
        return StageFailure(
            f"tokenizer.vocab_size ({vocab_size}) leaves no room for single characters; "
            f"set tokenizer.vocab_size={found[1]} or more"
        )
    return StageFailure(f"sentencepiece could not train a vocabulary of {vocab_size}: {error}")
