"""Summarises training speed: medians, extremes and a series over logging intervals, from rows of
`timing.jsonl`.

The rows are `llm_core.training.throughput`'s; validation, checkpoints and start-up are outside of
them. Times go into the artifact's metrics and into no file of it, which are the same bytes whenever
they are made.
"""

from __future__ import annotations

import statistics
from typing import Any

Row = dict[str, Any]

MAX_INTERVALS = 200


def speed(timing: list[Row]) -> Row:
    """Medians and extremes over logging intervals."""
    names = [name for name in ("tokens_per_s", "mfu_causal", "mfu_full") if name in timing[0]]
    found: Row = {name: statistics.median(row[name] for row in timing) for name in names}
    waited_s, elapsed_s = (sum(row[k] for row in timing) for k in ("data_wait_s", "elapsed_s"))
    found["data_wait_frac"] = waited_s / elapsed_s
    found["max_memory_bytes"] = max(row["max_memory_bytes"] for row in timing)
    return found


def attended_tokens(timing: list[Row], seq_len: int) -> float:
    """Tokens of its document that a token attends as FLOPs count, in the mean over steps; rows of
    older runs do not say."""
    num_steps = sum(row["num_steps"] for row in timing)
    return sum(row.get("attended_tokens", seq_len) * row["num_steps"] for row in timing) / num_steps


def series(timing: list[Row], max_intervals: int = MAX_INTERVALS) -> list[Row]:
    """The rows, of neighbours joined until they are no more than asked for.

    Speeds of what is joined are means over its time, memory and the pace of the slowest rank its
    worst.
    """
    size = max(1, -(-len(timing) // max_intervals))
    return [_joined(timing[begin : begin + size]) for begin in range(0, len(timing), size)]


def _joined(rows: list[Row]) -> Row:
    elapsed_s = sum(row["elapsed_s"] for row in rows)
    found: Row = {name: rows[-1][name] for name in ("step", "ended_at") if name in rows[-1]}
    for name in ("tokens_per_s", "mfu_causal", "mfu_full"):
        if all(name in row for row in rows):
            found[name] = sum(row[name] * row["elapsed_s"] for row in rows) / elapsed_s
    found["data_wait_frac"] = sum(row["data_wait_s"] for row in rows) / elapsed_s
    found["max_memory_bytes"] = max(row["max_memory_bytes"] for row in rows)
    if all("slowest_pace" in row for row in rows):
        slowest = max(rows, key=lambda row: row["slowest_pace"])
        found |= {name: slowest[name] for name in ("slowest_rank", "slowest_pace")}
    worst: dict[int, float] = {}
    for one in (one for row in rows for one in row.get("paces", ())):
        worst[one["rank"]] = max(one["pace"], worst.get(one["rank"], 0.0))
    if worst:
        found["paces"] = [{"rank": rank, "pace": pace} for rank, pace in worst.items()]
    return found
