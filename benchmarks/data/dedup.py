"""Measures the speed of deduplication, its growth with the number of documents, and its result.

`python -m benchmarks.data.dedup 5` or `DOCS_M=5 make bench-dedup`, in millions of documents. They
are generated in batches (`benchmarks.data.planted_texts`), never stored, and their generation is
not timed. The phases are those of the stage, on its kernels, with its default settings:

* signature: shingles and 112 min-hashes of all text.  exact: keys of all texts, and the first of
  each.
* candidates: keys of 14 + 28 bands, and the pairs in their buckets.
* verification: the estimate by signatures, shingle sets of documents in pairs, exact similarity,
  survivors.
* components: families.

Everything is measured at a quarter, a half and the whole of the documents, in CPU seconds of this
one process, once each: kernels are compiled before, on a few documents. `linear` is the time per
document of the whole over that of a quarter. What must come out is known: a speed is withheld
(null) where an expectation fails.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.data.planted_texts import (
    ALONE,
    CLUSTER,
    NUM_WORDS,
    kind_of,
    make_vocabulary,
    write_texts,
)
from benchmarks.data.signing import shingle_sets_of, sign
from llm_core.printing import note, show
from tasks.dedup.config import DedupConfig
from tasks.dedup.near_duplicates import (
    NearDuplicates,
    Sketches,
    likely_pairs,
    propose_pairs,
    verify_pairs,
)
from tasks.dedup.signatures import choose_bands
from tasks.dedup.signed_documents import first_of_equal, id_words_of
from tasks.runtime.store import peak_memory_bytes

BATCH_DOCUMENTS = 20_000


class Clock:
    """CPU seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.process_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - started


class Generator:
    """Writes documents by number; `seconds` of CPU went into it."""

    def __init__(self) -> None:
        self.vocabulary = make_vocabulary()
        self.seconds = 0.0

    def batches(
        self, documents: np.ndarray
    ) -> Iterator[tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]]:
        buf = np.empty(BATCH_DOCUMENTS * NUM_WORDS * 11, np.uint8)
        for start in range(0, len(documents), BATCH_DOCUMENTS):
            some = documents[start : start + BATCH_DOCUMENTS]
            begins = np.empty(len(some) + 1, np.int64)
            started = time.process_time()
            write_texts(some, *self.vocabulary, buf, begins)
            self.seconds += time.process_time() - started
            yield some, (buf, begins)


def measure(num_documents: int, config: DedupConfig) -> dict[str, Any]:
    """Seconds by phase, rates, and whether what was planted was found."""
    from tasks.kernels.dedup.overlap import smallest_connected

    clock, generator = Clock(), Generator()
    signatures, words, num_bytes = _sign(num_documents, config, clock, generator)
    with clock.phase("exact"):
        first = first_of_equal(words, np.ones(num_documents, bool))
        members = np.flatnonzero(first == np.arange(num_documents))
        if len(members) < num_documents:
            signatures = signatures[members]
    sketches = _sketches(signatures, members, config, clock, generator)
    with clock.phase("candidates"):
        pairs, num_candidates = propose_pairs(sketches, config.full_bucket_documents, 0)
    generated = generator.seconds
    with clock.phase("verification"):
        likely = likely_pairs(pairs, sketches, config.family_threshold)
        near = verify_pairs(
            likely,
            sketches,
            config.threshold,
            config.family_threshold,
            np.zeros(0, np.int64),
            num_candidates,
        )
    clock.seconds["verification"] -= generator.seconds - generated
    with clock.phase("components"):
        a, b = (
            np.concatenate([first, members[near.a]]),
            np.concatenate([np.arange(num_documents), members[near.b]]),
        )
        families = smallest_connected(num_documents, a, b)
    decided_s = sum(clock.seconds[name] for name in ("candidates", "verification", "components"))
    checks = _check(num_documents, members, near, families, config)
    right = all(check["holds"] for check in checks.values())
    return {
        "documents": num_documents,
        "text_mb": round(num_bytes / 1e6, 1),
        "cpu_s": {name: round(seconds, 2) for name, seconds in clock.seconds.items()},
        "candidate_pairs": list(num_candidates),
        "compared_pairs": near.num_compared,
        "signature_mb_per_s": (
            round(num_bytes / 1e6 / clock.seconds["signature"], 1) if right else None
        ),
        "exact_mb_per_s": round(num_bytes / 1e6 / clock.seconds["exact"], 1) if right else None,
        "documents_per_s": round(num_documents / decided_s) if right else None,
        "cpu_us_per_document": round(1e6 * decided_s / num_documents, 3),
        "peak_rss_gib": round(peak_memory_bytes() / 2**30, 2),
        "checks": checks,
    }


