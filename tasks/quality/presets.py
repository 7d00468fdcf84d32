"""Lists the published collections of rules, and exactly what each asks.

A preset is a set of rules; a rule drops a document whose feature is under (`min`) or over (`max`)
its threshold, and the threshold itself passes. Rules of one name judge one feature on one side and
share a bit of the verdict, whatever preset they come from; what they differ in is the threshold.
Features: tasks.kernels.quality.features, where the readings of each measure are pinned.

gopher        quality and repetition, Rae et al. 2021, A.1.1 and Table A1 (also apart:
              gopher_quality, gopher_repetition). Stop words are counted once each (DataTrove and
              DCLM can count repetitions).
fineweb_paper Penedo et al. 2024, appendix E: a tenth of the characters in duplicate lines, and no
              rule on newlines.
fineweb_code  the same as published in code (DataTrove), and newlines per word: a hundredth in
              English, the number of its ablations, which were English alone; a tenth in every
              other language, as their code for FineWeb-2 has it. A hundredth of a page of Chinese
              is a poet's name that stands twice.
refinedweb    Gopher's rules with repetitions of stop words counted, as DCLM reproduces Penedo et
              al. 2023. Of that paper's own steps: its list of domains is `quality.urls`, language
              at 0.65 is `language.min_score`; the correction of single lines (capitals, counters,
              navigation; a page goes where that takes over 5 % of its words) is left out.
c4_paper      Raffel et al. 2020, section 2.2: pages of 5 sentences, in lines of 3 words.
c4_code       the same as published in code (tensorflow_datasets, c4_utils.py): 3 sentences, in
              lines of 5 words.
c4_fineweb    the same without its rule on ends of lines, as FineWeb ran it: 5 sentences, in lines
              of 3 words. Not in scripts without spaces: C4 is English. Its readings:
              tasks.kernels.quality.c4. All c4_* judge pages; `quality.line_cuts` takes the single
              lines out (tasks.quality.c4_lines). Of the paper's other steps, bad words are a list
              in `quality.keywords`, English at 0.99 is `language.min_score` with a limit on
              languages, and sentences repeated in spans of three come near to `dedup.cuts`; none of
              them is in a preset.
fineweb2/LANG FineWeb-2's thresholds by language (tasks.quality.fineweb2).
mixed         the default, for text of many languages and kinds (docs/lab-notes/quality.md: read
              and measured). Gopher's questions of words, with FineWeb-2's word lengths by language;
              in place of ends of lines and small repetitions, which prose in lines of fixed width,
              verse, manuals and long documents fail, it asks what the characters are: letters, not
              digits, symbols, marks or damage. It asks for more of them where the text has no
              sentences (`listing`), since headers, tables and menus share their shares of
              characters with dictionaries and standards, which have sentences. Repetition drops
              where it is most of the text, and running heads of pages are not lines.

Rules of words and sentences of English do not fit every script and language; a rule that does not
apply is not broken:

* stop words are asked only where there is a list: of documents identified as `en`, or with
  FineWeb-2's list of their language;
* word lengths and the length of a short line mean little where a letter is a unit and 30 letters
  are a paragraph: not where half of the units or more are unsegmented letters (FineWeb-2 has
  other word lengths there, of words its tokenizers found, and no short-line rule at all);
* five to seven letters are two or three words of Chinese or Japanese, which every text repeats:
  duplicate n-grams count there from eight letters on, about as long as five words of English;
* shares of lines say nothing of a few lines (`lines`: of MIN_LINES or more), and that a line is
  short says nothing where 30 letters are a paragraph (`segmented_lines`);
* text of sentences is not judged by how its headings and tables look (`listing`: text whose mean
  sentence has LISTING_WORDS[0] words or fewer, or more than LISTING_WORDS[1]; twice as many
  letters in scripts without spaces);
* Thai and Lao end sentences with a space: no rule on punctuation at the ends of lines (FineWeb-2
  sets it to 0 for Thai).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from tasks.quality.fineweb2 import FINEWEB2, LanguageLimits, word_chars

Scope = Literal[
    "all",
    "segmented",
    "terminal",
    "lines",
    "segmented_lines",
    "listing",
    "lines_listing",
    "segmented_listing",
    "segmented_lines_listing",
]

MIN_LINES = 10
"""Lines from which a share of lines means something, in rules for `lines`."""
LISTING_WORDS = (4, 30)
"""Text between these mean lengths of a sentence is not a listing. Prose of all languages read has 8
to 30; entries without a verb have fewer, and what has no marks between entries has more."""


@dataclass(frozen=True)
class Rule:
    """One reason to drop a document, named after the defect. A threshold of None switches the rule
    off.

    applies_to: `segmented` leaves out scripts without spaces, `terminal` languages that end
    sentences without a mark, `lines` texts of few lines, `listing` texts of sentences; scopes
    joined by `_` leave out what each of them does. languages: labels it applies to; empty for all.
    cuts: (language, threshold) where languages have thresholds of their own; `threshold` is that of
    all others.
    """

    name: str
    preset: str
    feature: str
    side: Literal["min", "max"]
    threshold: float | None
    applies_to: Scope = "all"
    languages: tuple[str, ...] = ()
    cuts: tuple[tuple[str, float], ...] = ()

    @property
    def is_on(self) -> bool:
        return self.threshold is not None or bool(self.cuts)


def _rules(preset: str, *rows: tuple[Any, ...]) -> tuple[Rule, ...]:
    """The rules of a preset. A row holds the values of a `Rule` in order, without the preset."""
    return tuple(Rule(name, preset, *rest) for name, *rest in rows)


_GOPHER_QUALITY = _rules(
    "gopher_quality",
    ("TOO_FEW_WORDS", "num_words", "min", 50),
    ("TOO_MANY_WORDS", "num_words", "max", 100_000),
    ("SHORT_WORDS", "mean_word_chars", "min", 3, "segmented"),
    ("LONG_WORDS", "mean_word_chars", "max", 10, "segmented"),
    ("TOO_MANY_HASHES", "hash_per_word", "max", 0.1),
    ("TOO_MANY_ELLIPSES", "ellipsis_per_word", "max", 0.1),
    ("TOO_MANY_BULLET_LINES", "bullet_line_frac", "max", 0.9),
    ("TOO_MANY_ELLIPSIS_LINES", "ellipsis_line_frac", "max", 0.3),
    ("TOO_FEW_ALPHABETIC_WORDS", "alphabetic_word_frac", "min", 0.8),
    ("TOO_FEW_STOP_WORDS", "num_stop_words", "min", 2, "all", ("en",)),
)
_GOPHER_REPETITION = _rules(
    "gopher_repetition",
    ("DUPLICATE_LINES", "dup_line_frac", "max", 0.30),
    ("DUPLICATE_PARAGRAPHS", "dup_paragraph_frac", "max", 0.30),
    ("DUPLICATE_LINE_CHARS", "dup_line_char_frac", "max", 0.20),
    ("DUPLICATE_PARAGRAPH_CHARS", "dup_paragraph_char_frac", "max", 0.20),
    ("TOP_2GRAM", "top_2gram_char_frac", "max", 0.20),
    ("TOP_3GRAM", "top_3gram_char_frac", "max", 0.18),
    ("TOP_4GRAM", "top_4gram_char_frac", "max", 0.16),
    ("DUPLICATE_5GRAMS", "dup_5gram_char_frac", "max", 0.15, "segmented"),
    ("DUPLICATE_6GRAMS", "dup_6gram_char_frac", "max", 0.14, "segmented"),
    ("DUPLICATE_7GRAMS", "dup_7gram_char_frac", "max", 0.13, "segmented"),
    ("DUPLICATE_8GRAMS", "dup_8gram_char_frac", "max", 0.12),
    ("DUPLICATE_9GRAMS", "dup_9gram_char_frac", "max", 0.11),
    ("DUPLICATE_10GRAMS", "dup_10gram_char_frac", "max", 0.10),
)
_GOPHER = (*_GOPHER_QUALITY, *_GOPHER_REPETITION)
_FINEWEB_PAPER = _rules(
    "fineweb_paper",
    ("TOO_FEW_PUNCTUATED_LINES", "terminal_line_frac", "min", 0.12, "terminal"),
    ("TOO_MANY_SHORT_LINES", "short_line_frac", "max", 0.67, "segmented"),
    ("ANY_DUPLICATE_LINE_CHARS", "dup_line_char_frac", "max", 0.1),
)
_NEWLINES = Rule("TOO_MANY_NEWLINES", "fineweb_code", "newline_per_word", "max", 0.3)
_C4_PAPER = _rules(
    "c4_paper",
    ("C4_TOO_FEW_SENTENCES", "c4_num_sentences", "min", 5, "segmented"),
    ("C4_CURLY_BRACES", "c4_num_curly_braces", "max", 0, "segmented"),
    ("C4_LOREM_IPSUM", "c4_num_lorem_ipsum_lines", "max", 0, "segmented"),
)
_C4_CODE = _rules(
    "c4_code",
    ("C4_CODE_TOO_FEW_SENTENCES", "c4_code_num_sentences", "min", 3, "segmented"),
    ("C4_CODE_FORBIDDEN_LINES", "c4_code_num_forbidden_lines", "max", 0, "segmented"),
)
_C4_FINEWEB = _rules(
    "c4_fineweb",
    ("C4_FINEWEB_TOO_FEW_SENTENCES", "c4_fineweb_num_sentences", "min", 5, "segmented"),
    ("C4_FINEWEB_FORBIDDEN_LINES", "c4_fineweb_num_forbidden_lines", "max", 0, "segmented"),
)
_STOP_WORD_OCCURRENCES = _rules(
    "refinedweb",
    ("TOO_FEW_STOP_WORD_OCCURRENCES", "num_stop_word_occurrences", "min", 2, "all", ("en",)),
)


def _with(
    rules: Iterable[Rule], preset: str, thresholds: dict[str, float] | None = None
) -> tuple[Rule, ...]:
    """The rules as those of another preset, with its thresholds where they differ."""
    return tuple(
        replace(r, preset=preset, threshold=(thresholds or {}).get(r.name, r.threshold))
        for r in rules
    )


def _fineweb2(language: str, limits: LanguageLimits) -> tuple[Rule, ...]:
    """Gopher's and FineWeb's rules with the numbers of one language; those that FineWeb-2 switches
    off are left out."""
    off = {"DUPLICATE_PARAGRAPHS", "DUPLICATE_LINE_CHARS", "DUPLICATE_PARAGRAPH_CHARS"}
    off |= {"TOO_MANY_SHORT_LINES"} | (set() if limits.stop_words else {"TOO_FEW_STOP_WORDS"})
    rules = (*_GOPHER, *_FINEWEB_PAPER, _NEWLINES)
    # The list of stop words is the one of this language, so the rule is for it alone.
    kept = [
        replace(r, languages=(language,)) if r.languages else r for r in rules if r.name not in off
    ]
    return _with(kept, f"fineweb2/{language}", limits.thresholds)


_NOT_MIXED = (
    "TOO_MANY_ELLIPSES",  # dots of tables of contents
    "TOO_MANY_BULLET_LINES",  # licences in comments, dialogue; lists have bare lines
)
_FINEWEB_CODE = (
    *(
        replace(rule, cuts=(("en", 0.01),)) if rule.name == "ANY_DUPLICATE_LINE_CHARS" else rule
        for rule in _with(_FINEWEB_PAPER, "fineweb_code")
    ),
    _NEWLINES,
)

_MIXED_SCOPES: dict[str, Scope] = {
    "TOO_MANY_HASHES": "listing",  # licences in comments
    "TOO_MANY_ELLIPSIS_LINES": "lines_listing",  # dialogue
    "TOO_FEW_STOP_WORDS": "listing",  # text of another language behind an English head
}
_MIXED = (
    *(
        replace(
            rule,
            threshold={"SHORT_WORDS": 2, "LONG_WORDS": 15}.get(rule.name, rule.threshold),
            applies_to=_MIXED_SCOPES.get(rule.name, rule.applies_to),
            cuts={
                "SHORT_WORDS": (("en", 3.0), *word_chars("SHORT_WORDS")),
                "LONG_WORDS": (("en", 10.0), *word_chars("LONG_WORDS")),
            }.get(rule.name, ()),
        )
        for rule in _with(_GOPHER_QUALITY, "mixed")
        if rule.name not in _NOT_MIXED
    ),
    *_rules(
        "mixed",
        ("FEW_WORDS_IN_LISTING", "alphabetic_word_frac", "min", 0.84, "listing"),
        ("TOO_MANY_SIGNS", "sign_frac", "max", 0.30, "segmented"),
        ("MANY_SIGNS_IN_LISTING", "sign_frac", "max", 0.24, "segmented_listing"),
        ("TOO_MANY_SYMBOLS", "symbol_frac", "max", 0.12, "segmented"),
        ("DAMAGED_CHARACTERS", "mojibake_frac", "max", 0.005),
        ("TOO_MANY_BARE_LINES", "bare_line_frac", "max", 0.90, "segmented_lines"),
        ("BARE_LINES_IN_LISTING", "bare_line_frac", "max", 0.80, "segmented_lines_listing"),
        ("DUPLICATE_BODY_LINES", "body_dup_line_frac", "max", 0.50, "lines"),
        ("TOP_2GRAM", "top_2gram_char_frac", "max", 0.20, "segmented"),
        ("DUPLICATE_5GRAMS", "dup_5gram_char_frac", "max", 0.97, "segmented"),
        ("DUPLICATE_10GRAMS", "dup_10gram_char_frac", "max", 0.97),
    ),
)

PRESETS: dict[str, tuple[Rule, ...]] = {
    "gopher": _GOPHER,
    "gopher_quality": _GOPHER_QUALITY,
    "gopher_repetition": _GOPHER_REPETITION,
    "fineweb_paper": _FINEWEB_PAPER,
    "fineweb_code": _FINEWEB_CODE,
    "refinedweb": (
        *_with((r for r in _GOPHER if r.name != "TOO_FEW_STOP_WORDS"), "refinedweb"),
        *_STOP_WORD_OCCURRENCES,
    ),
    "mixed": _MIXED,
    "c4_paper": _C4_PAPER,
    "c4_code": _C4_CODE,
    "c4_fineweb": _C4_FINEWEB,
    "fineweb2/en": _with((*_GOPHER, *_FINEWEB_CODE), "fineweb2/en"),
    **{
        f"fineweb2/{language}": _fineweb2(language, limits) for language, limits in FINEWEB2.items()
    },
}

RULE_NAMES: tuple[str, ...] = tuple(
    dict.fromkeys(rule.name for rules in PRESETS.values() for rule in rules)
)
"""Every rule there is, in the order of bits in a verdict and of reasons: a dropped document counts
for the first of its rules."""
