"""A store with one run on record, and questions to ask of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.quality.c4_lines import LineCutsConfig
from tasks.quality.config import QualityConfig
from tasks.quality.limits import Limit, RuleOverlay
from tasks.runtime.artifact import Artifact

TEXTS = {
    "good": "The people of the town have a river to be with, and that is "
    + " ".join(f"word{i}" for i in range(60))
    + ".",
    "copy": "The people of the town have a river to be with, and that was "
    + " ".join(f"word{i}" for i in range(60))
    + ".",
    "short": "Too few words of\x1b[31m text here.",
    "emptied": "All of this that the people have to be with is cut "
    + " ".join(f"cut{i}" for i in range(50))
    + ".",
    "unmixed": "Das hier ist the text of another language that we have "
    + " ".join(f"wort{i}" for i in range(99))
    + ".",
    "again": "The people of the town had all that is to be read with a run "
    + " ".join(f"again{i}" for i in range(50))
    + ".",
    "headed": "A heading\n\nThe people of the town have all that is to be read "
    + " ".join(f"fin{i}" for i in range(60))
    + ".",
    "unended": "The line of this has no end that C4 is to take for one "
    + " ".join(f"bout{i}" for i in range(60))
    + "”",
    "other": "And one more document that is to be read with the rest "
    + " ".join(f"more{i}" for i in range(45))
    + ".",
}
RULES = QualityConfig(
    presets=("gopher", "fineweb_code"),
    limits={"num_lines": Limit(max_by_language={"de": 0.5}, drops=False)},
    by_language={
        "zh": RuleOverlay(limits={"num_lines": Limit(max=9.0, max_by_language={"en": 0.25})})
    },
    by_kind={"mail": RuleOverlay(limits={"num_words": Limit(max=9.0, drops=False)})},
    line_cuts=LineCutsConfig("c4_paper", ("fr",)),
)
Ask = Callable[..., dict[str, Any]]


def publishable(artifact: Artifact, work: Path) -> Artifact:
    work.mkdir(parents=True)
    return dataclasses.replace(artifact, path=artifact.path.rename(work / "out"))
