"""Compares two measurements of speed: cell by cell and load by load, with intervals.

Cells pair by weights, cache, batch and lengths, loads by target and kind. A ratio is the second
over the first, of medians. Its interval is a percentile bootstrap at 95 %: of a cell, the repeats
of both sides are drawn anew; of a load, the same requests on both sides, as request n has the same
length in both. Over all cells it is the geometric mean of the ratios, whose interval draws cells in
pairs, and repeats within each. Few repeats make intervals too narrow. `is_clear` marks an interval
that excludes 1.

Leaves out: correction for the number of comparisons, and drift of the machine between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llm_core.config import ConfigError
from llm_core.printing import percent

NUM_SAMPLES = 2000
LEVEL = 0.95
SEED = 0

Row = Mapping[str, Any]


def compare_speeds(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """first, second: contents of `bench.json`. Raises ConfigError where speed is withheld, or
    nothing is in both."""
    for name, one in (("first", first), ("second", second)):
        if one.get("withheld"):
            raise ConfigError(f"the {name} has no speed to compare: {one['withheld']}")
    random = np.random.default_rng(SEED)
    pairs = _pairs(first.get("cells", ()), second.get("cells", ()), cell_name)
    loads = _pairs(first.get("loads", ()), second.get("loads", ()), load_name)
    if not pairs and not loads:
        raise ConfigError("both have no cell and no load in common; measure the same grid")
    drawn = {name: _draws(random, a, b) for name, (a, b) in pairs.items()}
    return {
        "environments": [one.get("environment") for one in (first, second)],
        "cells": [
            _ratio(name, a, b, drawn[name], ("decode_tok_s", "median"))
            for name, (a, b) in pairs.items()
        ],
        "loads": [_of_load(random, name, a, b) for name, (a, b) in loads.items()],
        "overall": _overall(random, pairs, drawn),
        "cells_of_one": [len(one.get("cells", ())) - len(pairs) for one in (first, second)],
    }


def cell_name(row: Row) -> str:
    kind = f"{row.get('weights', 'model')} · {row.get('cache') or row['mode']}"
    return f"{kind} · {row['batch']} × {row['prompt_tokens']}+{row['new_tokens']}"


def load_name(row: Row) -> str:
    number = row.get("concurrency") or percent(row.get("arrival_frac", 0))
    return f"{row['target']} · {row['kind']} {number}"


def _pairs(first: Sequence[Row], second: Sequence[Row], name: Any) -> dict[str, tuple[Row, Row]]:
    others = {name(row): row for row in second}
    return {name(row): (row, others[name(row)]) for row in first if name(row) in others}


def _draws(random: np.random.Generator, first: Row, second: Row) -> np.ndarray | None:
    """Ratios of medians of resampled repeats; None where the repeats are not known."""
    medians = []
    for row in (first, second):
        speeds = np.array(row.get("samples", {}).get("decode_tok_s", ()))
        if len(speeds) < 2:
            return None
        drawn = random.integers(0, len(speeds), (NUM_SAMPLES, len(speeds)))
        medians.append(np.median(speeds[drawn], axis=1))
    ratios: np.ndarray = medians[1] / medians[0]
    return ratios


def _of_load(random: np.random.Generator, name: str, first: Row, second: Row) -> dict[str, Any]:
    """The ratio of tokens/s, and that of times to the first token with an interval."""
    waits = [np.array(row.get("samples", {}).get("ttft_s", ())) for row in (first, second)]
    draws = None
    if len(waits[0]) == len(waits[1]) > 1:
        drawn = random.integers(0, len(waits[0]), (NUM_SAMPLES, len(waits[0])))
        draws = np.median(waits[1][drawn], axis=1) / np.median(waits[0][drawn], axis=1)
    found = _ratio(name, first, second, draws, ("ttft_s", "p50"))
    return found | {"tok_s_ratio": _rounded(second["tok_s"] / first["tok_s"])}


def _ratio(
    name: str, first: Row, second: Row, draws: np.ndarray | None, path: tuple[str, str]
) -> dict[str, Any]:
    values = [row[path[0]][path[1]] for row in (first, second)]
    ratio = None if None in values else _rounded(values[1] / values[0])
    return {"name": name, "first": values[0], "second": values[1], "ratio": ratio} | _interval(
        draws
    )


def _interval(draws: np.ndarray | None) -> dict[str, Any]:
    if draws is None:
        return {"low": None, "high": None, "is_clear": False}
    tail = 100 * (1 - LEVEL) / 2
    low, high = (float(edge) for edge in np.percentile(draws, [tail, 100 - tail]))
    return {"low": _rounded(low), "high": _rounded(high), "is_clear": not low <= 1 <= high}


def _overall(
    random: np.random.Generator,
    pairs: Mapping[str, tuple[Row, Row]],
    drawn: Mapping[str, np.ndarray | None],
) -> dict[str, Any] | None:
    if not pairs:
        return None
    logs = np.log(
        [b["decode_tok_s"]["median"] / a["decode_tok_s"]["median"] for a, b in pairs.values()]
    )
    known = [np.log(draws) for draws in drawn.values() if draws is not None]
    means = None
    if len(known) == len(pairs) > 1:
        table = np.stack(known)
        cells = random.integers(0, len(known), (NUM_SAMPLES, len(known)))
        means = np.exp(table[cells, np.arange(NUM_SAMPLES)[:, None]].mean(axis=1))
    return {"ratio": _rounded(float(np.exp(logs.mean()))), "cells": len(pairs)} | _interval(means)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
