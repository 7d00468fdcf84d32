"""Shows what the planner predicted of a training beside what was measured, and other layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tasks.report.charts import Chart, Reference, Stack, stacks
from tasks.report.page import Section
from tasks.report.quantities import (
    NARROW,
    Facts,
    compact,
    duration,
    fixed,
    percent,
    significant,
    size,
)
from tasks.report.run import Run

Shown = Callable[[float | None], str]


def _milliseconds(seconds: float | None) -> str:
    if seconds is None or seconds >= 1:
        return duration(seconds)
    return f"{significant(1000 * seconds)}{NARROW}ms"


COMPARED: tuple[tuple[str, str, Shown], ...] = (
    ("weights_bytes", "weights", size),
    ("gradients_bytes", "gradients", size),
    ("optimizer_bytes", "optimizer state", size),
    ("max_memory_bytes", "peak of a GPU", size),
    ("step_s", "a step", _milliseconds),
    ("tokens_per_s", "tokens/s", compact),
    ("mfu_causal", "MFU", percent),
)
Parts = tuple[tuple[str, str, str], ...]
"""(field, label, tone) of each."""
MEMORY_PARTS: Parts = (
    ("weights", "weights, float32", "part p1"),
    ("gradients", "gradients, float32", "part p2"),
    ("optimizer", "optimizer state", "part p3"),
    ("activations", "activations", "part p4"),
    ("logits", "logits, or a block computed again", "part p5"),
    ("copies", "16-bit copies, gathered weights", "part p6"),
    ("allowance", "driver, fragments", "part p8"),
)
TIME_PARTS: Parts = (
    ("products_s", "matrix products", "part p1"),
    ("attention_s", "attention", "part p2"),
    ("between_s", "norms, activations, loss", "part p3"),
    ("recompute_s", "recomputation", "part p4"),
    ("host_s", "waiting for launches", "part p5"),
    ("optimizer_s", "optimizer", "part p6"),
    ("exposed_s", "waiting for traffic", "part p7"),
    ("bubble_s", "idle in the pipeline", "part p8"),
)


def planning_section(run: Run) -> Section | None:
    """None for a training that has no plan."""
    plan = Facts(run.metrics("train").group("plan"))
    rows = _compared(plan)
    if not rows:
        return None
    device_bytes, ranks = plan.number("device_bytes"), plan.rows("ranks")
    values = {
        "rows": rows,
        "memory": _memory(ranks, device_bytes),
        "memory_parts": _legend(MEMORY_PARTS, ranks),
        "time": _time(plan),
        "time_parts": _legend(TIME_PARTS, [Facts(plan.group("time"))]),
        "layouts": [_layout(row) for row in plan.rows("choice", "layouts")],
        "num_legal": plan.number("choice", "num_legal"),
        "num_fitting": plan.number("choice", "num_fitting"),
        "hardware": plan.text("hardware"),
    }
    return Section("planning", "Planned and measured", _finding(run, plan), values)


def _finding(run: Run, plan: Facts) -> str:
    hardware = plan.text("hardware")
    if hardware is None:
        return (
            "The planner predicts what a process holds, and the time of a step too where hardware"
            " is set, as in hardware=h100."
        )
    device = run.metrics("train").text("device") or "a device that was not recorded"
    said = f"Predicted for {hardware}, measured on {device}"
    step, memory = plan.number("ratio", "step_s"), plan.number("ratio", "max_memory_bytes")
    parts = [f"a step took {significant(step)} times as long"] if step else []
    parts += [f"memory was {significant(memory)} times as much"] if memory else []
    return f"{said}: {' and '.join(parts)}." if parts else f"{said}."


def _compared(plan: Facts) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, label, shown in COMPARED:
        predicted, measured, ratio = (
            plan.number(kind, name) for kind in ("predicted", "measured", "ratio")
        )
        if predicted is not None and measured is not None:
            found.append((label, shown(predicted), shown(measured), fixed(ratio)))
    return found


def _legend(parts: Parts, rows: Sequence[Facts]) -> list[tuple[str, str]]:
    """(tone, name) of the parts that are drawn."""
    return [(tone, label) for name, label, tone in parts if any(r.number(name) for r in rows)]


def _stack(label: str, row: Facts, parts: Parts, shown: Shown, more: str = "") -> Stack:
    amounts = [(tone, row.number(name) or 0.0, of) for name, of, tone in parts]
    total = sum(amount for _, amount, _ in amounts)
    drawn = [(tone, amount, f"{of}: {shown(amount)}") for tone, amount, of in amounts if amount]
    return Stack(label, drawn, shown(total) + more)


def _memory(ranks: Sequence[Facts], device_bytes: float | None) -> Chart | None:
    if not ranks or device_bytes is None:
        return None
    rows = [
        _stack(rank.text("name") or "", rank, MEMORY_PARTS, size, f" of {size(device_bytes)}")
        for rank in ranks
    ]
    return partial(stacks, rows, limit=Reference("memory of a device", device_bytes))


def _time(plan: Facts) -> Chart | None:
    time = Facts(plan.group("time"))
    measured_s = plan.number("measured", "step_s")
    if not time.group():
        return None
    rows = [_stack("predicted", time, TIME_PARTS, _milliseconds)]
    if measured_s is not None:
        shown = _milliseconds(measured_s)
        rows.append(Stack("measured", [("part p9", measured_s, shown)], shown))
    return partial(stacks, rows)


def _layout(row: Facts) -> tuple[Any, ...]:
    name = row.text("name") or ""
    return (
        f"{name} (this run)" if row.value("own") is True else name,
        size(row.number("memory_bytes")),
        _milliseconds(row.number("step_s")),
        percent(row.number("exposed_frac")),
        percent(row.number("bubble_frac")),
    )
