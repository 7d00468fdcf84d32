"""Turns the tokens that a model calls personal data into spans: whole words, by rules of each type.

Tokens of one type are joined over the signs that may stand inside such a thing. A border within a
word moves to the border of the word; marks stay with their letter; in scripts without blanks the
model's border stays. What is left is removed only where it has the form of its type:

- a name has two letters,
- a postal address has a digit: a town alone is nobody's address,
- a date of birth has a digit, and a word for birth close by (`BIRTH_WORDS`).

Tags, asterisks and runs of letters that are not words divide a span, so text that was scrubbed
before keeps its tags.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import regex

from tasks.definitions import pii_kinds as kinds
from tasks.pii.ner_model import EntityModel, Tokens
from tasks.pii.phrases import Row

MAX_WORD_CHARS = 64
"""A longer run of letters is not a word, and nothing in it is removed."""
BEFORE_CHARS, AFTER_CHARS = 48, 24
"""How far from a date a word for birth may stand."""
KINDS = {
    "NAME": kinds.NAME,
    "POSTAL_ADDRESS": kinds.POSTAL_ADDRESS,
    "DATE_OF_BIRTH": kinds.DATE_OF_BIRTH,
}
_JOINTS = {
    "NAME": regex.compile(r"[ .'-]{0,3}"),
    "POSTAL_ADDRESS": regex.compile(r"(?:[\s.,;#/-]|<br ?/?>){0,4}"),
    "DATE_OF_BIRTH": regex.compile(r"[ .,/-]{0,3}"),
}
_FORMS = {
    "NAME": regex.compile(r"\p{L}.*\p{L}", regex.DOTALL),
    "POSTAL_ADDRESS": regex.compile(r"\d"),
    "DATE_OF_BIRTH": regex.compile(r"[\d〇一二三四五六七八九十]"),
}
_LETTERS = r"[[\p{L}\p{M}\p{N}]--[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]]"  # noqa: E501
_WORD = regex.compile(_LETTERS, regex.V1)
_LONG = regex.compile(f"{_LETTERS}{{{MAX_WORD_CHARS + 1},}}", regex.V1)
_DIVIDERS = regex.compile(rf"<[^<>]{{0,80}}>|[<*]|{_LONG.pattern}", regex.V1)
_MARK = regex.compile(r"\p{M}")
_BORDER = regex.compile(r"[\p{L}\p{M}\p{N}]")
BIRTH_WORDS = (
    *("born", "birth", "birthday", "birthdate", "dob", r"d\.\s?o\.\s?b"),  # English
    *("geboren", "geborene", "geborener", r"geb\.", "geburtsdatum", "geburtstag"),  # German
    *("née?", "naissance", "nacid[oa]s?", "nacimiento", "nació"),  # French, Spanish
    *("nascid[oa]s?", "nascimento", "nasceu"),  # Portuguese
    *("nat[oa] (?:il|l'|a)", "nascita"),  # Italian
    *("geboortedatum", "född", "född[ae]", "födelsedatum", "født", "fødselsdato"),  # Dutch, Nordic
    *(r"ur\.", "urodzon[ya]", "urodzenia", "narozen[aá]?", "narození"),  # Polish, Czech
    *("родил(?:ся|ась)", "рождения", r"д\.\s?р"),  # Russian
    *("народи(?:вся|лася)", "народження"),  # Ukrainian
    *("doğum", "doğdu", "doğumlu", "sinh", "lahir", "γεννήθηκε", "γέννησης"),  # Turkish … Greek
)
"""Words for birth in languages that part words."""
BIRTH_SIGNS = (
    *("出生", "生日", "生于", "生於", "生年月日", "生まれ", "誕生日"),  # Chinese, Japanese
    *("생년월일", "출생", "생일", "태어"),  # Korean
    *("ميلاد", "مواليد", "ولد", "تولد", "נולד", "לידה", "जन्म", "เกิด"),  # Arabic … Thai
)
_BIRTH = regex.compile(
    rf"(?<![\p{{L}}\p{{N}}])(?:{'|'.join(BIRTH_WORDS)})(?!\p{{L}})|{'|'.join(BIRTH_SIGNS)}",
    regex.IGNORECASE,
)


def entity_rows(values: np.ndarray, begins: np.ndarray, model: EntityModel) -> np.ndarray:
    """Rows of (document, start, end, kind, value) of what a model finds in documents of one buffer,
    document i in [begins[i], begins[i + 1]); in order."""
    from tasks.kernels.pii.rows import ROW

    edges = begins.tolist()
    texts = [values[begin:end].tobytes().decode() for begin, end in pairwise(edges)]
    rows: list[Row] = []
    for document, tokens in enumerate(model.tokens_of_all(iter(texts))):
        spans = list(entity_spans(texts[document], tokens, model.types))
        if spans:
            offsets = edges[document] + byte_offsets(texts[document])
            rows += [
                (document, int(offsets[start]), int(offsets[end]), KINDS[kind], 0)
                for start, end, kind in spans
            ]
    return np.array(sorted(rows), np.int64).reshape(-1, ROW)


def byte_offsets(text: str) -> np.ndarray:
    """Where each code point begins in UTF-8, and the text ends; int64 [code points + 1]."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    sizes = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def entity_spans(
    text: str, tokens: Tokens, types: tuple[str, ...]
) -> Iterator[tuple[int, int, str]]:
    """(start, end, type) in code points of what is removed of a text."""
    for start, end, kind in _joined(text, tokens, types):
        if not _has_form(text, start, end, kind):
            continue
        position = start
        for divider in (*_DIVIDERS.finditer(text, start, end), None):
            stop = end if divider is None else divider.start()
            if (words := whole_words(text, position, stop)) is not None:
                yield *words, kind
            position = end if divider is None else divider.end()


