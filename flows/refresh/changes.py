"""Reports what a refresh changed since the run before it: one line, a page, and JSON.

The run before is the last completed one of the series whose data is in the store. Both files are
`<store>/.runs/changes/<run>.json` and `.html`, so the history of a series survives `textmill gc`.
A run of a named series that makes a report has the same in there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows.console import warn
from flows.records import RunRecord, read_records, runs_dir
from flows.refresh.config import RefreshConfig
from flows.refresh.series import completed_runs, recorded_series
from flows.run_config import RunConfig
from tasks.report.config import ComparedReportConfig, ReportConfig
from tasks.runtime.artifact import Artifact, ArtifactMismatch, write_json
from tasks.runtime.store import Node, Store


@dataclass(frozen=True)
class Changes:
    """What a run changed, and where that is written."""

    line: str
    found: Mapping[str, Any]
    file: Path
    page: Path | None = None

    @property
    def drifts(self) -> list[str]:
        """Measures that drift."""
        return list(self.found.get("drift", {}).get("drifts", ()))

    def summary(self) -> dict[str, Any]:
        """What the last line of a run has of it."""
        short = {k: self.found[k] for k in ("before", "nothing_new")}
        if documents := self.found.get("documents"):
            inputs = {k: v for k, v in self.found["inputs"].items() if k != "names"}
            short |= {"inputs": inputs, "documents": documents["kept"], "drifts": self.drifts}
        return short | {"file": str(self.file), "page": str(self.page) if self.page else None}


def changes_of(
    store: Store, record: RunRecord, artifacts: Mapping[str, Artifact], config: RefreshConfig
) -> Changes | None:
    """Compare a run that has made its data with the run before, and write what is found. None where
    there is no run before.

    A damaged artifact costs the comparison and not the run: it is one warning.
    """
    from tasks.analysis.changes import COMPARED, compare_nights
    from tasks.report.changes_page import changes_page, describe_changes

    if record.series is None or not set(COMPARED) <= set(artifacts):
        return None
    found = _run_before(store, record, COMPARED)
    if found is None:
        return None
    earlier, before = found
    file = runs_dir(store) / "changes" / f"{record.run_id}.json"
    file.parent.mkdir(exist_ok=True)
    said: dict[str, Any] = {"run": record.run_id, "series": record.series}
    said |= {"before": earlier.run_id, "before_started_at": earlier.started_at}
    if all(before[stage].key == artifacts[stage].key for stage in COMPARED):
        said["nothing_new"] = True
        write_json(file, said)
        return Changes(f"nothing new since run {earlier.run_id}", said, file)
    try:
        compared = compare_nights(artifacts, before, config.drift)
    except ArtifactMismatch as error:
        warn(f"what changed since run {earlier.run_id} is not known: {error}")
        return None
    said |= {"nothing_new": False, **compared, "limits": asdict(config.drift)}
    write_json(file, said)
    page = file.with_suffix(".html")
    html = changes_page(said, record.run_id, earlier.run_id, asdict(config.drift))
    page.write_text(html, "utf-8")
    line = f"since run {earlier.run_id}: {describe_changes(said)}"
    return Changes(line, said, file, page)


def report_config(config: RunConfig, before: Mapping[str, str]) -> ReportConfig:
    """The config of the report stage of a run that is compared with artifacts `before`, by their
    keys; of any other run where there are none."""
    if not before:
        return config.report
    return ComparedReportConfig(config.report.title, dict(before), config.refresh.drift)


def reported_before(
    config: RunConfig, store: Store, nodes: Mapping[str, Node]
) -> Mapping[str, str]:
    """{stage: key} that the report of a run is compared with: those of the newest completed run of
    its series, if that has a name, with other documents. Empty without such a run.

    Runs over one source are often experiments, of which none is the one before.
    """
    if config.refresh.series is None or recorded_series(config) is None or "report" not in nodes:
        return {}
    from tasks.analysis.changes import COMPARED

    for earlier in reversed(
        completed_runs(read_records(store), config.refresh.series, COMPARED[-1])
    ):
        if earlier.stages["documents"] != nodes["documents"].key:
            keys = {stage: earlier.stages[stage] for stage in COMPARED}
            there = all(store.find(stage, key) for stage, key in keys.items())
            return keys if there else {}
    return {}


def _run_before(
    store: Store, record: RunRecord, stages: tuple[str, ...]
) -> tuple[RunRecord, dict[str, Artifact]] | None:
    """The newest completed run of the series, and what it made of `stages`."""
    assert record.series is not None
    for earlier in reversed(completed_runs(read_records(store), record.series, stages[-1])):
        made = {stage: store.find(stage, earlier.stages[stage]) for stage in stages}
        there = {stage: artifact for stage, artifact in made.items() if artifact is not None}
        if earlier.run_id != record.run_id and len(there) == len(stages):
            return earlier, there
    return None
