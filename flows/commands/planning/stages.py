"""Shows what a flow would run: each stage, why, for how long, and what it leaves on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from flows.console import table
from tasks.report.quantities import NARROW, duration, plural, size
from tasks.runtime.estimates import Estimate
from tasks.runtime.plan import Plan, plan_rows
from tasks.runtime.store import Store

Estimates = Mapping[str, Estimate]


def describe_plan(store: Store, plan: Plan, estimates: Estimates) -> str:
    """For a terminal."""
    rows = [(*row, *_shown(estimates.get(row[0]))) for row in plan_rows(plan)]
    shown = table(("stage", "key", "why", "time", "disk"), rows, spare=("disk", "time"))
    total = f"{len(estimates)} of {len(plan.steps)} stages would run{_for_how_long(estimates)}"
    return f"{shown}\n\n{total}; store {store.root}/<stage>/<key>"


def plain_plan(flow: str, store: Store, plan: Plan, estimates: Estimates) -> dict[str, Any]:
    """The same as plain values; null where no earlier run says."""
    stages = [
        {
            "stage": stage,
            "key": key,
            "why": why,
            "runs": stage in estimates,
            **asdict(estimates.get(stage, Estimate())),
        }
        for stage, key, why in plan_rows(plan)
    ]
    elapsed_s, num_bytes = _sums(estimates)
    totals = {"elapsed_s": elapsed_s, "num_bytes": num_bytes}
    return {"flow": flow, "store": str(store.root), "stages": stages} | totals


def _shown(estimate: Estimate | None) -> tuple[str, str]:
    """(time, bytes) of a stage; nothing where it would not run."""
    if estimate is None:
        return "", ""
    if not estimate.num_runs:
        return "no earlier run", ""
    return _plain(duration(estimate.elapsed_s)), _plain(size(estimate.num_bytes))


def _for_how_long(estimates: Estimates) -> str:
    unknown = sum(not each.num_runs for each in estimates.values())
    if unknown == len(estimates):
        return ""
    elapsed_s, num_bytes = _sums(estimates)
    without = f" without {plural(unknown, 'stage')} that never ran here" if unknown else ""
    return f", for about {_plain(duration(elapsed_s))} and {_plain(size(num_bytes))}{without}"


def _sums(estimates: Estimates) -> tuple[float, float]:
    """(seconds, bytes) of the stages of which they are known."""
    known = [each for each in estimates.values() if each.num_runs]
    return sum(e.elapsed_s or 0 for e in known), sum(e.num_bytes or 0 for e in known)


def _plain(text: str) -> str:
    """With the blank that every terminal has."""
    return text.replace(NARROW, " ")
