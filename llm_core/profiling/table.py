"""Turns a Chrome trace of torch.profiler into a table of times by kind of work.

`python -m llm_core.profiling.table TRACE.json.gz` shows it. Columns, in milliseconds of a step:

| column | what |
|---|---|
| `exposed_ms` | time in which this kind is what the step waits for; they add up to the step |
| `busy_ms` | time that its kernels or operators took, concurrent with others or not |
| `calls` | how many there were |

On a GPU the trace has kernels: a moment counts for computing where anything computes, for
communication where only that goes on, and is idle where no kernel runs; so the exposed time of
communication is what overlapping has not hidden. Kernels are the optimizer's that were launched
within its range. On a CPU operators count with their own time, less that of the operators they
call; communication goes on in threads of its own; and idle is time between operators: Python, and
waiting. Cost: one pass over the events of the trace. Left out: what runs within a kernel, and the
time that the profiler itself takes between operators.
"""

from __future__ import annotations

import argparse
import bisect
import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from llm_core.printing import percent, show
from llm_core.profiling.kinds import (
    COMMUNICATION,
    COPIES,
    IDLE,
    KINDS,
    OPTIMIZER,
    OPTIMIZER_MARK,
    kind_of_kernel,
    kind_of_operator,
)

STEP = "ProfilerStep#"
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
NUM_SHOWN = 20

Event = dict[str, Any]


class Span(NamedTuple):
    """Something that ran, in microseconds."""

    begin: float
    end: float
    kind: str
    name: str
    calls: int = 1
    """0 where it goes on, after what it called."""


@dataclass(frozen=True)
class Table:
    """device: cuda or cpu; rows: {kind, exposed_ms, share, busy_ms, calls}; top: by name."""

    device: str
    num_steps: int
    step_ms: float
    rows: list[dict[str, Any]]
    top: list[dict[str, Any]]

    def markdown(self) -> str:
        steps = f"{self.num_steps} steps of {self.step_ms:.2f} ms on {self.device}"
        lines = [f"{steps}; numbers are per step.", ""]
        lines += ["| kind | exposed ms | share | busy ms | calls |", "|---|---:|---:|---:|---:|"]
        for row in self.rows:
            numbers = (
                f"{row['exposed_ms']:.3f} | {percent(row['share'], '.1')} | {row['busy_ms']:.3f} |"
                f" {row['calls']:.1f}"
            )
            lines.append(f"| {row['kind']} | {numbers} |")
        lines += ["", "| longest | kind | busy ms | calls |", "|---|---|---:|---:|"]
        lines += [
            f"| `{row['name']}` | {row['kind']} | {row['busy_ms']:.3f} | {row['calls']:.1f} |"
            for row in self.top
        ]
        return "\n".join(lines) + "\n"