def _sign(
    num_documents: int, config: DedupConfig, clock: Clock, generator: Generator
) -> tuple[np.ndarray, np.ndarray, int]:
    from tasks.kernels.dedup.exact import exact_keys

    signatures = np.empty((num_documents, config.num_perms), np.uint32)
    words = np.empty((num_documents, 2), np.uint64)
    num_bytes = at = 0
    for some, (buf, begins) in generator.batches(np.arange(num_documents)):
        here = slice(at, at + len(some))
        with clock.phase("signature"):
            signatures[here] = sign(buf, begins, config)
        with clock.phase("exact"):
            words[here] = id_words_of(exact_keys(buf, begins, np.arange(len(some))))
        num_bytes += int(begins[-1])
        at += len(some)
    return signatures, words, num_bytes


def _sketches(
    signatures: np.ndarray,
    members: np.ndarray,
    config: DedupConfig,
    clock: Clock,
    generator: Generator,
) -> Sketches:
    from tasks.kernels.dedup.banding import band_table

    bandings = choose_bands(config)
    with clock.phase("candidates"):
        bands = band_table(signatures, bandings)

    def sets(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        made = [
            shingle_sets_of(*text, np.arange(len(some)), config)
            for some, text in generator.batches(members[rows])
        ]
        shingles = [np.zeros(0, np.uint32), *(part for part, _ in made)]
        sizes = [np.zeros(1, np.int64), *(size for _, size in made)]
        return np.concatenate(shingles), np.cumsum(np.concatenate(sizes))

    return Sketches(
        len(members), config.num_perms, bandings, bands.__getitem__, signatures.__getitem__, sets
    )


def _check(
    num_documents: int,
    members: np.ndarray,
    near: NearDuplicates,
    families: np.ndarray,
    config: DedupConfig,
) -> dict[str, dict[str, Any]]:
    """What came out against what was planted: {claim: {value, expected, holds}}."""
    from tasks.kernels.dedup.banding import collision_probability

    survivor = members[near.survivor]
    described = np.array([kind_of(document)[:2] for document in members[: 1 << 18]])
    kinds, texts = described.T
    some = survivor[: len(described)]
    text_of_survivor = np.array([kind_of(document)[1] for document in some])
    clustered = np.flatnonzero((kinds == CLUSTER) & (members[: len(described)] % 10 > 2))
    gone = some[clustered] != members[clustered]
    # The original is in a pair of 91/101 with each; the least that banding alone would find.
    promised = collision_probability(91 / 101, *choose_bands(config)[0])
    return {
        "copies that stay": _claim(copies := int((members % 10 < 2).sum()), 1, copies == 1),
        "removed for another text": _claim(
            wrong := int((text_of_survivor != texts).sum()), 0, wrong == 0
        ),
        "removed though alone": _claim(
            alone := int((some != members[: len(some)])[kinds == ALONE].sum()), 0, alone == 0
        ),
        "removed of near copies": _claim(
            found := float(gone.mean()), round(promised, 4), found >= promised - 0.01
        ),
        "families of copies": _claim(
            count := len(np.unique(families[np.arange(0, num_documents, 10)])), 1, count == 1
        ),
    }


def _claim(value: float, expected: float, holds: bool) -> dict[str, Any]:
    return {"value": round(value, 4), "expected": expected, "holds": bool(holds)}


def main(arguments: list[str]) -> int:
    millions = float(arguments[0]) if arguments else float(os.environ.get("DOCS_M", "5"))
    if not 0.001 <= millions <= 100:
        note(f"documents in millions ({millions}) must be from 0.001 to 100; try 0.5")
        return 2
    config = DedupConfig()
    measure(1000, config)  # compiles
    whole = int(millions * 1e6)
    results = []
    for num_documents in (whole // 4, whole // 2, whole):
        results.append(result := measure(num_documents, config))
        rate, speed = result["documents_per_s"], result["signature_mb_per_s"]
        show(
            f"{num_documents:>9,} documents: signature {speed} MB/s, exact"
            f" {result['exact_mb_per_s']} MB/s, then {rate} documents/s; CPU s {result['cpu_s']};"
            f" peak RSS {result['peak_rss_gib']} GiB",
            flush=True,
        )
    last = results[-1]
    linear = round(last["cpu_us_per_document"] / results[0]["cpu_us_per_document"], 2)
    summary = {
        "benchmark": "dedup",
        "cpu": platform.processor() or platform.machine(),
        "linear": linear,
        "sizes": results,
    }
    show(json.dumps({k: v for k, v in last.items() if k != "checks"} | summary))
    return (
        0 if all(check["holds"] for result in results for check in result["checks"].values()) else 1
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
