"""Counters and metrics as the stages of a run over a small mixed corpus leave them."""

from __future__ import annotations

from typing import Any

from tests.support.data.report_corpus import LANGUAGES, LICENCE, RULES, SOURCES
from tests.support.data.report_model_numbers import model_metrics
from tests.support.data.variety_metrics import analysis_metrics, mixture_metrics


def _scores() -> dict[str, Any]:
    """One classifier and one perplexity."""

    def by(labels: dict[str, int]) -> dict[str, Any]:
        return {
            name: {
                "documents": n,
                "bytes": 90 * n,
                "scored": n - 1,
                "kept_0.1": n // 20,
                "kept_0.25": n // 5,
                "kept_0.5": n // 2,
            }
            for name, n in labels.items()
        }

    tables = {
        "language": by(LANGUAGES),
        "source": by(SOURCES),
        "register": by({"prose": 260, "email": 410, "manual": 500}),
    }
    calibration = [
        {
            "low": k / 10,
            "high": (k + 1) / 10,
            "texts": 40 + k,
            "mean_score": k / 10 + 0.05,
            "positive_frac": (k / 10) ** 2,
        }
        for k in range(10)
    ]
    about = {"scored": 1370, "unscored": 16, "cut_by_language": False, "by": tables}
    return {
        "prose": (
            about
            | {
                "kind": "classifier",
                "best": "high",
                "quantiles": {"0.5": 0.0312, "0.9": 0.98},
                "histogram": {
                    "edges": [i / 20 for i in range(21)],
                    "counts": [400 - 19 * i for i in range(20)],
                },
                "training": {
                    "positives": 260,
                    "negatives": 1126,
                    "in_both": 3,
                    "folds": 2,
                    "auc": {"value": 0.987, "low": 0.981, "high": 0.991},
                    "calibration": calibration,
                },
            }
        ),
        "perplexity": (
            about
            | {
                "kind": "perplexity",
                "best": "low",
                "cut_by_language": True,
                "quantiles": {"0.5": 1830.0},
                "histogram": {
                    "edges": [100.0 * i for i in range(21)],
                    "counts": [5 + i * (20 - i) for i in range(20)],
                },
                "training": {
                    "languages": {"en": {"texts": 80, "bytes": 520_000}},
                    "held_out": {"en": {"perplexity": 822.0, "ngrams": 310_000}},
                    "folds": 2,
                    "order": 3,
                },
            }
        ),
    }


def run_counters() -> dict[str, Any]:
    first = {name: hits for name, *_, hits in RULES if hits}
    return {
        "ingest": {
            "read": 1393,
            "kept": 1386,
            "dropped": {"EMPTY": 2},
            "quarantined": 5,
            "quarantined_by": {"broken JSON": 2, "invalid UTF-8": 3},
            "bytes": 6_412_345,
            "repaired": {"NUL": 1, "BOM": 2, "CRLF": 14, "LONE_SURROGATE": 0},
        },
        "language": {"read": 1386, "kept": 1386, "dropped": {}, "quarantined": 0},
        "analysis": {
            "read": 1386,
            "kept": 1386,
            "dropped": {},
            "quarantined": 0,
            "sample_units": 290_520,
        },
        "contamination": {
            "read": 1386,
            "kept": 1379,
            "dropped": {"CONTAMINATED": 7},
            "quarantined": 0,
        },
        "quality": {
            "read": 1386,
            "kept": 1386 - sum(first.values()),
            "dropped": first,
            "quarantined": 0,
        },
        "dedup": {
            "read": 1386,
            "kept": 967,
            "dropped": {"EXACT_DUPLICATE": 31, "NEAR_DUPLICATE": 111, "QUALITY": 277},
            "quarantined": 0,
        },
        "documents": {
            "read": 1386,
            "kept": 967,
            "dropped": first | {"EXACT_DUPLICATE": 31, "NEAR_DUPLICATE": 111},
            "quarantined": 0,
        },
        "train": {"tokens": 2_457_600, "steps": 600},
    }


