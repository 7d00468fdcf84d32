"""Loads as the benchmark leaves them."""

from __future__ import annotations

from typing import Any

import numpy as np

from llm_core.bench.latency import Answered, summarise


def load(target: str, concurrency: int) -> dict[str, Any]:
    """A closed loop of 48 requests; more at once wait longer, and HTTP a little more."""
    random = np.random.default_rng(concurrency)
    slower = (1 + concurrency / 8) * (1.1 if target == "http" else 1.0)
    answered = []
    for number in range(48):
        due_at = number * 0.2 * slower / concurrency
        gaps_s = random.gamma(4, 0.002 * slower, 12)
        first = due_at + 0.02 * slower * concurrency
        told = [(first, 1), *((first + at, 1) for at in gaps_s.cumsum().tolist())]
        answered.append(Answered(due_at, due_at, due_at + 0.001, told, len(told)))
    edges_s = [0.002 * 1.5**step for step in range(9)]
    gaps = [gap for each in answered for gap in each.gaps_s]
    counts, _ = np.histogram(gaps, edges_s)
    histogram = {"edges_s": edges_s, "counts": counts.tolist()}
    kind = {"target": target, "kind": "closed", "concurrency": concurrency}
    return kind | summarise(answered) | {"itl_histogram": histogram}
