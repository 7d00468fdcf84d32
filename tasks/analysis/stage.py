"""Measures how much text there is, how good and how varied, before and after each data stage.

The same measures of every *state* of the data: `ingest` (all that was read), `quality` and `dedup`
(what they kept, texts as they were), `documents` (what is left in the end, texts as they are then).
Scale: documents, bytes, words (units of `tasks.kernels.text.chars`) and estimated tokens by source
and language. Quality: a histogram of each stored feature. Variety: `tasks.analysis.diversity`, over
sources, languages and registrable domains (Public Suffix List) of all documents, and over a sample
of units and documents. Samples are the documents with the smallest keyed hashes of their ids, cut
to the same number of units in every state, so that a state is compared with itself filtered and
never with a larger sample.

In: all data sidecars, the texts of the sample and of `documents`. Out: `scale.parquet` (state,
source, language, documents, bytes, words, tokens_estimated), `features.parquet` (state, language,
feature, low, high, documents), `domains.parquet` (state, domain, documents, bytes),
`growth.parquet` (state, units, types). Two passes, linear; memory of one part, the sample and a row
per label. Estimated tokens: 4/3 per word, one per letter of scripts without spaces; the tokenizer
counts the real ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.analysis.config import AnalysisConfig
from tasks.analysis.diversity import (
    cluster_law,
    concentration,
    mean_of_groups,
    ngram_entropies,
    type_growth,
    vendi_score,
)
from tasks.analysis.snapshots import NUM_PLACES, STATES, Sample, measure_part, sample_part
from tasks.corpus.documentset import document_parts, read_table, write_table
from tasks.corpus.tally import largest
from tasks.runtime.artifact import Artifact
from tasks.runtime.parts import PartResult, RunParts, parts_of_pass, serial

TABLES = {
    "scale": ("state", "source", "language"),
    "features": ("state", "language", "feature", "low", "high"),
    "domains": ("state", "domain"),
}
"""The columns that name a row; all others are summed over parts."""
AMOUNTS = ("documents", "bytes", "words", "tokens_estimated")
NUM_PERMS = 128
MIN_CHANGED_DOCUMENTS, NUM_CHANGED = 100, 3
"""Documents that a language must have kept for its changes to be shown, and how many are shown."""


def analyse(
    ingest: Artifact,
    language: Artifact,
    quality: Artifact,
    dedup: Artifact,
    documents: Artifact,
    out_dir: Path,
    config: AnalysisConfig,
    run_parts: RunParts = serial,
) -> Artifact:
    """Measure every state of the data.

    Deterministic for equal artifacts, whatever the number of workers.
    """
    parts = document_parts(ingest, language=language, quality=quality, dedup=dedup, final=documents)
    measured = run_parts(measure_part, parts_of_pass(parts, "measure", {}), config, out_dir)
    tables = {name: _merge(measured, name, keys) for name, keys in TABLES.items()}
    for name, table in tables.items():
        write_table(table, out_dir / f"{name}.parquet")
    places = sum(np.load(result.path / "places.npy") for result in measured)
    num_units, bounds = _sample_bounds(np.asarray(places), config.max_sample_units)
    sampling = parts_of_pass(parts, "sample", {"bounds": bounds})
    folders = [result.path for result in run_parts(sample_part, sampling, config, out_dir)]
    samples = {state: Sample.load(folders, state, num_units) for state in STATES}

    states = {state: _scale(tables, state) for state in STATES}
    growth = {state: type_growth(sample.units) for state, sample in samples.items()}
    vendi_documents, vendi = _vendi(samples, config)
    for state, sample in samples.items():
        entropies = ngram_entropies(sample.units, sample.begins)
        states[state] |= {
            "growth": {n: v for n, v in asdict(growth[state]).items() if n != "curve"},
            "entropy_bits": {f"{n}gram": bits for n, bits in enumerate(entropies, start=1)},
            "vendi": vendi[state],
            "sample_documents": len(sample.begins) - 1,
        }
    curves = [(state, n, types) for state in STATES for n, types in growth[state].curve]
    columns = zip(*curves, strict=True) if curves else ([], [], [])
    table = pa.table(dict(zip(("state", "units", "types"), map(list, columns), strict=True)))
    write_table(table, out_dir / "growth.parquet")

    histogram = dedup.metrics.get("cluster_size_histogram", {})
    law = cluster_law({int(size): int(n) for size, n in histogram.items()})
    read = sum(result.counters["read"] for result in measured)
    counters = {"read": read, "kept": read, "dropped": {}, "quarantined": 0}
    counters["sample_units"] = num_units
    metrics = {
        "states": states,
        "by_source": _by_label(tables["scale"], "source"),
        "by_language": _by_label(tables["scale"], "language"),
        "domains": _domains(tables["domains"]),
        "histograms": _histograms(tables["features"]),
        "changed_by_language": _changed_by_language(tables["features"]),
        "growth_curves": {state: list(map(list, growth[state].curve)) for state in STATES},
        "cluster_law": asdict(law) if law else None,
        "vendi_documents": vendi_documents,
    }
    return Artifact(out_dir, "analysis", counters, metrics)


def _merge(results: Sequence[PartResult], name: str, keys: Sequence[str]) -> pa.Table:
    """The tables of all parts as one, amounts of equal rows added up, in the order of the keys."""
    tables = [read_table(result.path / f"{name}.parquet") for result in results]
    grouped = pa.concat_tables(tables).combine_chunks().group_by(list(keys), use_threads=False)
    amounts = [column for column in tables[0].column_names if column not in keys]
    summed = grouped.aggregate([(amount, "sum") for amount in amounts])
    columns = summed.select([*keys, *(f"{amount}_sum" for amount in amounts)])
    ordered = columns.sort_by([(key, "ascending") for key in keys])
    return ordered.rename_columns([*keys, *amounts])


def _sample_bounds(places: np.ndarray, max_units: int) -> tuple[int, dict[str, int]]:
    """Units in every sample, and for each state the number of places (of NUM_PLACES, in order of
    hash) that hold as many.

    places: int64[states, NUM_PLACES], the units of the documents whose hash falls there.
    """
    assert places.shape == (len(STATES), NUM_PLACES)
    so_far = places.cumsum(axis=1)
    num_units = int(min(max_units, so_far[:, -1].min()))
    return num_units, {
        state: int(np.searchsorted(so_far[i], num_units)) + 1 for i, state in enumerate(STATES)
    }


def _rows(table: pa.Table, state: str) -> list[dict[str, Any]]:
    return table.filter(pc.equal(table["state"], state)).to_pylist()  # type: ignore[no-any-return]


def _scale(tables: Mapping[str, pa.Table], state: str) -> dict[str, Any]:
    """Totals of one state, and how they fall on sources, languages and domains."""
    rows, domains = _rows(tables["scale"], state), _rows(tables["domains"], state)
    result: dict[str, Any] = {name: sum(row[name] for row in rows) for name in AMOUNTS}
    for axis in ("source", "language"):
        by_label: Counter[str] = Counter()
        for row in rows:
            by_label[row[axis]] += row["bytes"]
        result[f"{axis}s"] = asdict(concentration(by_label.values()))
    result["domains"] = asdict(concentration(row["documents"] for row in domains))
    return result


def _by_label(scale: pa.Table, axis: str) -> list[dict[str, Any]]:
    """Rows of a label and, for each state, its amounts; the largest labels by what was read."""
    tally: dict[str, dict[str, Any]] = {}
    for row in scale.to_pylist():
        entry = tally.setdefault(row[axis], {"bytes": 0})
        of_state = entry.setdefault(row["state"], dict.fromkeys(AMOUNTS, 0))
        for name in AMOUNTS:
            of_state[name] += row[name]
        entry["bytes"] += row["bytes"] if row["state"] == STATES[0] else 0
    return [
        {axis: label} | {state: entry[state] for state in STATES if state in entry}
        for label, entry in largest(tally).items()
    ]


def _domains(domains: pa.Table) -> list[dict[str, Any]]:
    """Rows of the largest domains of the last state."""
    amounts = ("documents", "bytes")
    tally = {row["domain"]: {n: row[n] for n in amounts} for row in _rows(domains, STATES[-1])}
    return [{"domain": label, **entry} for label, entry in largest(tally).items()]


def _histograms(features: pa.Table) -> dict[str, Any]:
    """{feature: {low, high, states: {state: documents}}} of the bins that any state uses."""
    found: dict[str, dict[tuple[float, float], dict[str, int]]] = {}
    for row in features.to_pylist():
        bins_of = found.setdefault(row["feature"], {}).setdefault((row["low"], row["high"]), {})
        bins_of[row["state"]] = bins_of.get(row["state"], 0) + row["documents"]
    return {
        feature: {
            "low": [low for low, _ in sorted(bins)],
            "high": [high for _, high in sorted(bins)],
            "states": {
                state: [bins[edges].get(state, 0) for edges in sorted(bins)] for state in STATES
            },
        }
        for feature, bins in sorted(found.items())
    }


def _changed_by_language(features: pa.Table) -> dict[str, dict[str, float]]:
    """{language: {feature: share of its documents that would have to change their bin}}, between
    the first and the last state.

    Only the features that changed most, and languages with enough documents to rule out chance.
    """
    counts: dict[tuple[str, str], dict[str, Counter[float]]] = {}
    for row in features.to_pylist():
        of_state = counts.setdefault((row["language"], row["feature"]), defaultdict(Counter))
        of_state[row["state"]][row["low"]] += row["documents"]
    found: dict[str, dict[str, float]] = {}
    for (language, feature), of_state in counts.items():
        before, after = of_state[STATES[0]], of_state[STATES[-1]]
        read, kept = before.total(), after.total()
        if kept >= MIN_CHANGED_DOCUMENTS:
            moved = sum(abs(before[b] / read - after[b] / kept) for b in sorted({*before, *after}))
            # What leaves one bin comes into another, and is counted in both.
            found.setdefault(language, {})[feature] = moved / 2
    return {
        language: dict(sorted(moved.items(), key=lambda item: (-item[1], item[0]))[:NUM_CHANGED])
        for language, moved in sorted(found.items())
    }


def _vendi(
    samples: Mapping[str, Sample], config: AnalysisConfig
) -> tuple[int, dict[str, dict[str, float] | None]]:
    """Documents in a group, and the score of each state; None where a state has too few."""
    fewest = min(len(sample.begins) - 1 for sample in samples.values())
    size = min(config.vendi_documents, fewest // config.vendi_groups)
    if size < 2:
        return 0, dict.fromkeys(STATES)
    scores: dict[str, dict[str, float] | None] = {}
    for state, sample in samples.items():
        signatures = sample.signatures(size * config.vendi_groups, NUM_PERMS, config.seed)
        groups = np.split(signatures, config.vendi_groups)
        spread = mean_of_groups([vendi_score(group) for group in groups])
        scores[state] = asdict(spread) if spread else None
    return size, scores
