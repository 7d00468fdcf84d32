"""Measures the speed of the data stages on given documents, on one core and against other tools.

`python -m benchmarks.data.speed DOCS` or `make bench-data DOCS=path`; DOCS are files or a folder
that ingest reads, documents of two kilobytes or more on average if the figures are to be compared.
Everything runs in this one process without threads, and is told in CPU seconds, so that a busy
machine disturbs little:

* kernels: median of three passes over up to 64 MB of the text, after one over few documents that
  compiles and loads: `features_mb_s` (all measures, all rules), `minhash_mb_s` (shingles and 112
  min-hashes), `pii_mb_s` (all types of the default configuration, validated), `lid_docs_s`
  (language labels).
* `hostile_pii_mb_s`: the search for personal data in 16 MB of each text that is made to be slow
  (`benchmarks.data.hostile`).
* `dedup_docs_s`: candidates, exact verification and components of these documents, from
  signatures, as the kernels: to load the compiled code takes as long as a tenth of the work.
* `end_to_end_mb_s`: UTF-8 text of all documents over the CPU time of ingest, language, scores
  (one given classifier), quality, dedup, pii and documents, each from artifact to artifact on
  disk, with digests and accounting, as a run does them. What quality keeps is signed, compared and
  written, so rules that keep more text (`kept_mb`) take longer: `PRESETS=gopher,fineweb_code` takes
  other presets than the default, to compare with older code.

`PEERS="python script"` runs `python script FILE` with the same text as Parquet, between the passes
over the kernels, and adds the JSON lines that it prints. MB are 10^6 bytes of UTF-8 text. The last
line is one JSON object.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.data.hostile import hostile_mb_s
from benchmarks.data.signing import shingle_sets_of, sign
from benchmarks.data.stages import make_stages
from llm_core.config import ConfigError
from llm_core.printing import note, show
from tasks.contamination.config import ContaminationConfig
from tasks.corpus.documentset import read_table, text_buffers
from tasks.dedup.config import DedupConfig
from tasks.dedup.near_duplicates import Sketches, find_near_duplicates
from tasks.documents.config import DocumentsConfig
from tasks.ingest.sources import SourceConfig
from tasks.language.config import LanguageConfig
from tasks.language.stage import label_texts
from tasks.pii.config import PiiConfig
from tasks.quality.config import QualityConfig
from tasks.quality.measures import measure_features
from tasks.quality.rules import judge
from tasks.runtime.artifact import Artifact
from tasks.runtime.parts import serial
from tasks.runtime.stage import StageConfigs
from tasks.runtime.store import peak_memory_bytes
from tasks.scores.classifier import ClassifierConfig
from tasks.scores.config import ScoresConfig

KERNEL_BYTES = 64_000_000
HOSTILE_BYTES = 16_000_000
WARM_UP_DOCUMENTS = 200
PASSES = 3
PEER_SECONDS = 1800


def measure(
    docs: Path,
    work: Path,
    peers: Sequence[str] = (),
    hostile_bytes: int = HOSTILE_BYTES,
    presets: Sequence[str] = QualityConfig.presets,
) -> dict[str, Any]:
    """All figures of the module, by name. Raises ConfigError where DOCS is not there."""
    # First, as it has personal data of every type: what few documents leave uncompiled would count
    # as work of the stages.
    hostile = hostile_mb_s(hostile_bytes)
    warm_up = _sample(docs, work / "warm_up.parquet")
    classifier = _train_classifier(warm_up, work / "classifier.bin")
    for name, source in (("warm_up", warm_up), ("all", docs)):
        artifacts = _run_stages(source, work / name, classifier, presets)
    seconds = {name: float(artifact.record["cpu_s"]) for name, artifact in artifacts.items()}
    ingested = artifacts["ingest"]
    texts = _texts(ingested)
    held = pc.sum(pc.binary_length(texts)).as_py() / 1e6
    pq.write_table(pa.table({"text": texts}), work / "texts.parquet")
    kernels = _kernels(texts)
    for kernel in kernels.values():
        kernel(texts.slice(0, WARM_UP_DOCUMENTS))
    passes: dict[str, list[float]] = {name: [] for name in kernels}
    peer_lines: list[dict[str, Any]] = []
    for number in range(PASSES):
        for name, kernel in kernels.items():
            passes[name].append(_cpu_s(lambda kernel=kernel: kernel(texts)))  # type: ignore[misc]
        if peers and number == 0:
            peer_lines = _run_peers(peers, work / "texts.parquet")
    median = {name: statistics.median(of) for name, of in passes.items()}
    _decide_s(texts.slice(0, WARM_UP_DOCUMENTS))
    decided_s = statistics.median(_decide_s(texts) for _ in range(PASSES))
    all_mb = ingested.counters["bytes"] / 1e6
    documents = int(ingested.counters["kept"])
    return {
        "features_mb_s": round(held / median["features"], 1),
        "minhash_mb_s": round(held / median["minhash"], 1),
        "pii_mb_s": round(held / median["pii"], 1),
        "hostile_pii_mb_s": hostile,
        "lid_docs_s": round(len(texts) / median["lid"]),
        "dedup_docs_s": round(len(texts) / decided_s),
        "end_to_end_mb_s": round(all_mb / sum(seconds.values()), 2),
        "peak_rss_gib": round(peak_memory_bytes() / 2**30, 2),
        "docs": documents,
        "mb": round(all_mb, 1),
        "kept_mb": round(artifacts["documents"].counters["bytes"] / 1e6, 1),
        "mean_bytes": round(1e6 * all_mb / documents),
        "kernel_mb": round(held, 1),
        "spread": {
            name: round((max(of) - min(of)) / median[name], 3) for name, of in passes.items()
        },
        "stage_cpu_s": {name: round(value, 2) for name, value in seconds.items()},
        "peers": peer_lines,
        "machine": platform.processor() or platform.machine(),
    }


def _run_stages(
    source: Path, store_dir: Path, classifier: Path, presets: Sequence[str]
) -> dict[str, Artifact]:
    """The artifacts of all stages up to documents, made in this process."""
    given = ClassifierConfig(model_path=classifier, label="__label__good")
    configs: StageConfigs = {
        "ingest": SourceConfig(name="bench", paths=(str(source),)),
        "language": LanguageConfig(),
        "scores": ScoresConfig(classifiers={"good": given}),
        "quality": QualityConfig(presets=tuple(presets)),
        "dedup": DedupConfig(),
        "contamination": ContaminationConfig(),
        "pii": PiiConfig(),
        "documents": DocumentsConfig(),
    }
    return make_stages(("documents",), configs, store_dir, serial)


def _texts(ingested: Artifact) -> pa.Array:
    """Texts of the first documents, in all up to KERNEL_BYTES."""
    tables, held = [], 0
    for file in ingested.files("documents/part-*.parquet"):
        texts = read_table(file, ["text"])["text"].combine_chunks()
        ends = np.cumsum(pc.binary_length(texts).to_numpy(zero_copy_only=False))
        tables.append(texts.slice(0, int(np.searchsorted(ends, KERNEL_BYTES - held, "right"))))
        held += int(ends[-1])
        if held >= KERNEL_BYTES:
            break
    return pa.concat_arrays(tables)


def _kernels(texts: pa.Array) -> Mapping[str, Callable[[pa.Array], object]]:
    from tasks.pii.spans import find_all_spans

    book, language, pii = QualityConfig().rule_book(), LanguageConfig(), PiiConfig()
    model = language.input_files()["lid_model"]

    def features(some: pa.Array) -> object:
        none = np.full(len(some), None, object)
        return judge(book, measure_features(some), none, none)

    return {
        "features": features,
        "minhash": lambda some: sign(*text_buffers(some), DedupConfig()),
        "pii": lambda some: find_all_spans(*text_buffers(some), pii),
        "lid": lambda some: label_texts(some, model, language),
    }


def _decide_s(texts: pa.Array) -> float:
    """CPU seconds from signatures to verified survivors and families."""
    from tasks.dedup.signatures import choose_bands
    from tasks.kernels.dedup.banding import band_table
    from tasks.kernels.dedup.overlap import smallest_connected

    config = DedupConfig()
    buf, begins = text_buffers(texts)
    signatures = sign(buf, begins, config)
    bandings = choose_bands(config)

    def sets(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shingles, sizes = shingle_sets_of(buf, begins, rows, config)
        return shingles, np.concatenate([[0], np.cumsum(sizes)])

    def decide() -> None:
        bands = band_table(signatures, bandings)
        sketches = Sketches(
            len(texts), config.num_perms, bandings, bands.__getitem__, signatures.__getitem__, sets
        )
        near = find_near_duplicates(
            sketches, config.threshold, config.family_threshold, config.full_bucket_documents
        )
        smallest_connected(len(texts), near.a, near.b)

    return _cpu_s(decide)


def _sample(docs: Path, file: Path) -> Path:
    """A few documents of DOCS as Parquet, to compile and load everything on."""
    source = SourceConfig(name="warm_up", paths=(str(_first_file(docs)),))
    made = make_stages(("ingest",), {"ingest": source}, file.with_suffix(""), serial)["ingest"]
    documents = read_table(made.files("documents/part-*.parquet")[0], ["text"])
    pq.write_table(documents.slice(0, WARM_UP_DOCUMENTS), file)
    return file


def _first_file(docs: Path) -> Path:
    if docs.is_dir():
        files = sorted(
            (p for p in docs.rglob("*") if p.is_file()), key=lambda p: (p.stat().st_size, p)
        )
        if not files:
            raise ConfigError(f"DOCS ({docs}) holds no file; name a file or folder of documents")
        return files[0]
    return docs


def _train_classifier(documents: Path, file: Path) -> Path:
    """A fastText model of the usual size of features. Its labels mean nothing: what is timed is
    applying it."""
    import fasttext

    lines = file.with_suffix(".txt")
    with lines.open("w", encoding="utf-8") as out:
        for number, text in enumerate(pq.read_table(documents)["text"].to_pylist()):
            out.write(f"__label__{('good', 'other')[number % 2]} {' '.join(text.split())}\n")
    # Ten threads: with fewer, fastText leaves a part of its matrix to what the memory held before
    # (decision 0010).
    model = fasttext.train_supervised(
        str(lines), wordNgrams=2, dim=16, bucket=100_000, epoch=1, lr=0.02, thread=10, verbose=0
    )
    model.save_model(str(file))
    return file


def _run_peers(command: Sequence[str], file: Path) -> list[dict[str, Any]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, file], capture_output=True, text=True, env=environment, timeout=PEER_SECONDS
    )
    if done.returncode:
        raise ConfigError(
            f"PEERS ({shlex.join(command)}) ended with {done.returncode}:"
            f" {done.stderr.strip().splitlines()[-1:]}"
        )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _cpu_s(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not Path(arguments[0]).exists():
        note("textmill: name the documents: make bench-data DOCS=path")
        return 2
    with tempfile.TemporaryDirectory() as work:
        peers = shlex.split(os.environ.get("PEERS", ""))
        presets = os.environ.get("PRESETS", ",".join(QualityConfig.presets)).split(",")
        show(json.dumps(measure(Path(arguments[0]), Path(work), peers, presets=presets)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