def run_metrics() -> dict[str, Any]:
    kept_sources = {
        name: {"documents": max(n - n // (3 + i % 5) - (n if i == 6 else 0), 0), "bytes": n * 3900}
        for i, (name, n) in enumerate(SOURCES.items())
    }
    first = {name: hits for name, *_, hits in RULES if hits}
    return {
        "ingest": {
            "by_source": {name: {"documents": n, "bytes": n * 4711} for name, n in SOURCES.items()},
            "length_histogram": {
                "edges_bytes": [2**b for b in range(5, 19)],
                "counts": [3, 9, 21, 64, 155, 262, 301, 240, 168, 96, 44, 19, 4],
            },
            "quarantine_examples": [
                {
                    "file": "crawl/part-0003.jsonl",
                    "line": 17,
                    "byte_offset": 91_233,
                    "error": "invalid UTF-8 at byte 12 of the record",
                },
                {
                    "file": "crawl/part-0003.jsonl",
                    "line": 402,
                    "byte_offset": 1_991_233,
                    "error": "broken JSON: expected ',' or '}'",
                },
            ],
            "licenses": {
                "public-domain": 328,
                "MIT (poems: public domain)": 198,
                "BSD-3-Clause": 136,
                "Apache-2.0": 96,
                "Expat (debian/* of the package)": 74,
                "MIT": 55,
                "PSF-2.0": 45,
                "GFDL-1.1+": 35,
                "BSL-1.0": 28,
                "CC0-1.0": 15,
            },
        },
        "language": {
            "languages": {
                name: {"documents": n, "bytes": n * 4600} for name, n in LANGUAGES.items()
            }
        },
        "scores": {"scores": _scores()},
        "contamination": {
            "suites": {
                "squad": {"items": 2000, "too_short": 0, "hit_items": 41, "hit_documents": 6},
                "arithmetic": {
                    "items": 2000,
                    "too_short": 1988,
                    "hit_items": 1,
                    "hit_documents": 1,
                },
            },
            "documents": 7,
            "ngrams": 310_422,
            "ignored_ngrams": 12,
            "by_source": {
                "wiki": {"documents": 6, "bytes": 81_000},
                "manuals": {"documents": 1, "bytes": 900},
            },
            "examples": [
                {
                    "suite": "squad",
                    "item": "q17",
                    "document": "0f" * 16,
                    "excerpt": "rises in the Black Forest, <EMAIL>",
                }
            ],
            "action": "drop",
        },
        "quality": {
            "rules": [
                *(
                    {"bit": i, "name": n, "preset": p, "feature": f, "threshold": t, "side": s}
                    for i, (n, p, f, t, s, _, _) in enumerate(RULES)
                ),
                {
                    "bit": 12,
                    "name": "PROSE_UNDER_MIN",
                    "preset": "limits",
                    "feature": "prose",
                    "threshold": 0.02,
                    "drops": True,
                },
            ],
            "score_rules": {
                "PROSE_UNDER_MIN": {
                    dimension: {
                        label: {
                            "documents": 700,
                            "bytes": 90_000,
                            "scored": 690,
                            "removed": n,
                            "removed_bytes": 9000,
                        }
                    }
                    for dimension, label, n in (
                        ("language", "en", 412),
                        ("source", "deb:dict-jargon", 61),
                        ("register", "email", 333),
                    )
                }
            },
            "funnel": [{"rule": r[0], "dropped": r[5], "dropped_first": r[6]} for r in RULES],
            "overlap": [
                [min(a[5], b[5]) // (1 if i == j else 2 + (i * j) % 4) for j, b in enumerate(RULES)]
                for i, a in enumerate(RULES)
            ],
            "dropped_by_language": {"zh": 121, "en": 96, "und": 38, "ja": 14, "th": 5, "de": 3},
        },
        "dedup": {
            "clusters": [
                {
                    "size": 23 - 2 * i,
                    "survivor_id": f"{i:032x}",
                    "member_ids": [f"{i * 7 + j:032x}" for j in range(4)],
                }
                for i in range(6)
            ],
            "cluster_size_histogram": {"2": 41, "3": 12, "4": 5, "6": 2, "9": 1, "23": 1},
            "lsh": {"num_perms": 112, "num_bands": 14, "rows_per_band": 8, "threshold": 0.75},
            "candidate_pairs": 1204,
            "verified_pairs": 611,
            "families": 1181,
        },
        "pii": {
            "types": {
                "EMAIL": {"spans": 412, "documents": 180},
                "PHONE": {"spans": 37, "documents": 21},
                "IPV4": {"spans": 28, "documents": 12},
                "CREDIT_CARD": {"spans": 3, "documents": 2},
                "IBAN": {"spans": 1, "documents": 1},
            }
        },
        "analysis": analysis_metrics(SOURCES, LANGUAGES),
        "documents": {
            "mixture": mixture_metrics(SOURCES, LANGUAGES),
            "funnel": [
                {"stage": "read", "documents": 1393},
                {"stage": "ingest", "documents": 1386},
                {"stage": "quality", "documents": 1109},
                {"stage": "dedup", "documents": 967},
            ],
            "dropped": {
                "ingest": {"EMPTY": 2},
                "quality": first,
                "dedup": {"EXACT_DUPLICATE": 31, "NEAR_DUPLICATE": 111},
            },
            "by_language": {
                "en": {"documents": 640, "bytes": 3_100_000},
                "zh": {"documents": 150, "bytes": 410_000},
                "fr": {"documents": 20, "bytes": 200_000},
                "de": {"documents": 19, "bytes": 190_000},
                "ar": {"documents": 12, "bytes": 90_000},
            },
            "by_source": kept_sources,
            "split": {
                "train": {"documents": 910, "bytes": 3_700_000, "families": 822},
                "validation": {"documents": 57, "bytes": 260_000, "families": 51},
            },
            "duplicate_examples": [
                {
                    "survivor": LICENCE,
                    "member": (
                        LICENCE.replace("following conditions", "following three conditions")
                        .replace("above ", "")
                        .replace("Contact", "Write to")
                    ),
                },
                {
                    "survivor": "春眠不覺曉，處處聞啼鳥。夜來風雨聲，花落知多少。",
                    "member": "春眠不覺曉，處處聞啼鳥。夜來風雨聲，花落知幾何。",
                },
            ],
        },
    } | model_metrics()
