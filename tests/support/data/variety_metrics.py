"""Metrics of an analysis and of a mixture as a small mixed corpus has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STATES = {"ingest": 1.0, "quality": 0.8, "dedup": 0.7, "documents": 0.69}


def analysis_metrics(sources: Mapping[str, int], languages: Mapping[str, int]) -> dict[str, Any]:
    """Of a corpus whose states hold the shares of STATES of every source and language."""

    def scale(documents: float) -> dict[str, int]:
        return {
            n: round(documents * m)
            for n, m in (
                ("documents", 1),
                ("bytes", 4600),
                ("words", 700),
                ("tokens_estimated", 940),
            )
        }

    def rows(axis: str, labels: Mapping[str, int]) -> list[dict[str, Any]]:
        return [
            {axis: label} | {state: scale(n * left) for state, left in STATES.items()}
            for label, n in labels.items()
        ]

    def concentration(effective: float) -> dict[str, float]:
        return {"entropy_bits": 3.2, "effective": effective, "hhi": 1 / effective, "num_labels": 20}

    states = {
        state: scale(sum(languages.values()) * left)
        | {
            "sources": concentration(18.7 * left),
            "languages": concentration(5.5),
            "domains": concentration(3.4),
            "growth": {"exponent": 0.72 + 0.1 * (1 - left), "factor": 3.9, "r_squared": 0.996},
            "entropy_bits": {"1gram": 11.9, "2gram": 16.6, "3gram": 17.9},
            "vendi": {"value": 57.2, "low": 55.9, "high": 58.5, "num_groups": 8},
            "sample_documents": 531,
        }
        for state, left in STATES.items()
    }
    return {
        "states": states,
        "by_source": rows("source", sources),
        "by_language": rows("language", languages),
        "domains": [
            {"domain": f"example{i}.org", "documents": 90 - 9 * i, "bytes": 90_000 - 9000 * i}
            for i in range(9)
        ],
        "histograms": {
            "num_words": {
                "low": [0.0, 32.0, 64.0, 128.0, 512.0],
                "high": [1.0, 64.0, 128.0, 256.0, 1024.0],
                "states": {"ingest": [3, 120, 300, 410, 200], "documents": [0, 10, 220, 390, 190]},
            },
            "hash_per_word": {
                "low": [0.0, 0.0625, 0.125],
                "high": [0.0, 0.125, 0.25],
                "states": {"ingest": [900, 60, 40], "documents": [800, 40, 0]},
            },
            "bullet_line_frac": {
                "low": [0.0, 0.5, 0.95],
                "high": [0.05, 0.55, 1.0],
                "states": {"ingest": [900, 60, 40], "documents": [800, 40, 0]},
            },
        },
        "changed_by_language": {
            "de": {"num_words": 0.31, "bullet_line_frac": 0.022},
            "en": {"hash_per_word": 0.125},
        },
        "growth_curves": {
            state: [[2**i, round(4 * 2 ** (i * exponent))] for i in range(6, 19)]
            for state, exponent in (("ingest", 0.72), ("documents", 0.75))
        },
        "cluster_law": {
            "exponent": 2.61,
            "standard_error": 0.18,
            "distance": 0.05,
            "least": 2,
            "num_clusters": 62,
        },
        "vendi_documents": 64,
    }


def mixture_metrics(sources: Mapping[str, int], languages: Mapping[str, int]) -> dict[str, Any]:
    """Of a mixture that gives every label as many bytes as another has documents, nearly
    reached."""

    def table(labels: Mapping[str, int]) -> dict[str, dict[str, int]]:
        even = sum(labels.values()) * 4000 // len(labels)
        return {
            label: {
                "bytes": n * 4000,
                "planned_bytes": even,
                "reached_bytes": min(round(even * 1.02), n * 32_000),
                "documents": n,
            }
            for label, n in labels.items()
        }

    by_language = table(languages)
    totals = {
        name: sum(entry[name] for entry in by_language.values())
        for name in ("bytes", "planned_bytes", "reached_bytes")
    }
    return {"configured": True, "by_source": table(sources), "by_language": by_language} | totals
