"""Byte-level subword vocabularies, trained with `tokenizers`: byte-pair encoding and WordPiece.

Every byte is in the vocabulary, so any text can be encoded and comes back. Text is first cut into
pre-tokens (`tasks.tokenizer.pretokenizers`). BPE (Sennrich et al. 2016; Radford et al. 2019)
replays its merges in the order they were learnt; WordPiece (Wu et al. 2016, as in BERT) takes the
longest piece each time, from a vocabulary found by the same merges. Its pieces inside a word begin
with a sign that no byte is written with, where BERT's `##` could be text.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tasks.tokenizer.encoder import SPECIAL_TOKENS, UNKNOWN
from tasks.tokenizer.fast_bpe import CONTINUES
from tasks.tokenizer.files import add_special
from tasks.tokenizer.pretokenizers import MAX_BOUNDED_BYTES, PreTokenizerName, byte_level

MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)
MIN_WORDPIECE_VOCAB_SIZE = 2 * 256 + len(SPECIAL_TOKENS) + 1
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


def train_wordpiece(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level WordPiece tokenizer of at most `vocab_size` tokens, over words of bounded
    length."""
    word_piece = functools.partial(
        models.WordPiece,
        unk_token=UNKNOWN,
        max_input_chars_per_word=MAX_BOUNDED_BYTES,
        continuing_subword_prefix=CONTINUES,
    )
    tokenizer = Tokenizer(word_piece())
    tokenizer.pre_tokenizer = byte_level("bounded")
    # Named to the trainer, all pieces of one byte get a place, and in this order: it gives places
    # in the order of a hash table.
    singles = [*_alphabet(), *(CONTINUES + letter for letter in _alphabet())]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS, UNKNOWN, *singles],
        continuing_subword_prefix=CONTINUES,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # Once more without the trainer's opinion that pieces of one byte are special tokens.
    trained = Tokenizer(word_piece(tokenizer.get_vocab(with_added_tokens=True)))
    trained.pre_tokenizer = byte_level("bounded")
    trained.decoder = decoders.Sequence([decoders.Replace(CONTINUES, ""), decoders.ByteLevel()])
    add_special(trained, (*SPECIAL_TOKENS, UNKNOWN))
    return trained


def _alphabet() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def _cut(texts: Iterable[str], max_chars: int) -> Iterator[str]:
    for text in texts:
        yield from (text[start : start + max_chars] for start in range(0, len(text), max_chars))
