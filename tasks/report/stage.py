"""Writes one page about a run.

`report.html` is a single file that opens from disk: headline numbers, where documents went and why,
duplicates, personal data, tokenizer, training and its plan, evaluation with intervals, decode
speed, samples, a model card, and the lineage of every artifact. It draws what the stages measured
and computes nothing from texts; a value that is missing reads `not measured`. Charts are inline SVG
with values to point at; there is no script and no request, and every text from the data is escaped.
Reads counters, metrics and records of all stages. Costs less than a second, and the comparison with
a run before (`ComparedReportConfig`) as much as `tasks.analysis.changes` does. Equal artifacts give
equal bytes. Leaves out comparing other runs, which is the tracker's job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tasks.analysis.changes import compare_nights
from tasks.report.changes_page import changes_sections
from tasks.report.config import ComparedReportConfig, ReportConfig
from tasks.report.markup import visible
from tasks.report.overview import render
from tasks.report.page import Section
from tasks.report.run import Run
from tasks.runtime.artifact import Artifact, load_artifact
from tasks.runtime.parts import serial

REPORT_FILE = "report.html"


def write_report(
    ingest: Artifact,
    language: Artifact,
    scores: Artifact,
    quality: Artifact,
    dedup: Artifact,
    pii: Artifact,
    contamination: Artifact,
    documents: Artifact,
    analysis: Artifact,
    tokenizer: Artifact,
    shards: Artifact,
    train: Artifact,
    evaluate: Artifact,
    bench: Artifact,
    out_dir: Path,
    config: ReportConfig,
    run_parts: Any = serial,
) -> Artifact:
    """Write the page of a run. Every stage's artifact goes in, nothing but `report.html` comes out.

    Metrics of the result: the headline numbers, and the warnings the page begins with.
    Deterministic for equal artifacts; `run_parts` is not used, there is nothing to divide.
    """
    judges = (ingest, language, scores, quality, dedup, pii, contamination)
    artifacts = (*judges, documents, analysis, tokenizer, shards, train, evaluate, bench)
    run = Run({artifact.stage: artifact for artifact in artifacts})
    compared = _compared(run, config) if isinstance(config, ComparedReportConfig) else ()
    html = render(run, config.title, compared)
    # Lone surrogates were made visible by the markup; what is left is valid UTF-8 by construction.
    (out_dir / REPORT_FILE).write_text(html, encoding="utf-8", newline="\n")
    headline = {name: value for name, value in run.headline().items() if value is not None}
    metrics = {"headline": headline, "warnings": [visible(warning) for warning in run.warnings]}
    return Artifact(
        out_dir, "report", {"warnings": len(run.warnings), "bytes": len(html.encode())}, metrics
    )


def _compared(run: Run, config: ComparedReportConfig) -> Sequence[Section]:
    """What changed since the run before; nothing where its artifacts were removed meanwhile."""
    store = run.artifacts["ingest"].place.parents[1]
    found = {stage: load_artifact(store / stage / key) for stage, key in config.before.items()}
    before = {stage: artifact for stage, artifact in found.items() if artifact is not None}
    if len(before) < len(found):
        return ()
    changes = compare_nights(run.artifacts, before, config.drift)
    return changes_sections(changes, asdict(config.drift))
