"""Byte-level subword vocabularies, trained with `tokenizers`: byte-pair encoding and WordPiece.

Every byte is in the vocabulary, so any text can be encoded and comes back. Text is first cut into
pre-tokens (`tasks.tokenizer.pretokenizers`). BPE (Sennrich et al. 2016; Radford et al. 2019)
replays its merges in the order they were learnt; WordPiece (Wu et al. 2016, as in BERT) takes the
longest piece each time, from a vocabulary found by the same merges, or by those of likelihood
(`tasks.tokenizer.likelihood_merges`). Its pieces inside a word begin with a sign that no byte is
written with, where BERT's `##` could be text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tasks.tokenizer.encoder import SPECIAL_TOKENS, UNKNOWN
from tasks.tokenizer.fast_bpe import CONTINUES
from tasks.tokenizer.files import add_special
from tasks.tokenizer.likelihood_merges import learn_merges, split_words
from tasks.tokenizer.pretokenizers import MAX_BOUNDED_BYTES, PreTokenizerName, byte_level

MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)
MIN_WORDPIECE_VOCAB_SIZE = 2 * 256 + len(SPECIAL_TOKENS) + 1
MergeScore = Literal["count", "likelihood"]
MAX_UNCUT_CHARS = 256
"""Without pre-tokens a piece of text is one word, and each merge walks through the words it is
in."""


def train_bpe(
    texts: Iterable[str], vocab_size: int, pre_tokenizer: PreTokenizerName = "bounded"
) -> Tokenizer:
    """A tokenizer of at most `vocab_size` tokens: fewer when the text has no more pairs to
    merge."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=pre_tokenizer == "llama3"))
    tokenizer.pre_tokenizer = byte_level(pre_tokenizer)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=_alphabet(),
        show_progress=False,
    )
    if pre_tokenizer == "none":
        texts = _cut(texts, MAX_UNCUT_CHARS)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def train_wordpiece(
    texts: Iterable[str], vocab_size: int, merge_score: MergeScore = "count"
) -> Tokenizer:
    """A byte-level WordPiece tokenizer of at most `vocab_size` tokens, over words of bounded
    length."""
    # Named first, all pieces of one byte get a place, and in this order.
    first = [
        *(*SPECIAL_TOKENS, UNKNOWN, *_alphabet()),
        *(CONTINUES + letter for letter in _alphabet()),
    ]
    learn = _merges_by_count if merge_score == "count" else _merges_by_likelihood
    trained = _word_piece(learn(texts, vocab_size, first))
    trained.decoder = decoders.Sequence([decoders.Replace(CONTINUES, ""), decoders.ByteLevel()])
    add_special(trained, (*SPECIAL_TOKENS, UNKNOWN))
    return trained


def _word_piece(vocabulary: dict[str, int] | None = None) -> Tokenizer:
    tokenizer = Tokenizer(
        models.WordPiece(
            vocabulary,
            unk_token=UNKNOWN,
            max_input_chars_per_word=MAX_BOUNDED_BYTES,
            continuing_subword_prefix=CONTINUES,
        )
    )
    tokenizer.pre_tokenizer = byte_level("bounded")
    return tokenizer


def _merges_by_count(texts: Iterable[str], vocab_size: int, first: list[str]) -> dict[str, int]:
    tokenizer = _word_piece()
    # To the trainer all of `first` are special tokens; it gives other places by a hash table.
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=first,
        continuing_subword_prefix=CONTINUES,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.get_vocab(with_added_tokens=True)


def _merges_by_likelihood(
    texts: Iterable[str], vocab_size: int, first: list[str]
) -> dict[str, int]:
    cut, words = byte_level("bounded"), Counter[str]()
    for text in texts:
        words.update(word for word, _ in cut.pre_tokenize_str(text))
    learnt = learn_merges(split_words(words, CONTINUES), CONTINUES, vocab_size - len(first))
    return {piece: id for id, piece in enumerate([*first, *learnt])}


def _alphabet() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def _cut(texts: Iterable[str], max_chars: int) -> Iterator[str]:
    for text in texts:
        yield from (text[start : start + max_chars] for start in range(0, len(text), max_chars))