def _joined(text: str, tokens: Tokens, types: tuple[str, ...]) -> Iterator[tuple[int, int, str]]:
    """Tokens of one type next to each other, as one."""
    held: tuple[int, int, str] | None = None
    for start, end, number in zip(
        tokens.starts.tolist(), tokens.ends.tolist(), tokens.types.tolist(), strict=True
    ):
        kind = types[number]
        if held and held[2] == kind and _JOINTS[kind].fullmatch(text, held[1], max(held[1], start)):
            held = held[0], max(held[1], end), kind
            continue
        if held:
            yield held
        held = start, end, kind
    if held:
        yield held


def _has_form(text: str, start: int, end: int, kind: str) -> bool:
    if not _FORMS[kind].search(text, start, end):
        return False
    if kind != "DATE_OF_BIRTH":
        return True
    # One more, so that the head of a longer word is not taken for a word.
    found = _BIRTH.finditer(text, max(0, start - BEFORE_CHARS), end + AFTER_CHARS + 1)
    return any(
        word.end() <= start or (end <= word.start() and word.end() <= end + AFTER_CHARS)
        for word in found
    )


def whole_words(text: str, start: int, end: int) -> tuple[int, int] | None:
    """A span without signs at its borders, and with all of the words there; None where nothing is
    left, or the word is longer than words are."""
    while start < end and not _BORDER.match(text, start):
        start += 1
    while end > start and not _BORDER.match(text, end - 1):
        end -= 1
    if start == end:
        return None
    low, high = max(0, start - MAX_WORD_CHARS), min(len(text), end + MAX_WORD_CHARS)
    while start > low and (
        _MARK.match(text, start) or (_WORD.match(text, start) and _WORD.match(text, start - 1))
    ):
        start -= 1
    while end < high and (
        _MARK.match(text, end) or (_WORD.match(text, end) and _WORD.match(text, end - 1))
    ):
        end += 1
    if (start == low and low > 0) or (end == high and high < len(text)):
        return None
    if _LONG.search(text, start, end):
        return None
    return start, end
