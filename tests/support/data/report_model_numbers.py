"""Metrics as the stages from the tokenizer to the benchmark leave them."""

from __future__ import annotations

import math
from typing import Any

from tests.support.data.planned_training import plan_of_training
from tests.support.data.report_corpus import LANGUAGES, SOURCES
from tests.support.data.report_loads import load


def model_metrics() -> dict[str, Any]:
    return {
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
            "plan": plan_of_training(),
        },
        "evaluate": {
            "val_bpb": {
                "value": 1.686,
                "low": 1.601,
                "high": 1.779,
                "num_documents": 57,
                "num_bytes": 260_000,
            },
            "suites": {
                "cloze": _suite("acc", 0.62, 0.482, 0.741, 50)
                | {
                    "chance": 0.25,
                    "centred": 0.493,
                    "brier": 0.551,
                    "calibration_error": 0.124,
                    "merged_frac": 0.02,
                    "detectable_difference": 0.272,
                    "searched_in_training": 48,
                    "clean": {
                        "metric": "acc",
                        "items": 45,
                        "value": 0.578,
                        "difference": {"value": -0.042, "low": -0.081, "high": -0.004},
                    },
                },
                "agreement": _suite("acc", 0.506, 0.464, 0.553, 160) | {"chance": 0.5},
                "to_chinese": _suite("chrf", 1.5, 0.25, 3.125, 40)
                | {"empty_frac": 0.05, "cut_off_frac": 0.8, "repetitive_frac": 0.0},
            },
            "formats": {
                "trained": {"weight_bytes": 20_400_000, "val_bpb": {"value": 1.686}},
            }
            | {
                name: {
                    "weight_bytes": num_bytes,
                    "val_bpb": {"value": 1.686 + more, "low": 1.6, "high": 1.78},
                    "difference": {"value": more, "low": more / 2, "high": more * 1.5},
                }
                for name, num_bytes, more in (("int8", 5_400_000, 0.001), ("int4", 3_100_000, 0.04))
            },
            "beside": {
                "name": "published",
                "val_bpb": {"value": 1.2, "low": 1.1, "high": 1.3},
                "difference": {"value": -0.486, "low": -0.55, "high": -0.41},
                "suites": {
                    "cloze": _suite("acc", 0.78, 0.65, 0.87, 50),
                    "agreement": _suite("acc", 0.494, 0.45, 0.54, 160),
                },
                "suite_differences": {
                    "cloze": _difference(0.16, 0.04, 0.28, 0.021),
                    "agreement": _difference(-0.012, -0.07, 0.05, 0.71),
                    "to_chinese": {"refused": "not compared: shots differ"},
                },
            },
            "curves": {
                name: {
                    "metric": "acc",
                    "points": [
                        {
                            "step": step,
                            "tokens": step * 16_384,
                            "value": start + gain * step / 600,
                            "low": start + gain * step / 600 - 0.1,
                            "high": start + gain * step / 600 + 0.1,
                        }
                        for step in (150, 300, 450, 600)
                    ],
                }
                for name, start, gain in (("agreement", 0.5, 0.006), ("cloze", 0.3, 0.32))
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
            "perplexity": {
                "token": {"value": 79.341, "low": 61.2, "high": 103.9},
                "word": {"value": 1250.5, "low": 900.1, "high": 1800.2},
                "byte": {"value": 3.218, "low": 3.034, "high": 3.432},
            },
            "bits_per_token": 6.31,
            "eos_bits_per_document": 4.2,
            "policy": {
                "interval": "95 % bootstrap of the ratio over documents, percentiles expanded for"
                " few of them, 1000 samples",
                "token perplexity": "compares with models of the same tokenizer",
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
                    "cache": cache,
                    "weights": weights,
                    "bound": "bandwidth",
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
                for weights, gain in (("model", 1.0), ("int8", 1.6))
                for mode, cache, v in (
                    ("cached", "static", (212.0 - p / 10) * gain),
                    ("cached", "paged", (190.0 - p / 10) * gain),
                    ("uncached", None, (41.0 - p / 15) * gain),
                )
            ],
            "loads": [
                load(target, at_once) for target in ("engine", "http") for at_once in (1, 4, 8)
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


def _difference(value: float, low: float, high: float, p_value: float) -> dict[str, Any]:
    found = {"metric": "acc", "items": 50, "value": value, "low": low, "high": high}
    return found | {"p_value": p_value, "p_value_of_all": p_value, "verdict": "differs"}


def _suite(metric: str, value: float, low: float, high: float, items: int) -> dict[str, Any]:
    metrics = {metric: {"value": value, "low": low, "high": high}}
    counts = {"items": items, "shots": 2, "truncated": 3}
    return {"headline": metric, "metrics": metrics, **counts}
