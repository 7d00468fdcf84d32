"""How it came to be: where the time went, the configuration of every stage, and the lineage of
every artifact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.report.charts import Bar, bars
from tasks.report.markup import Markup, foreign, tag
from tasks.report.page import Section, absent, figure, folded, table
from tasks.report.quantities import (
    NOT_MEASURED,
    Facts,
    count,
    duration,
    moment,
    number,
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
    pieces = []
    for stage, artifact in run.artifacts.items():
        rows = [(tag("code", name), foreign(value)) for name, value in _flatten(artifact.config)]
        content = (
            table(None, ("setting", "value"), rows, left=2)
            if rows
            else tag("p", "No settings were recorded.", class_="note")
        )
        pieces.append(
            folded(
                [stage, tag("span", f" {plural(len(rows), 'setting')}", class_="aside")], content
            )
        )
    return Section("configuration", "Configuration", finding, pieces)


def lineage_section(run: Run) -> Section:
    hosts = {host for stage in run.artifacts if (host := run.record(stage).text("host", "name"))}
    total = sum(run.record(stage).number("elapsed_s") or 0 for stage in run.artifacts)
    finding = (
        f"{plural(len(run.artifacts), 'artifact')}, {duration(total)} of work on"
        f" {plural(len(hosts), 'host')}. A key is a digest of all that decides the result: code,"
        " settings, libraries, inputs, parents. Equal keys, equal results."
    )
    details = [_details(run, stage) for stage in run.artifacts]
    return Section("lineage", "Lineage", finding, [_times(run), _lineage_table(run), *details])


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
        return [
            (prefix, ", ".join(_setting(v) for v in value[:MOST_ELEMENTS]) + more or "(empty list)")
        ]
    return [(prefix, _setting(value))]


def _setting(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    return str(value) if value != "" else "(empty)"


def _times(run: Run) -> Markup:
    elapsed = {stage: run.record(stage).number("elapsed_s") for stage in run.artifacts}
    known = {stage: seconds for stage, seconds in elapsed.items() if seconds is not None}
    if not known:
        return absent("Where the time went", "The time of each stage")
    total = sum(known.values())
    marks = [
        Bar(
            stage,
            s,
            f"{duration(s)} · {share(s, total)}",
            f"{stage}: {duration(s)}, {share(s, total)} of the sum",
        )
        for stage, s in known.items()
    ]
    note = (
        "Wall time of each stage when its artifact was made, which may have been in an earlier run."
    )
    return figure("Where the time went", lambda width: bars(marks, width), note)


def _lineage_table(run: Run) -> Markup:
    rows = []
    for stage, artifact in run.artifacts.items():
        record = run.record(stage)
        parents = [
            [tag("a", parent, href=f"#made-{parent}"), " "] for parent in _parents(run, stage)
        ]
        rows.append(
            (
                tag("a", stage, href=f"#made-{stage}"),
                tag("code", artifact.key or NOT_MEASURED, class_="hash"),
                parents or "files",
                tag("code", record.text("identity", "code") or NOT_MEASURED, class_="hash"),
                record.text("host", "name") or NOT_MEASURED,
                duration(record.number("elapsed_s")),
                size(record.number("peak_memory_bytes")),
            )
        )
    note = (
        "Made from: the stages whose artifacts it took. Code: digest of the stage's source and of"
        " all it imports. Peak memory is that of the process or its largest child."
    )
    columns = ("stage", "key", "made from", "code", "host", "time", "peak memory")
    return table("Artifacts", columns, rows, note, left=5)


def _parents(run: Run, stage: str) -> list[str]:
    return [
        name for name in run.artifacts if name in run.record(stage).group("identity", "parents")
    ]


def _details(run: Run, stage: str) -> Markup:
    record = run.record(stage)
    host = record.group("host")
    facts = [
        ("key", run.artifacts[stage].key or NOT_MEASURED),
        (
            "started, finished",
            " – ".join(moment(t) for k in ("started_at", "finished_at") if (t := record.text(k)))
            or NOT_MEASURED,
        ),
        (
            "wall, processor time",
            f"{duration(record.number('elapsed_s'))}, {duration(record.number('cpu_s'))}",
        ),
        (
            "host",
            ", ".join(f"{k} {host[k]}" for k in ("name", "machine", "python", "cpus") if k in host)
            or NOT_MEASURED,
        ),
        (
            "libraries",
            ", ".join(f"{k} {v}" for k, v in record.group("identity", "libraries").items())
            or "none declared",
        ),
        *([("device", device)] if (device := record.text("identity", "device")) else []),
        *(
            (f"parent {name}", str(key))
            for name, key in record.group("identity", "parents").items()
        ),
        *_counter_rows(run.counters(stage)),
    ]
    inputs = list(record.group("identity", "inputs").items())
    pieces = [
        table(None, ("", "value"), [(name, foreign(value)) for name, value in facts], left=2),
        _files("Inputs read", [(str(name), None, str(digest)) for name, digest in inputs]),
        _files(
            "Files",
            [
                (f.text("path") or "–", f.number("size"), f.text("digest") or "–")
                for f in record.rows("files")
            ],
        ),
    ]
    return folded(f"{stage}: files, counters and versions", pieces, anchor=f"made-{stage}")


def _counter_rows(counters: Facts) -> list[tuple[str, str]]:
    flat: list[tuple[str, str]] = []
    for name, value in counters.group().items():
        if isinstance(value, Mapping):
            flat.extend(
                (f"{name}.{k}", count(n))
                for k, v in sorted(value.items())
                if (n := number(v)) is not None
            )
        elif (n := number(value)) is not None:
            flat.append((str(name), count(n)))
    return flat


def _files(title: str, files: list[tuple[str, float | None, str]]) -> Markup | None:
    if not files:
        return None
    rows = [
        (foreign(name), tag("code", digest), size(n) if n is not None else "–")
        for name, n, digest in files[:MOST_FILES]
    ]
    note = (
        f"{len(files) - MOST_FILES} more are in artifact.json." if len(files) > MOST_FILES else None
    )
    return table(title, ("file", "digest (BLAKE2b)", "size"), rows, note, left=2)
