"""Are the data stages right by a corpus whose truth is known?

`python -m tasks.benchmarks.truth CORPUS` or `make truth CORPUS=path`. CORPUS holds records in `jsonl/` with the columns of
`conf/source/sample.yaml`, and in `truth/` what is known of them: for dedup in the form of `tasks.benchmarks.dedup_truth`, for
personal data `pii.jsonl` ({"id", "spans": [[type, start, end], …]}, code points into the text), each perhaps with `.zst`.
Everything is read but pages of raw HTML, and quality drops nothing, so that each claim is about its own stage; settings are the
default ones. Work is done by a process per core in CORPUS_STORE, or in a temporary folder.

* dedup: see `tasks.benchmarks.dedup_truth`.
* `pii_email_recall`, `pii_ip_recall`: known spans that spans found cover wholly. The known ones follow from the structure of
  documents and are not complete, so they say nothing of precision.
* `lid_agreement_frac`: of documents whose declared language is among the model's, the share that we label so;
  `lid176_agreement_frac`: the share that the model alone, on the same prefix, labels so.

Shares come with counts and 95 % intervals (Wilson 1927). The last line is one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from llm_core.fingerprint import num_processors
from tasks.artifact import Artifact
from tasks.benchmarks.dedup_truth import check_dedup, records, share
from tasks.benchmarks.stages import make_stages
from tasks.contamination import ContaminationConfig
from tasks.dedup_config import DedupConfig
from tasks.documentset import read_table
from tasks.language import LanguageConfig
from tasks.language_labels import LID176_LABELS
from tasks.parts import PartRunner, process_executor
from tasks.pii import PiiConfig
from tasks.quality import QualityConfig
from tasks.scores import ScoresConfig
from tasks.sources import SourceConfig

PII_TYPES = {"email": "EMAIL", "ip": "IP"}


def check(corpus: Path, store: Path) -> dict[str, Any]:
    """All claims of the module, by name. Raises ArtifactMismatch where the truth speaks of no document here."""
    columns = {"language_column": "lang", "source_column": "source", "exclude": {"kind": ("raw_html",)}}
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
        | check_pii(ingest, made["pii"], corpus / "truth" / "pii.jsonl")
        | check_languages(ingest, made["language"])
        | {"documents": ingest.counters["kept"], "bytes": ingest.counters["bytes"]}
    )


def check_pii(ingest: Artifact, pii: Artifact, truth: Path) -> dict[str, Any]:
    """Recall of known spans by type. `moved`: spans of documents that ingest repaired, whose places are not known any more."""
    known = {record["id"]: record["spans"] for record in records(truth)}
    covered, trials, moved = dict.fromkeys(PII_TYPES, 0), dict.fromkeys(PII_TYPES, 0), 0
    for file in ingest.files("documents/part-*.parquet"):
        documents = read_table(file, ["source_id", "text"])
        spans = read_table(pii.file(file.name), ["spans"])["spans"]
        for row, (name, text) in enumerate(zip(documents["source_id"].to_pylist(), documents["text"].to_pylist(), strict=True)):
            wanted = [span for span in known.get(name, ()) if span[0] in PII_TYPES]
            if not wanted:
                continue
            found = covered_bytes([(s["start"], s["end"]) for s in spans[row].as_py()], len(text.encode()))
            places = code_point_offsets(text)
            for kind, start, end in wanted:
                if end >= len(places) or not _looks_like(kind, text[start:end]):
                    moved += 1
                    continue
                trials[kind] += 1
                covered[kind] += bool(found[places[start] : places[end]].all())
    shares: dict[str, Any] = {"pii_moved": moved}
    for kind in PII_TYPES:
        one = share("recall", covered[kind], trials[kind])
        shares |= {f"pii_{kind}_recall": one["recall_frac"]} | {
            f"pii_{kind}_{n}": one[f"recall_{n}"] for n in ("count", "interval")
        }
    return shares


def check_languages(ingest: Artifact, language: Artifact) -> dict[str, Any]:
    """Agreement with declared languages, ours and the model's own."""
    import fasttext

    config = LanguageConfig()
    model = fasttext.load_model(str(config.input_files()["lid_model"]))
    ours = own = trials = 0
    for file in ingest.files("documents/part-*.parquet"):
        documents = read_table(file, ["language", "text"])
        given = read_table(language.file(file.name), ["language"])["language"].to_pylist()
        declared = [str(label or "").partition("-")[0] for label in documents["language"].to_pylist()]
        rows = [row for row, label in enumerate(declared) if label in LID176_LABELS]
        texts = [" ".join(str(documents["text"][row])[: config.prefix_chars].splitlines()) for row in rows]
        # The form with a list: that with one text fails with NumPy 2.
        plain = [labels[0].removeprefix("__label__") for labels in model.predict(texts)[0]] if texts else []
        trials += len(rows)
        ours += sum(given[row] == declared[row] for row in rows)
        own += sum(label == declared[row] for label, row in zip(plain, rows, strict=True))
    return share("lid_agreement", ours, trials) | share("lid176_agreement", own, trials)


def covered_bytes(spans: list[tuple[int, int]], num_bytes: int) -> np.ndarray:
    """bool per byte: does a span cover it."""
    covered = np.zeros(num_bytes, bool)
    for start, end in spans:
        covered[start:end] = True
    return covered


def code_point_offsets(text: str) -> np.ndarray:
    """Byte offset of each code point, and of the end: one more than code points."""
    sizes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    lengths = 1 + (sizes > 0x7F).astype(np.int64) + (sizes > 0x7FF) + (sizes > 0xFFFF)
    return np.concatenate([[0], np.cumsum(lengths)])


def _looks_like(kind: str, value: str) -> bool:
    return "@" in value if kind == "email" else "." in value or ":" in value


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not (Path(arguments[0]) / "truth").is_dir():
        print("textmill: name a corpus with jsonl/ and truth/: make truth CORPUS=path", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        store = Path(os.environ.get("CORPUS_STORE") or temporary)
        print(json.dumps(check(Path(arguments[0]), store)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
