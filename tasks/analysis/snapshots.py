"""Measures one part of the corpus in each of its states: amounts, spread, share of the samples.

The part half of `tasks.analysis.stage`. `measure_part` reads sidecars, and texts only of what is
left in the end; `sample_part` reads the texts of the documents that are sampled and leaves their
hashed units, case folded. A document's place is the first 16 bits of a keyed hash of its id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from llm_core.data.order import hash_ids
from tasks.analysis.config import AnalysisConfig
from tasks.corpus.documentset import (
    check_aligned,
    id_matrix,
    one_chunk,
    read_table,
    text_buffers,
    write_table,
)
from tasks.runtime.parts import Part

STATES = ("ingest", "quality", "dedup", "documents")
PLACE_BITS = 16
NUM_PLACES = 1 << PLACE_BITS
NO_DOMAIN = "(none)"
NOT_FEATURES = ("id", "num_bytes", "verdict", "drops", "kept", "masks")
TOKENS_PER_WORD = 4 / 3
BINS_OF_FRACTIONS = 20
NO_BIN = -(1 << 20)
NO_TEXTS = pa.chunked_array([], pa.large_string())


_LABELS = [(name, pa.string()) for name in ("state", "language", "feature")]
_EDGES = [("low", pa.float64()), ("high", pa.float64())]
HISTOGRAM_SCHEMA = pa.schema([*_LABELS, *_EDGES, ("documents", pa.int64())])


@dataclass(frozen=True)
class Snapshot:
    """The documents of a part: who is there in which state, and what is known of each."""

    rows: Mapping[str, np.ndarray]
    """{state: places in the part}; those of the last state are in the order of its file."""
    hashes: np.ndarray
    documents: pa.Table
    languages: pa.ChunkedArray
    quality: pa.Table

    @property
    def places(self) -> np.ndarray:
        """int64: the leading bits of the hashes."""
        return (self.hashes >> np.uint64(64 - PLACE_BITS)).astype(np.int64)


def read_snapshot(part: Part, seed: int) -> Snapshot:
    documents = read_table(part.payload["documents"], ["id", "source", "url"])
    language = read_table(part.payload["language"], ["id", "language"])
    quality = read_table(part.payload["quality"])
    dedup = read_table(part.payload["dedup"], ["id", "kept"])
    final = read_table(part.payload["final"], ["id"])
    for name, table in (("language", language), ("quality", quality), ("dedup", dedup)):
        check_aligned(documents, table, name)
    passed = quality["kept"].to_numpy()
    places = pc.index_in(final["id"], value_set=documents["id"].combine_chunks())
    rows = {
        "ingest": np.arange(documents.num_rows),
        "quality": np.flatnonzero(passed),
        "dedup": np.flatnonzero(passed & dedup["kept"].to_numpy()),
        "documents": places.to_numpy().astype(np.int64),
    }
    hashes = hash_ids(id_matrix(documents["id"]), seed)
    return Snapshot(rows, hashes, documents, language["language"], quality)


def measure_part(part: Part, directory: Path, config: AnalysisConfig) -> dict[str, Any]:
    """Tables of one part, each with a row per state and label."""
    snapshot = read_snapshot(part, config.seed)
    quality = snapshot.quality
    words = {state: quality["num_words"].to_numpy()[rows] for state, rows in snapshot.rows.items()}
    sizes = {state: quality["num_bytes"].to_numpy()[rows] for state, rows in snapshot.rows.items()}
    # The last state has texts of its own, which edits have changed since they were judged.
    texts = read_table(part.payload["final"], ["text"])["text"]
    sizes["documents"] = pc.binary_length(texts).to_numpy().astype(np.int64)
    words["documents"] = np.diff(hashed_units(texts, np.arange(len(texts)))[1])
    unsegmented = quality["unsegmented_frac"].to_numpy()
    domains = pa.array(registrable_domains(snapshot.documents["url"]), pa.string())
    languages = np.array(snapshot.languages.to_pylist(), object)
    scale, by_domain, features, places = [], [], [], np.zeros((len(STATES), NUM_PLACES), np.int64)
    for i, (state, rows) in enumerate(snapshot.rows.items()):
        taken = pa.array(rows)
        letters = words[state] * unsegmented[rows]
        tokens = np.round((words[state] - letters) * TOKENS_PER_WORD + letters).astype(np.int64)
        amounts = {
            "documents": np.ones(len(rows), np.int64),
            "bytes": sizes[state],
            "words": words[state],
            "tokens_estimated": tokens,
        }
        labels = {
            "source": snapshot.documents["source"].take(taken),
            "language": snapshot.languages.take(taken),
        }
        scale.append(_summed(state, labels, amounts))
        counted = {name: amounts[name] for name in ("documents", "bytes")}
        by_domain.append(_summed(state, {"domain": domains.take(taken)}, counted))
        features.append(_histograms(state, quality, rows, languages))
        # Sums of whole numbers below 2^53 are exact in float64.
        places[i] = np.bincount(snapshot.places[rows], words[state], NUM_PLACES).astype(np.int64)
    for name, tables in (("scale", scale), ("domains", by_domain), ("features", features)):
        write_table(pa.concat_tables(tables), directory / f"{name}.parquet")
    np.save(directory / "places.npy", places)
    return {"read": snapshot.documents.num_rows}


def sample_part(part: Part, directory: Path, config: AnalysisConfig) -> dict[str, Any]:
    """The hashed units of the sampled documents of each state."""
    snapshot = read_snapshot(part, config.seed)
    places = snapshot.places
    # Texts are read where a state has a sampled document here.
    texts: dict[str, pa.ChunkedArray] = {}
    for state, rows in snapshot.rows.items():
        chosen = np.flatnonzero(places[rows] < part.payload["bounds"][state])
        taken = rows[chosen]
        kind, text_rows = ("final", chosen) if state == STATES[-1] else ("documents", taken)
        if len(chosen) and kind not in texts:
            texts[kind] = read_table(part.payload[kind], ["text"])["text"]
        units, begins = hashed_units(texts.get(kind, NO_TEXTS), text_rows)
        table = {
            "hash": pa.array(snapshot.hashes[taken]),
            "id": snapshot.documents["id"].take(pa.array(taken)),
            "units": pa.LargeListArray.from_arrays(pa.array(begins), pa.array(units)),
        }
        # Hashes neither repeat nor compress.
        file = directory / f"{state}.parquet"
        pq.write_table(pa.table(table), file, compression="none", use_dictionary=False)
    return {}


@dataclass(frozen=True)
class Sample:
    """Documents of one state in order of hash, as hashed units; the last one may be cut."""

    units: np.ndarray
    begins: np.ndarray

    @classmethod
    def load(cls, directories: Sequence[Path], state: str, num_units: int) -> Sample:
        tables = [read_table(directory / f"{state}.parquet") for directory in directories]
        order = [("hash", "ascending"), ("id", "ascending")]
        lists = one_chunk(pa.concat_tables(tables).sort_by(order)["units"])
        begins = lists.offsets.to_numpy() - (lists.offsets[0].as_py() if len(lists) else 0)
        units = lists.flatten().to_numpy()[:num_units]
        num_documents = int(np.searchsorted(begins, num_units)) if num_units else 0
        return cls(units, np.minimum(begins[: num_documents + 1], num_units).astype(np.int64))

    def signatures(self, num_documents: int, num_perms: int, seed: int) -> np.ndarray:
        """Min-hashes of the units of the first documents: uint32[num_documents, num_perms]."""
        from tasks.kernels.dedup.minhash import EMPTY, make_permutations, update_signature

        multipliers, increments = make_permutations(num_perms, seed % 2**32)
        signatures = np.full((num_documents, num_perms), EMPTY, np.uint32)
        for row, (begin, end) in enumerate(pairwise(self.begins[: num_documents + 1])):
            update_signature(self.units[begin:end], multipliers, increments, signatures[row])
        return signatures


def hashed_units(texts: pa.ChunkedArray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of the folded units of some texts, and where each text begins among them."""
    from tasks.kernels.dedup.shingles import make_scratch, unit_hashes
    from tasks.kernels.text.chars import char_classes, fold_table

    values, offsets = text_buffers(texts)
    scratch, classes, folds = make_scratch(offsets), char_classes(), fold_table()
    pieces, begins = [np.zeros(0, np.uint64)], [0]
    for row in rows.tolist():
        count = unit_hashes(values, offsets[row], offsets[row + 1], classes, folds, scratch)
        pieces.append(scratch[:count].copy())
        begins.append(begins[-1] + count)
    return np.concatenate(pieces), np.array(begins, np.int64)