def read_trace(path: Path) -> list[Event]:
    """Events with a duration. Raises ValueError where the file is not a trace."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as stream:
        trace = json.load(stream)
    if not isinstance(trace, dict) or "traceEvents" not in trace:
        raise ValueError(
            f"{path} is not a Chrome trace: it has no traceEvents; give a file of torch.profiler"
        )
    return [event for event in trace["traceEvents"] if event.get("ph") == "X" and "dur" in event]


def tabulate(events: Sequence[Event]) -> Table:
    """Of the steps in a trace. Raises ValueError where it has none."""
    steps = [
        event
        for event in events
        if event["name"].startswith(STEP) and event.get("cat") == "user_annotation"
    ]
    if not steps:
        raise ValueError(
            f"the trace has no {STEP} ranges; record it with train.profile_steps, or call"
            " profiler.step()"
        )
    begin, end = min(map(_begin, steps)), max(map(_end, steps))
    spans = device_spans(events)
    device = "cuda" if spans else "cpu"
    spans = spans or host_spans(events, {(step["pid"], step["tid"]) for step in steps})
    spans = [span for span in spans if span.end > begin and span.begin < end]
    if device == "cuda":  # work that a step gave to the device may end after it
        end = max(end, *(span.end for span in spans))
    return _table(device, len(steps), spans, begin, end)


def device_spans(events: Sequence[Event]) -> list[Span]:
    """Kernels and copies, by kind; none in the trace of a CPU."""
    launched = {
        _correlation(event): _begin(event)
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver")
    }
    ranges = _optimizer_ranges(events)
    spans = []
    for event in events:
        if event.get("cat") not in ON_DEVICE:
            continue
        kind = kind_of_kernel(event["name"]) if event["cat"] == "kernel" else COPIES
        launch = launched.get(
            _correlation(event), float("-inf")
        )  # unknown where a graph launches many
        if kind != COMMUNICATION and _within(launch, ranges):
            kind = OPTIMIZER
        spans.append(Span(_begin(event), _end(event), kind, event["name"]))
    return spans


def host_spans(events: Sequence[Event], threads: set[tuple[Any, Any]]) -> list[Span]:
    """Own times of the operators of the threads that step, and communication in any thread."""
    ranges = _optimizer_ranges(events)
    spans = []
    by_thread: dict[tuple[Any, Any], list[Event]] = defaultdict(list)
    for event in events:
        thread = (event["pid"], event["tid"])
        if event.get("cat") == "cpu_op" and thread in threads:
            by_thread[thread].append(event)
        elif (
            event.get("cat") in ("cpu_op", "user_annotation")
            and kind_of_operator(event["name"]) == COMMUNICATION
        ):
            spans.append(Span(_begin(event), _end(event), COMMUNICATION, event["name"]))
    for own in by_thread.values():
        for begin, end, name, is_first in own_times(own):
            kind = kind_of_operator(name)
            kind = OPTIMIZER if kind != COMMUNICATION and _within(begin, ranges) else kind
            spans.append(Span(begin, end, kind, name, int(is_first)))
    return spans


def own_times(events: Sequence[Event]) -> list[tuple[float, float, str, bool]]:
    """(begin, end, name, is_first) of times in which an operator ran and none that it called."""
    found: list[tuple[float, float, str, bool]] = []
    open_: list[Event] = []  # operators that have begun, each called by the one before
    seen: set[int] = set()
    at = 0.0

    def advance(until: float) -> None:
        nonlocal at
        if open_ and until > at:
            found.append((at, until, open_[-1]["name"], id(open_[-1]) not in seen))
            seen.add(id(open_[-1]))
        at = max(at, until)

    for event in sorted(events, key=lambda event: (_begin(event), -event["dur"])):
        while open_ and _end(open_[-1]) <= _begin(event):
            advance(_end(open_[-1]))
            open_.pop()
        advance(_begin(event))
        open_.append(event)
    while open_:
        advance(_end(open_[-1]))
        open_.pop()
    return found


def exposed(spans: Sequence[Span], begin: float, end: float) -> dict[str, float]:
    """Microseconds of [begin, end] by the first kind that runs in each moment, else idle."""
    changes = [
        (min(max(time, begin), end), change, span.kind)
        for span in spans
        for time, change in ((span.begin, 1), (span.end, -1))
    ]
    # Between two changes in a row the same kinds run.
    running, found, at = Counter[str](), dict.fromkeys(KINDS, 0.0), begin
    for time, change, kind in sorted(changes):
        if time > at:
            found[next((kind for kind in KINDS if running[kind]), IDLE)] += time - at
            at = time
        running[kind] += change
    found[IDLE] += end - at
    return found


def _table(device: str, num_steps: int, spans: Sequence[Span], begin: float, end: float) -> Table:
    alone, to_ms = exposed(spans, begin, end), 1e-3 / num_steps
    busy, calls = defaultdict[tuple[str, str], float](float), Counter[tuple[str, str]]()
    for span in spans:
        busy[span.kind, span.name] += min(span.end, end) - max(span.begin, begin)
        calls[span.kind, span.name] += span.calls
    rows = [
        {
            "kind": kind,
            "exposed_ms": alone[kind] * to_ms,
            "share": alone[kind] / (end - begin),
            "busy_ms": sum(time for (of, _), time in busy.items() if of == kind) * to_ms,
            "calls": sum(number for (of, _), number in calls.items() if of == kind) / num_steps,
        }
        for kind in KINDS
    ]
    top = [
        {
            "name": name[:120],
            "kind": kind,
            "busy_ms": time * to_ms,
            "calls": calls[kind, name] / num_steps,
        }
        for (kind, name), time in sorted(busy.items(), key=lambda item: -item[1])[:NUM_SHOWN]
    ]
    return Table(device, num_steps, (end - begin) * to_ms, rows, top)


def _optimizer_ranges(events: Sequence[Event]) -> list[tuple[float, float]]:
    return sorted(
        (_begin(e), _end(e))
        for e in events
        if e["name"] == OPTIMIZER_MARK and e.get("cat") == "user_annotation"
    )


def _within(time: float, ranges: list[tuple[float, float]]) -> bool:
    place = bisect.bisect_right(ranges, (time, float("inf"))) - 1
    return place >= 0 and time <= ranges[place][1]


def _correlation(event: Event) -> Any:
    """What a kernel and the call that launched it have in common."""
    return event.get("args", {}).get("correlation")


def _begin(event: Event) -> float:
    return float(event["ts"])


def _end(event: Event) -> float:
    return float(event["ts"]) + float(event["dur"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "trace", type=Path, help="Chrome trace of torch.profiler, .json or .json.gz"
    )
    show(tabulate(read_trace(parser.parse_args().trace)).markdown(), end="")


if __name__ == "__main__":
    main()
