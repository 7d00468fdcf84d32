"""Reads evaluation suites: a folder with `suite.yaml`, which says what the records mean, and files
of records (`tasks.readers`).

A suite asks questions with choices, scored by the likelihood of each, or for a text that is
compared with references, or for the likelihood of one answer. `prompt` is a text in which
`{column}` stands for a column of a record; everything else is in the docstrings of `SuiteFile`.
Nothing of a suite is run.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from llm_core.config import ConfigError, build, check_bounds, nearest
from llm_core.printing import one_line
from tasks.evaluation.text_metrics import TEXT_METRICS
from tasks.readers import Record
from tasks.readers.textfiles import check_text_files, records_of_file
from tasks.runtime.artifact import digest_file

SUITE_FILE = "suite.yaml"
COLUMN = re.compile(r"\{(\w+)\}")
CHOICE_METRICS = ("acc", "acc_chars", "acc_bytes", "acc_tokens", "acc_unconditional")
LIKELIHOOD_METRICS = ("bits_per_byte", "greedy")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class SuiteColumns:
    """Which columns of a record mean what."""

    question: str = "question"
    """What is asked, with all the context; `contamination` looks for it."""
    answer: str = "answer"
    """Of choices: the number of the right one, from 0. Otherwise the reference, or a list of
    references."""
    choices: str = "choices"
    """The list of choices."""
    stems: str | None = None
    """A list of texts, one for each choice, that stand between prompt and choice and are not
    scored. Null: none."""
    id: str = "id"
    """The name of an item, unique in the suite."""
    cluster: str | None = None
    """What items may share, such as a passage. Null: items are independent."""


@dataclass(frozen=True)
class SuiteFile:
    """What `suite.yaml` says."""

    version: int
    licence: str
    file: str
    """Records, in the folder of the suite."""
    sha256: str
    """Of that file."""
    kind: Literal["choices", "generation", "likelihood"]
    """choices: the most likely one is the answer. generation: a text is written and compared.
    likelihood: how likely the answer is."""
    headline: str = ""
    """The metric that stands for the suite. Empty: acc, or the first of `metrics`."""
    metrics: tuple[str, ...] = ("exact_match",)
    """Metrics of generated texts; the first is the headline unless one is named."""
    language: str = "en"
    """Of the answers; it decides how BLEU splits them."""
    columns: SuiteColumns = field(default_factory=SuiteColumns)
    prompt: str = "{question}"
    """What a model is given, with columns in braces."""
    form: Literal["cloze", "letters"] = "cloze"
    """cloze: the likelihood of each choice's text. letters: choices are listed, and the likelihood
    of each letter counts."""
    delimiter: str = " "
    """Between a prompt and its answer."""
    unconditional: str = "Answer:"
    """What stands before a choice in place of the question, for its unconditional score."""
    shots: int = 0
    """Solved items before each question."""
    shots_file: str | None = None
    """Records that shots are drawn from. Null: the suite's own, never the item itself."""
    brought_by: str | None = None
    """The command that brings the files where they are missing, for the error."""
    separator: str = "\n\n"
    """Between shots."""
    max_new_tokens: int = 64
    """Most tokens of a generated answer."""
    stop: tuple[str, ...] = ("\n",)
    """Texts that end a generated answer and are not part of it."""

    def __post_init__(self) -> None:
        check_bounds(self, version=(1, None), shots=(0, None), max_new_tokens=(1, None))
        unknown = [name for name in self.metrics if name not in TEXT_METRICS]
        if self.kind == "generation" and (unknown or not self.metrics):
            hint = nearest(unknown[0] if unknown else "", list(TEXT_METRICS))
            raise ConfigError(f"metrics ({', '.join(unknown)}) are not known; {hint}")
        if self.headline and self.headline not in self.asked:
            hint = nearest(self.headline, list(self.asked))
            raise ConfigError(f"headline ({self.headline}) is not measured; {hint}")

    @property
    def asked(self) -> tuple[str, ...]:
        """The metrics of the suite; those of choices are always the same."""
        if self.kind == "generation":
            return self.metrics
        return CHOICE_METRICS if self.kind == "choices" else LIKELIHOOD_METRICS


@dataclass(frozen=True)
class SuiteItem:
    """One question; `label` is the place of the right choice, `references` are right texts.
    `stems` are as many as choices, or none."""

    id: str
    cluster: str
    question: str
    choices: tuple[str, ...]
    label: int | None
    references: tuple[str, ...]
    stems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Suite:
    """A suite that has been read and checked. `digest` is that of all its files."""

    name: str
    file: SuiteFile
    items: tuple[SuiteItem, ...]
    shots: tuple[SuiteItem, ...]
    """What shots may be drawn from; the items themselves without a file of its own."""
    digest: str


