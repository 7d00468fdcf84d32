"""Runs a whole flow as a cluster job and follows it: `cluster.submits=flow`.

The job is this command with `cluster.kind=local`, named after the key of what the flow makes,
in the current folder of the command. It answers by a file, `result.json`, with its exit code and
the summary of the run, which is written by this module as a program:
`python -m flows.cluster_job FILE FLOW OVERRIDE...`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flows.commands.table import FLOWS
from flows.compose import parse_override
from flows.console import set_up_console
from flows.exit_codes import exit_code
from flows.run import decide
from flows.run_config import RunConfig
from flows.stops import sigterm_raises
from llm_core.json_files import UnreadableJson, read_json
from tasks.clusters.job import Job, run_job
from tasks.clusters.scheduler import scheduler_of
from tasks.runtime.artifact import write_json
from tasks.runtime.code import ROOT
from tasks.runtime.environment import without_secrets
from tasks.runtime.stage import StageFailure, StageInterrupted
from tasks.runtime.store import now

RESULT_FILE = "result.json"
IN_JOB = ("cluster.kind=local", "cluster.submits=train")
# Takes words, not a line of shell; the first one is the folder.
FROM_FOLDER = 'cd "$1" && shift && exec "$@"'


def run_in_job(
    command: str, overrides: Sequence[str], config: RunConfig
) -> tuple[dict[str, Any], str]:
    """Summary and description of a flow that ran in a job.

    Raises StageInterrupted where the job was stopped and can resume, StageFailure where it failed.
    """
    job = flow_job(command, overrides, config)
    job.folder.mkdir(parents=True, exist_ok=True)
    file = job.folder / RESULT_FILE
    earlier = _read(file)
    with sigterm_raises():
        ended = run_job(
            scheduler_of(config.cluster),
            job,
            config.cluster,
            watch=lambda: None,
            is_finished=lambda: "summary" in _read(file),
        )
    result, kind = _read(file), config.cluster.kind
    if result == earlier and not ended.attached:
        result = {}
    code = result.get("code")
    if code == 0:
        return result["summary"], f"{kind} job {ended.job_id}; log {job.log}"
    if code == os.EX_TEMPFAIL:
        raise StageInterrupted(f"{kind} job {ended.job_id} was stopped and saved")
    how = ended.words if code is None else f"ended with code {code}"
    raise StageFailure(f"{command}: {kind} job {ended.job_id} {how}; whole log: {job.log}")


def flow_job(command: str, overrides: Sequence[str], config: RunConfig) -> Job:
    """A flow as a job. Raises ConfigError where its nodes would not see what it reads, or its
    devices cannot hold what it trains."""
    here = Path.cwd()
    for name, folder in (("store", config.store), ("state", config.state), ("cd", here)):
        config.cluster.require_shared(folder, name)
    _, plan = decide(config, FLOWS[command].target)
    config.require_fit(plan)
    name = f"textmill-{FLOWS[command].flow}-{plan[FLOWS[command].target].node.key}"
    folder = (config.state / "jobs" / name).resolve()
    python = "python" if config.cluster.kind == "kubernetes" else sys.executable
    module = (python, "-m", "flows.cluster_job", str(folder / RESULT_FILE))
    return Job(
        name=name,
        folder=folder,
        log=folder / "job.log",
        command=(
            *("bash", "-c", FROM_FOLDER, "textmill", str(here)),
            *(*module, command, *overrides_in_job(overrides)),
        ),
        environment=without_secrets() | {"PYTHONPATH": str(ROOT)},
        num_gpus=config.cluster.gpus_per_node or 0,
        grace_s=config.train.grace_s,
    )


def overrides_in_job(overrides: Sequence[str]) -> list[str]:
    """The same flow, run where it is."""
    kept = [*overrides, *IN_JOB]  # the last override counts
    given = {parse_override(text).key_or_group for text in overrides}
    # The job cannot reach a server of this machine, only one that a variable names.
    if "orchestrator" not in given and "PREFECT_API_URL" not in os.environ:
        kept.append("orchestrator=none")
    return kept


def _read(file: Path) -> dict[str, Any]:
    with suppress(FileNotFoundError, UnreadableJson):
        return dict(read_json(file))
    return {}


def main(file: str, command: str, *overrides: str) -> int:
    """Run a flow in this process and write how it ended; its exit code."""
    from flows.commands.runs import run_once  # which imports this module

    Path(file).unlink(missing_ok=True)
    set_up_console()
    result: dict[str, Any] = {}

    def run() -> int:
        result["summary"] = run_once(command, overrides)
        return 0

    code = exit_code(run)
    write_json(Path(file), {"code": code, "at": now(), **result})
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
