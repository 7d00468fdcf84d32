"""Byte-level byte-pair encoding, trained with `tokenizers` (Sennrich et al. 2016; Radford et al. 2019).

Every byte is in the vocabulary, so any text can be encoded and comes back. Text is first cut into pre-tokens:
contractions, words with one leading sign, groups of three digits, signs, line ends, spaces. Each kind is
bounded in length, which keeps training and encoding linear on text without spaces. Marks belong to words: cutting
at them would tear every syllable of Indic scripts.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tasks.encoder import SPECIAL_TOKENS

PATTERN = (
    r"(?i:'(?:[sdmt]|ll|ve|re))"
    r"|[^\r\n\p{L}\p{M}\p{N}]?[\p{L}\p{M}]{1,64}"
    r"|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{M}\p{N}]{1,32}[\r\n]{0,4}"
    r"|\s{0,32}[\r\n]"
    r"|\s{1,32}(?!\S)"
    r"|\s{1,32}"
)
MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A tokenizer of at most `vocab_size` tokens: fewer when the text has no more pairs to merge."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
