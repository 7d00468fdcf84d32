"""Checks that code, messages and pages use the words of the field.

Each phrase below was used somewhere and has a plain equivalent. Line breaks and comment marks
between words do not hide a phrase.
"""

from __future__ import annotations

import ast
import re
import subprocess

import pytest

from tasks.runtime.code import ROOT

INSTEAD = {
    r"\bmend(?:s|ed|ing|able)?\b": "fix; user errors",
    r"\b(?:go|goes|going|went) on (?:where|from)\b": "resumes, continues",
    r"\b(?:made|make|makes|making) (?:it |them |this )?(?:anew|again)\b": "rebuilt, rebuild",
    r"(?<!there )\b(?:is|are) no (?!longer\b|more\b|less\b|fewer\b|larger\b|slower\b|faster\b)": (
        "is not a, are not; not found in"
    ),
    r"\bfor want of\b": "unsupported, out of",
    r"\b(?:take|takes|taken|took|taking) (?:it |them )?away\b": "remove",
    r"\b(?:stand|stands|stood) in (?:a |the )?(?:documents?|texts?)\b": "occur in",
    r"\bparts (?:each|every|the) \w+ into\b": "splits into",
    r"\bgives? the text of its main content\b": "the main content is extracted",
    r"\bnames say nothing\b": "without a known extension",
    r"\band (?:its|their) (?:kin|like)\b": "and similar",
    r"\bwhat comes of\b": "results for",
    r"\bwent away while\b": "disappeared during",
    r"\bto be had\b": "unavailable",
    r"\bbeside (?:other tools|the same model|lm-eval)\b": "against",
    r"\bparts? (?:a )?documents?\b": "split",
    r"\bhow nearly\b": "quantifies the difference",
    r"\branks of a context\b": "context-parallel ranks",
    r"\bstretch(?:es)? of steps\b": "logging intervals",
    r"\bdamaged file counts as many\b": "say what is estimated, how and why",
}
"""Pattern → what to write."""
FILES = ("*.py", "*.md", "*.yaml", "*.yml", "*.ipynb", "*.toml", "Makefile")
QUOTED = ("data/", "tests/test_english.py")
"""The corpus, whose words are those of its authors, and this list."""


QUESTION = re.compile(r"[^.:;]*\?(?:\s|$)|(?:How|Which|Why|Whether|Who|Where|When|Is|Does)\b")
"""A first sentence that asks, or begins as a question does. `What` may begin a claim."""


PERCENT = re.compile(r"\d%(?![0-9A-Fa-f]{2}|`)|\d%\}")
"""A number that touches its sign, in a text or by its format: `12 %` has a blank. Escapes of
addresses and quoted code do not count."""


def asks(source: str) -> bool:
    """Whether the docstring of a module begins with a question."""
    return bool(QUESTION.match(ast.get_docstring(ast.parse(source)) or ""))


def tracked(*patterns: str) -> list[str]:
    command = ["git", "ls-files", "-co", "--exclude-standard", *patterns]
    listing = subprocess.check_output(command, cwd=ROOT, text=True)
    return [f for f in listing.split() if not f.startswith(QUOTED) and (ROOT / f).exists()]


def joined(text: str) -> str:
    """A text in one line, without the marks of comments and strings at line breaks."""
    return re.sub(r"[\"']?\s*\n\s*(?:#|f?[\"'])?\s*", " ", text)


def found(text: str) -> list[str]:
    line = joined(text)
    return [
        f"{match[0]!r}: write {plain!r}"
        for pattern, plain in INSTEAD.items()
        for match in re.finditer(pattern, line, re.IGNORECASE)
    ]


def test_no_file_uses_a_phrase_that_has_a_plain_equivalent() -> None:
    files = tracked(*FILES)
    assert len(files) > 500
    hits = {f: hit for f in files if (hit := found((ROOT / f).read_text("utf-8")))}
    assert hits == {}, "\n".join(f"{file}: {hit}" for file, hit in hits.items())


@pytest.mark.parametrize(
    "text",
    [
        "A user can mend this.",
        "# the same command goes on\n# where it stopped",
        '"it is"\n    f" no fastText model"',
        "files whose names say\nnothing",
    ],
)
def test_a_phrase_is_found_over_line_breaks(text: str) -> None:
    assert found(text)


def test_docstrings_of_modules_state_and_do_not_ask() -> None:
    assert [f for f in tracked("*.py") if asks((ROOT / f).read_text("utf-8"))] == []


def test_a_blank_stands_between_a_number_and_its_percent_sign() -> None:
    hits = {
        f"{file}:{number}": line.strip()
        for file in tracked("*.py", "*.md", "*.yaml", "*.html")
        if not file.startswith("tests/")  # names of files, shell and addresses
        for number, line in enumerate((ROOT / file).read_text("utf-8").splitlines(), 1)
        if PERCENT.search(line)
    }
    assert hits == {}, "write 12 %, in code llm_core.printing.percent"


@pytest.mark.parametrize("line", ["by 5% more", 'f"{share:.1%}"', "(20.0%)"])
def test_a_percent_sign_that_touches_its_number_is_found(line: str) -> None:
    assert PERCENT.search(line) and not PERCENT.search("5 %, https://x/a%20b, 33.3%20")


@pytest.mark.parametrize("line", ["Which rows go?", "Is it sound? A walk.", "How rows are read."])
def test_a_question_is_found(line: str) -> None:
    assert asks(f'"""{line}"""') and not asks('"""Reads rows. Why, says the page."""')


def test_plain_sentences_pass() -> None:
    assert found("The run resumes. It is no longer needed. Parts are made once.") == []
