"""Names the scores that documents get: the settings of `tasks.scores.stage`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from llm_core.config import ConfigError
from tasks.corpus.score_cuts import Best
from tasks.readers.textfiles import check_text_files
from tasks.scores.classifier import ClassifierConfig
from tasks.scores.perplexity import PerplexityConfig

RESERVED = ("id", "kept", "verdict", "masks", "language")


@dataclass(frozen=True)
class ScoresConfig:
    """Which scores documents get, by name of their column."""

    classifiers: dict[str, ClassifierConfig] = field(default_factory=dict)
    """Classifiers by the name of their column: probabilities of being a positive."""
    perplexities: dict[str, PerplexityConfig] = field(default_factory=dict)
    """Perplexities under models of good text, by the name of their column; lower is better."""
    register_key: str | None = "kind"
    """Metadata key whose value names a document's register, for the tables of what a cut would
    keep. Null: no register."""

    def __post_init__(self) -> None:
        for name in self.names:
            if not re.fullmatch("[a-z][a-z0-9_]*", name) or name in RESERVED:
                raise ConfigError(
                    f"score name ({name}) must begin with a lower-case letter, hold only such"
                    f" letters, digits and _, and not be one of {', '.join(RESERVED)}"
                )
        if twice := set(self.classifiers) & set(self.perplexities):
            raise ConfigError(
                f"score name ({min(twice)}) is a classifier and a perplexity; give each score a"
                " name of its own"
            )

    @property
    def names(self) -> tuple[str, ...]:
        return (*sorted(self.classifiers), *sorted(self.perplexities))

    def best(self, name: str) -> Best:
        return self.classifiers[name].best if name in self.classifiers else "low"

    def input_files(self) -> dict[str, Path]:
        """{what it is for: file}: given models and files to learn from. Raises ConfigError for a
        missing one."""
        found: dict[str, Path] = {}
        for name, classifier in self.classifiers.items():
            where = f"scores.classifiers.{name}"
            for what in ("positive_files", "negative_files"):
                files = getattr(classifier, what)
                check_text_files(f"{where}.{what}", files)
                found |= {f"{name}/{what}/{i}": file for i, file in enumerate(files)}
            if classifier.model_path is not None:
                _check_file(f"{where}.model_path", classifier.model_path)
                found[f"{name}/model"] = classifier.model_path
        for name, perplexity in self.perplexities.items():
            where, files = f"scores.perplexities.{name}", perplexity.reference_files
            check_text_files(f"{where}.reference_files", files)
            found |= {f"{name}/reference_files/{i}": file for i, file in enumerate(files)}
            for language, file in perplexity.kenlm_models.items():
                _check_file(f"{where}.kenlm_models.{language}", file)
                found[f"{name}/kenlm/{language}"] = file
        return found


def _check_file(name: str, path: Path) -> None:
    if not path.is_file():
        raise ConfigError(f"{name} ({path}) is not a file; relative paths start at {Path.cwd()}")
