"""Shows how the run came to be: where the time went, the configuration of every stage, and the
lineage of every artifact."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from markupsafe import Markup

from tasks.report.charts import Chart, Mark, bars
from tasks.report.markup import aside, foreign, hashed
from tasks.report.page import Section
from tasks.report.quantities import (
    NOT_MEASURED,
    Facts,
    count,
    duration,
    moment,
    number,
    numbers,
    plural,
    share,
    size,
)
from tasks.report.run import Run

MOST_FILES = 200
"""Files listed per artifact; the rest is counted. A run with thousands of shards still gives a
readable page."""
MOST_ELEMENTS = 20


def configuration_section(run: Run) -> Section:
    finding = (
        "Every setting that decides a result, by stage. Settings that only change how a result is"
        " made are left out."
    )
    stages = []
    for stage, artifact in run.artifacts.items():
        settings = _flatten(artifact.config)
        rows = [(_code(name), foreign(value)) for name, value in settings]
        stages.append((stage + aside(f" {plural(len(rows), 'setting')}"), rows))
    return Section("configuration", "Configuration", finding, {"stages": stages})


def lineage_section(run: Run) -> Section:
    records = [run.record(stage) for stage in run.artifacts]
    hosts = {host for record in records if (host := record.text("host", "name"))}
    total = sum(record.number("elapsed_s") or 0 for record in records)
    finding = (
        f"{plural(len(run.artifacts), 'artifact')}, {duration(total)} of work on"
        f" {plural(len(hosts), 'host')}. A key is a digest of all that decides the result: code,"
        " settings, libraries, inputs, parents. Equal keys, equal results."
    )
    values = {
        "times": _times(run),
        "artifacts": [_artifact(run, stage) for stage in run.artifacts],
        "most_files": MOST_FILES,
        "details": {stage: _details(run, stage) for stage in run.artifacts},
    }
    return Section("lineage", "Lineage", finding, values)


def _flatten(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Settings by dotted path, in path order."""
    if isinstance(value, Mapping):
        return [
            pair
            for name in sorted(value)
            for pair in _flatten(value[name], f"{prefix}.{name}" if prefix else str(name))
        ]
    if isinstance(value, (list, tuple)):
        more = f" … {len(value) - MOST_ELEMENTS} more" if len(value) > MOST_ELEMENTS else ""
        shown = ", ".join(map(_setting, value[:MOST_ELEMENTS]))
        return [(prefix, shown + more or "(empty list)")]
    return [(prefix, _setting(value))]


def _setting(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    return str(value) if value != "" else "(empty)"


def _code(text: str) -> Markup:
    return Markup("<code>{}</code>").format(text)


def _times(run: Run) -> Chart | None:
    elapsed = numbers({s: run.record(s).number("elapsed_s") for s in run.artifacts})
    total = sum(elapsed.values())
    marks = []
    for stage, elapsed_s in elapsed.items():
        time, of_all = duration(elapsed_s), share(elapsed_s, total)
        title = f"{stage}: {time}, {of_all} of the sum"
        marks.append(Mark(stage, elapsed_s, f"{time} · {of_all}", title))
    return partial(bars, marks) if marks else None


def _artifact(run: Run, stage: str) -> tuple[Any, ...]:
    record = run.record(stage)
    link = Markup('<a href="#made-{0}">{0}</a>')
    made_from = record.group("identity", "parents")
    parents = [link.format(name) for name in run.artifacts if name in made_from]
    return (
        link.format(stage),
        hashed(run.artifacts[stage].key or NOT_MEASURED),
        Markup(" ").join(parents) or "files",
        hashed(record.text("identity", "code") or NOT_MEASURED),
        record.text("host", "name") or NOT_MEASURED,
        duration(record.number("elapsed_s")),
        size(record.number("peak_memory_bytes")),
    )


def _details(run: Run, stage: str) -> dict[str, Any]:
    record = run.record(stage)
    host, libraries = record.group("host"), record.group("identity", "libraries")
    at = [moment(t) for k in ("started_at", "finished_at") if (t := record.text(k))]
    times = map(duration, record.each("elapsed_s", "cpu_s"))
    machine = [f"{k} {host[k]}" for k in ("name", "machine", "python", "cpus") if k in host]
    device = record.text("identity", "device")
    facts = [
        ("key", run.artifacts[stage].key or NOT_MEASURED),
        ("started, finished", " – ".join(at) or NOT_MEASURED),
        ("wall, processor time", ", ".join(times)),
        ("host", ", ".join(machine) or NOT_MEASURED),
        ("libraries", ", ".join(f"{k} {v}" for k, v in libraries.items()) or "none declared"),
        *([("device", device)] if device else []),
        *((f"parent {k}", str(v)) for k, v in record.group("identity", "parents").items()),
        *_counters(run.counters(stage)),
    ]
    inputs = record.group("identity", "inputs").items()
    files = [
        (foreign(f.text("path") or "–"), _code(f.text("digest") or "–"), _size(f.number("size")))
        for f in record.rows("files")
    ]
    return {
        "facts": [(name, foreign(value)) for name, value in facts],
        "files": {
            "Inputs read": [(foreign(name), _code(str(digest)), "–") for name, digest in inputs],
            "Files": files,
        },
    }


def _counters(counters: Facts) -> list[tuple[str, str]]:
    flat: list[tuple[str, str]] = []
    for name, value in counters.group().items():
        if isinstance(value, Mapping):
            flat += [(f"{name}.{k}", count(n)) for k, n in sorted(numbers(value).items())]
        elif (n := number(value)) is not None:
            flat.append((name, count(n)))
    return flat


def _size(num_bytes: float | None) -> str:
    return size(num_bytes) if num_bytes is not None else "–"
