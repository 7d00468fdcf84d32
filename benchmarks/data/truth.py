"""Checks the data stages against a corpus whose truth is known.

`python -m benchmarks.data.truth CORPUS` or `make truth CORPUS=path`. CORPUS holds records in
`jsonl/` with the columns of `conf/source/sample.yaml`, and in `truth/` what is known of them, in
the form of `benchmarks.data.dedup_truth` and `benchmarks.data.pii_truth`. Everything is read but
pages of raw HTML, and quality drops nothing, so that each claim is about its own stage; settings
are the default ones. Work is done by a process per core in CORPUS_STORE, or in a temporary folder.

* dedup and personal data: see those two modules. Precision is of the labels in the embedded corpus.
* `lid_agreement_frac`: of documents whose declared language is among the model's, the share that
  we label so; `lid176_agreement_frac`: the share that the model alone, on the same prefix, labels
  so.

Shares come with counts and 95 % intervals (Wilson 1927). The last line is one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.data.dedup_truth import check_dedup
from benchmarks.data.pii_truth import SAMPLE, labelled_precision, pii_recall
from benchmarks.data.shares import share
from benchmarks.data.stages import make_stages
from llm_core.fingerprint import num_processors
from llm_core.printing import note, show
from tasks.contamination.config import ContaminationConfig
from tasks.corpus.documentset import read_table
from tasks.corpus.language_labels import LID176_LABELS
from tasks.dedup.config import DedupConfig
from tasks.fasttext.files import load_fasttext
from tasks.ingest.sources import SourceConfig
from tasks.language.config import LanguageConfig
from tasks.pii.config import PiiConfig
from tasks.quality.config import QualityConfig
from tasks.runtime.artifact import Artifact
from tasks.runtime.parts import PartRunner, process_executor
from tasks.scores.config import ScoresConfig


def check(corpus: Path, store: Path) -> dict[str, Any]:
    """All claims of the module, by name. Raises ArtifactMismatch where the truth speaks of no
    document here."""
    columns = {
        "language_column": "lang",
        "source_column": "source",
        "exclude": {"kind": ("raw_html",)},
    }
    configs = {
        "ingest": SourceConfig(name="truth", paths=(str(corpus / "jsonl"),), **columns),  # type: ignore[arg-type]
        "language": LanguageConfig(),
        "scores": ScoresConfig(),
        "quality": QualityConfig(presets=(), record=()),
        "dedup": DedupConfig(),
        "contamination": ContaminationConfig(),
        "pii": PiiConfig(),
    }
    runner = PartRunner(make_executor=process_executor(num_processors()))
    made = make_stages(("dedup", "pii"), configs, store, runner)
    ingest = made["ingest"]
    return (
        check_dedup(ingest, made["dedup"], corpus / "truth")
        | pii_recall(made["pii"], ingest, corpus / "truth")
        | labelled_precision(SAMPLE)
        | check_languages(ingest, made["language"])
        | {"documents": ingest.counters["kept"], "bytes": ingest.counters["bytes"]}
    )


def check_languages(ingest: Artifact, language: Artifact) -> dict[str, Any]:
    """Agreement with declared languages, ours and the model's own."""
    config = LanguageConfig()
    model = load_fasttext(config.input_files()["lid_model"])
    ours = own = trials = 0
    for file in ingest.files("documents/part-*.parquet"):
        documents = read_table(file, ["language", "text"])
        given = read_table(language.file(file.name), ["language"])["language"].to_pylist()
        declared = [
            str(label or "").partition("-")[0] for label in documents["language"].to_pylist()
        ]
        rows = [row for row, label in enumerate(declared) if label in LID176_LABELS]
        texts = [
            " ".join(str(documents["text"][row])[: config.prefix_chars].splitlines())
            for row in rows
        ]
        # The form with a list: that with one text fails with NumPy 2.
        plain = (
            [labels[0].removeprefix("__label__") for labels in model.predict(texts)[0]]
            if texts
            else []
        )
        trials += len(rows)
        ours += sum(given[row] == declared[row] for row in rows)
        own += sum(label == declared[row] for label, row in zip(plain, rows, strict=True))
    return share("lid_agreement", ours, trials) | share("lid176_agreement", own, trials)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not (Path(arguments[0]) / "truth").is_dir():
        note("textmill: name a corpus with jsonl/ and truth/: make truth CORPUS=path")
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        store = Path(os.environ.get("CORPUS_STORE") or temporary)
        show(json.dumps(check(Path(arguments[0]), store)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