def registrable_domains(urls: pa.ChunkedArray) -> list[str]:
    """The domain under a public suffix of each URL; else the host, and `(none)` without one."""
    from publicsuffixlist import PublicSuffixList

    suffixes = PublicSuffixList()
    encoded = urls.combine_chunks().dictionary_encode()
    known: dict[str, str] = {}

    def domain(url: str | None) -> str:
        try:
            host = (urlsplit(url or "").hostname or "").rstrip(".")
        except ValueError:  # no URL, such as http://[half
            host = ""
        if host not in known:
            is_address = host.replace(".", "").isdigit()
            own = suffixes.privatesuffix(host) if host and not is_address else host
            known[host] = own or host or NO_DOMAIN
        return known[host]

    names = [domain(url) for url in encoded.dictionary.to_pylist()]
    return [NO_DOMAIN if index is None else names[index] for index in encoded.indices.to_pylist()]


def _summed(state: str, labels: Mapping[str, Any], amounts: Mapping[str, np.ndarray]) -> pa.Table:
    columns = {name: pa.array(values, pa.int64()) for name, values in amounts.items()}
    grouped = pa.table({**labels, **columns}).group_by(list(labels), use_threads=False)
    summed = grouped.aggregate([(name, "sum") for name in amounts])
    states = {"state": pa.array([state] * summed.num_rows, pa.string())}
    return pa.table(
        states | {n: summed[n] for n in labels} | {n: summed[f"{n}_sum"] for n in amounts}
    )


