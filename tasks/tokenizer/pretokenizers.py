"""Cuts text before it is made of tokens: pre-tokenisers by name, and the cuts that no pre-token
crosses.

`bounded` is ours: words with one leading sign, groups of three digits, signs, line ends, spaces,
each bounded in length, which keeps training and encoding linear on text without spaces; marks
belong to words, since cutting at them would tear every syllable of Indic scripts. `gpt2` (Radford
et al. 2019) and `gpt4` (one to three digits together) are the expressions that the tokenizer.json
files of those models hold, letter for letter; `llama3` is the latter with words taken whole where
they are tokens. `none` cuts nowhere: merges may cross words, and whole texts are words, so training
needs time and memory.

`word_cuts` gives an expression whose matches partition a text into words that are encoded apart
with the ids of the whole: it cuts only at ASCII letters, digits and signs, before blanks and after
the last line end of a run of them, where each expression has a border whatever stands around. None
where nothing is known of a tokenizer's borders.
"""

from __future__ import annotations

import functools
import json
import re
from typing import Any, Literal

from tokenizers import Regex, Tokenizer, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

PreTokenizerName = Literal["bounded", "gpt2", "gpt4", "llama3", "none"]

PATTERNS: dict[str, str] = {
    "bounded": (
        r"(?i:'(?:[sdmt]|ll|ve|re))"
        r"|[^\r\n\p{L}\p{M}\p{N}]?[\p{L}\p{M}]{1,64}"
        r"|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{M}\p{N}]{1,32}[\r\n]{0,4}"
        r"|\s{0,32}[\r\n]"
        r"|\s{1,32}(?!\S)"
        r"|\s{1,32}"
    ),
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "gpt4": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
PATTERNS["llama3"] = PATTERNS["gpt4"]
MAX_BOUNDED_BYTES = 65 * 4
"""The longest pre-token of `bounded`, in bytes."""

BLANKS = r"\t\x0b\x0c \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""What `\\s` is to the pre-tokenizer's regular expressions, less line ends. Python's own `\\s` has
U+001C to U+001F too."""

# No pre-token goes on after a letter or digit into a sign or line end, after any of these into a
# blank, or beyond the last line end of a run of spaces.
_AFTER_LINE_ENDS = re.compile(
    rf"[{BLANKS}]*(?:[^\r\n{BLANKS}A-Za-z0-9]*[A-Za-z0-9]+(?=[!-/:-@\[-`{{-~\r\n])|[^\r\n{BLANKS}]+(?:[\r\n{BLANKS}]*[\r\n])?)"
    rf"|[\r\n{BLANKS}]*[\r\n]|[{BLANKS}]+"
)
# To GPT-2 a line end is a blank like any other, and a run of blanks belongs to what follows.
_BEFORE_BLANKS = re.compile(
    rf"[\r\n{BLANKS}]*(?:[^\r\n{BLANKS}A-Za-z0-9]*[A-Za-z0-9]+(?=[!-/:-@\[-`{{-~])|[^\r\n{BLANKS}]+)|[\r\n{BLANKS}]+"
)
SPACE_PATTERN = r" +[^ ]*|[^ ]+"
"""For pieces that hold spaces at their start only."""

_CUTS: dict[str, re.Pattern[str]] = {
    PATTERNS["bounded"]: _AFTER_LINE_ENDS,
    PATTERNS["gpt2"]: _BEFORE_BLANKS,
    PATTERNS["gpt4"]: _AFTER_LINE_ENDS,
    SPACE_PATTERN: re.compile(SPACE_PATTERN),
}


def byte_level(name: PreTokenizerName) -> PreTokenizer:
    """The pre-tokeniser of that name, which then writes bytes as letters (GPT-2)."""
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if name == "none":
        return letters
    if name == "gpt2":  # spelled as in GPT-2's own file, which other programs know
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PATTERNS[name]), behavior="isolated"), letters]
    )


def word_cuts(model: Tokenizer) -> re.Pattern[str] | None:
    """An expression whose matches are words that are encoded alone with the ids of the whole; None
    where none is known."""
    return _CUTS.get(split_pattern(model) or "")


def split_pattern(model: Tokenizer) -> str | None:
    """The one expression that cuts text before anything else; None where something looks across its
    cuts."""
    described = json.loads(model.to_str())
    # So do normalisers, and added tokens that are not special.
    if described["normalizer"] is not None or not all(
        token["special"] for token in described["added_tokens"]
    ):
        return None
    return _pattern(described["pre_tokenizer"])


@functools.cache
def letter_bytes() -> dict[str, int]:
    """The 256 letters that byte-level tokenizers write bytes with (GPT-2): printable Latin-1 as
    itself, others from U+0100 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in shown]
    letters = {chr(b): b for b in shown} | {chr(0x100 + n): b for n, b in enumerate(hidden)}
    assert set(letters) == set(pre_tokenizers.ByteLevel.alphabet())
    return letters


def _pattern(described: dict[str, Any] | None) -> str | None:
    """The one expression that a pre-tokeniser cuts by."""
    if described is None:
        return None
    if described["type"] == "ByteLevel":
        plain = described["use_regex"] and not described["add_prefix_space"]
        return PATTERNS["gpt2"] if plain else None
    if described["type"] == "Split":
        isolated = described["behavior"] == "Isolated" and not described["invert"]
        return str(described["pattern"].get("Regex")) if isolated else None
    if described["type"] != "Sequence":
        return None
    first, *rest = described["pretokenizers"]
    only_letters = [
        r
        for r in rest
        if r["type"] == "ByteLevel" and not r["use_regex"] and not r["add_prefix_space"]
    ]
    return _pattern(first) if len(only_letters) == len(rest) else None
