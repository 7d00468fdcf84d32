"""Shows the grid of speeds and what requests waited for under load, as part of the section on
speed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tasks.report.charts import Chart, Series, histogram, lines
from tasks.report.grid_heat import grid_heat
from tasks.report.quantities import Facts, compact, count, percent, significant

MS = 1000.0
TONES = {"engine": "a", "http": "b"}


def load_values(bench: Facts) -> dict[str, Any]:
    """What the template shows of grid and loads; charts are None where nothing was measured."""
    loads = bench.rows("loads")
    busiest = _busiest(loads)
    return {
        "grid": _grid(bench.rows("cells")),
        "tradeoff": _tradeoff(loads),
        "gaps": _gaps(busiest),
        "gaps_of": _name(busiest) if busiest else "",
        "loads": [_row(load) for load in loads],
        "targets": [(TONES[name], name) for name in TONES if _closed(loads, name)],
        "limits": _limits(loads),
    }


def _grid(cells: Sequence[Facts]) -> Chart | None:
    """Decode tokens/s by weights and cache, and by batch and prompt."""
    speeds: dict[tuple[str, str], float] = {}
    several = len({cell.number("new_tokens") for cell in cells}) > 1
    for cell in cells:
        median, weights = cell.number("decode_tok_s", "median"), cell.text("weights")
        if median is None or weights is None:
            continue
        batch, prompt, new = map(count, cell.each("batch", "prompt_tokens", "new_tokens"))
        column = f"{batch} × {prompt}" + (f"+{new}" if several else "")
        speeds[f"{weights} · {cell.text('cache') or 'recomputed'}", column] = median
    rows = list(dict.fromkeys(row for row, _ in speeds))
    columns = list(dict.fromkeys(column for _, column in speeds))
    if len(rows) < 2:
        return None
    values = [[speeds.get((row, column)) for column in columns] for row in rows]
    return partial(grid_heat, rows, columns, values, "tokens/s")


def _closed(loads: Sequence[Facts], target: str) -> list[Facts]:
    return [
        load for load in loads if load.text("target") == target and load.text("kind") == "closed"
    ]


def _tradeoff(loads: Sequence[Facts]) -> Chart | None:
    series = []
    for target, tone in TONES.items():
        closed = _closed(loads, target)
        pairs = [(load.number("tok_s"), load.number("ttft_s", "p50")) for load in closed]
        points = [(speed, MS * wait) for speed, wait in pairs if speed and wait is not None]
        if points:
            series.append(Series(target, points, tone, dots=True))
    if not series:
        return None
    return partial(
        lines, series, x_label="tokens per second", y_label="median TTFT, ms", from_zero=True
    )


def _busiest(loads: Sequence[Facts]) -> Facts | None:
    """The closed loop of the engine with most requests at once."""
    closed = _closed(loads, "engine")
    return max(closed, key=lambda load: load.number("concurrency") or 0, default=None)


def _gaps(load: Facts | None) -> Chart | None:
    if load is None:
        return None
    edges = [MS * edge for edge in load.numbers("itl_histogram", "edges_s")]
    counts = load.numbers("itl_histogram", "counts")
    if len(edges) != len(counts) + 1 or len(edges) < 2:
        return None
    return partial(
        histogram, edges, counts, x_label="ms between tokens", noun="gaps", log=True,
        shown=lambda edge: f"{significant(edge)} ms",
    )  # fmt: skip


def _name(load: Facts) -> str:
    if load.text("kind") == "closed":
        return f"{count(load.number('concurrency'))} at once"
    rate, frac = load.number("rate_per_s"), load.number("arrival_frac")
    return f"{significant(rate)} arrivals/s ({percent(frac)})"


def _row(load: Facts) -> tuple[Any, ...]:
    return (
        f"{load.text('target')}, {_name(load)}",
        count(load.number("requests")),
        count(load.number("failed")),
        compact(load.number("tok_s")),
        *(
            _ms(load.number(name, percentile))
            for name, percentile in (
                ("ttft_s", "p50"), ("ttft_s", "p90"), ("tpot_s", "p50"), ("itl_s", "p99"),
                ("e2e_s", "p50"), ("queue_s", "p50"),
            )
        ),
        percent(load.number("goodput", "server", "kept_frac")),
    )  # fmt: skip


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else significant(MS * seconds)


def _limits(loads: Sequence[Facts]) -> str:
    known = Facts(loads[0].group("goodput", "server")) if loads else Facts({})
    first, each = known.number("ttft_s"), known.number("tpot_s")
    if first is None or each is None:
        return ""
    return f"{significant(MS * first)} ms to the first token, {significant(MS * each)} ms per token"