def _histograms(state: str, quality: pa.Table, rows: np.ndarray, languages: np.ndarray) -> pa.Table:
    """Documents by language and bin of each feature; empty bins are left out."""
    found: list[tuple[Any, ...]] = []
    own = languages[rows]
    groups = {str(label): rows[own == label] for label in sorted(set(own.tolist()))}
    for field in quality.schema:
        is_count = pa.types.is_integer(field.type)
        if field.name in NOT_FEATURES or not (is_count or pa.types.is_floating(field.type)):
            continue
        values = quality[field.name].to_numpy().astype(np.float64)
        edges = _count_edges if is_count else _ratio_edges
        if field.name.endswith("_frac"):
            edges = _fraction_edges
        for language, places in groups.items():
            mine = values[places]
            for (low, high), count in edges(mine[np.isfinite(mine)]).items():
                found.append((state, language, field.name, low, high, count))
    columns = zip(*found, strict=True) if found else [()] * len(HISTOGRAM_SCHEMA)
    return pa.table([list(column) for column in columns], schema=HISTOGRAM_SCHEMA)


Bins = dict[tuple[float, float], int]


def _counted(bins: np.ndarray, edges: Callable[[int], tuple[float, float]]) -> Bins:
    found, counts = np.unique(bins, return_counts=True)
    return {edges(b): n for b, n in zip(found.tolist(), counts.tolist(), strict=True)}


def _fraction_edges(values: np.ndarray) -> Bins:
    """Twenty equal bins from 0 to 1."""
    bins = np.clip((values * BINS_OF_FRACTIONS).astype(np.int64), 0, BINS_OF_FRACTIONS - 1)
    return _counted(bins, lambda b: (b / BINS_OF_FRACTIONS, (b + 1) / BINS_OF_FRACTIONS))


def _count_edges(values: np.ndarray) -> Bins:
    """0, and from each power of two to the next."""
    bins = np.frexp(np.maximum(values, 0))[1].astype(np.int64)
    return _counted(bins, lambda b: (0.0, 1.0) if b == 0 else (2.0 ** (b - 1), 2.0**b))


def _ratio_edges(values: np.ndarray) -> Bins:
    """0, and from each power of the root of two to the next; a logarithm would round."""
    mantissas, exponents = np.frexp(np.maximum(values, 0))
    bins = np.where(values > 0, 2 * exponents.astype(np.int64) + (mantissas >= 0.5**0.5), NO_BIN)
    return _counted(
        bins, lambda b: (0.0, 0.0) if b == NO_BIN else (2 ** (b / 2 - 1), 2 ** (b / 2 - 0.5))
    )