def suite_folders(folders: tuple[Path, ...]) -> dict[str, Path]:
    """{suite: its folder} of folders that are suites or hold them. Raises ConfigError for others,
    and for two suites of one name."""
    found: dict[str, Path] = {}
    for folder in (Path(os.path.abspath(folder)) for folder in folders):
        inside = [folder] if (folder / SUITE_FILE).is_file() else []
        inside = inside or sorted(file.parent for file in folder.glob(f"*/{SUITE_FILE}"))
        if not inside:
            raise ConfigError(
                f"suites.folders ({folder}) has no {SUITE_FILE}, nor has a folder in it; relative"
                f" paths start at {Path.cwd()}"
            )
        for one in inside:
            if found.setdefault(one.name, one) != one:
                raise ConfigError(
                    f"suites.folders name two suites {one.name}: {found[one.name]} and {one};"
                    " rename one"
                )
    return found


def read_suite_file(folder: Path) -> SuiteFile:
    """Raises ConfigError, always of one line, for what is not a suite."""
    file = folder / SUITE_FILE
    try:
        values = yaml.safe_load(file.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not YAML: {one_line(error)}; fix the file") from error
    try:
        return build(SuiteFile, values)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def record_files(folder: Path, suite: SuiteFile) -> dict[str, Path]:
    """The files of a suite beside its YAML. Raises ConfigError for one that is not there."""
    names = [suite.file, *([suite.shots_file] if suite.shots_file else [])]
    files = {name: folder / name for name in names}
    for file in files.values():
        if suite.brought_by and not file.is_file():
            raise ConfigError(f"{file} is not there; `{suite.brought_by}` brings it")
        check_text_files(f"{folder / SUITE_FILE}: file", (file,))
    return files


def load_suite(name: str, folder: Path) -> Suite:
    """Read and check a suite. Raises ConfigError that names the file, the record and the rule."""
    file = read_suite_file(folder)
    paths = record_files(folder, file)
    found = hashlib.sha256(paths[file.file].read_bytes()).hexdigest()
    if found != file.sha256:
        raise ConfigError(
            f"{folder / SUITE_FILE}: sha256 of {file.file} is {found}, not {file.sha256}; restore"
            " the file, or name the new digest with another version"
        )
    items = _read_items(paths[file.file], file)
    shots = _read_items(paths[file.shots_file], file) if file.shots_file else items
    if len(shots) <= file.shots:
        raise ConfigError(
            f"{folder / SUITE_FILE}: shots ({file.shots}) need more than {len(shots)} items to be"
            " drawn from; lower shots"
        )
    digests = [digest_file(path) for path in (folder / SUITE_FILE, *paths.values())]
    return Suite(name, file, items, shots, hashlib.sha256("".join(digests).encode()).hexdigest())


def _read_items(path: Path, suite: SuiteFile) -> tuple[SuiteItem, ...]:
    items: list[SuiteItem] = []
    known: set[str] = set()
    for number, record in enumerate(records_of_file(path, suite.columns.question), start=1):
        where = f"{path} record {number}"
        if not isinstance(record, Record):
            raise ConfigError(f"{where} is unreadable: {record.error}; fix the file")
        item = _item(record.values, suite, where)
        if item.id in known:
            raise ConfigError(f"{where}: id ({item.id}) is that of an earlier record; rename one")
        known.add(item.id)
        items.append(item)
    if not items:
        raise ConfigError(f"{path} has no item; give a file with one record per item")
    return tuple(items)


def _item(values: Mapping[str, Any], suite: SuiteFile, where: str) -> SuiteItem:
    columns = suite.columns

    def column(name: str) -> Any:
        if name not in values:
            raise ConfigError(f"{where} has no column {name}; {nearest(name, list(values))}")
        return values[name]

    question = COLUMN.sub(lambda match: str(column(match[1])), suite.prompt)
    id, answer = str(column(columns.id)), column(columns.answer)
    cluster = str(column(columns.cluster)) if columns.cluster else id
    if suite.kind == "likelihood":
        if not _is_text(answer):
            raise ConfigError(f"{where}: {columns.answer} must be a text")
        return SuiteItem(id, cluster, question, (answer,), None, (answer,))
    if suite.kind == "generation":
        references = answer if isinstance(answer, list) else [answer]
        if not references or not all(isinstance(one, str) for one in references):
            raise ConfigError(f"{where}: {columns.answer} must be a text or a list of texts")
        return SuiteItem(id, cluster, question, (), None, tuple(references))
    choices = column(columns.choices)
    if not isinstance(choices, list) or len(choices) < 2 or not all(map(_is_text, choices)):
        raise ConfigError(f"{where}: {columns.choices} must be a list of two texts or more")
    # Not isinstance: True is an int, and not the number of a choice.
    if type(answer) is not int or not 0 <= answer < len(choices):
        raise ConfigError(
            f"{where}: {columns.answer} ({answer}) must be the number of a choice, from 0 to"
            f" {len(choices) - 1}"
        )
    if suite.form == "letters" and len(choices) > len(LETTERS):
        raise ConfigError(f"{where} has {len(choices)} choices, more than letters; use form: cloze")
    stems = column(columns.stems) if columns.stems else []
    if columns.stems and not (
        isinstance(stems, list) and len(stems) == len(choices) and all(map(_is_text, stems))
    ):
        raise ConfigError(f"{where}: {columns.stems} must be a list with a text for each choice")
    return SuiteItem(id, cluster, question, tuple(choices), answer, (), tuple(stems))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())
