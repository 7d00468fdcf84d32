"""A whole flow as a job gives what it gives here, and ends here as it ended there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.cluster_job import main, overrides_in_job, run_in_job
from flows.compose import compose
from llm_core.config import ConfigError
from llm_core.json_files import read_json
from tasks.runtime.stage import StageFailure, StageInterrupted
from tests.support.clusters.fake_commands import put_on_path
from tests.support.clusters.real_slurm import is_installed, slurm_cluster
from tests.support.whole_runs import contents, make_corpus, run, summary

needs_slurm = pytest.mark.skipif(not is_installed(), reason="needs Debian's slurmctld and slurmd")
JOB = ("cluster=slurm", "cluster.submits=flow", "cluster.poll_s=0.2")
# Runs the script of the job where sbatch is called.
SBATCH = """#!/bin/bash
for word; do case $word in --output=*) log=${word#*=};; esac; done
PATH=${0%/*}:$PATH SLURM_JOB_ID=7 bash "$word" >> "$log" 2>&1
echo 7
"""
IN_PLACE = ("orchestrator=none", "num_workers=1")
ENDED = "#!/bin/bash\ncase $* in *--name*) ;; *) echo 'FAILED|NonZeroExitCode|n1';; esac\n"


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm") / "cluster") as conf:
        yield conf


@pytest.mark.slow
@needs_slurm
def test_a_flow_in_a_job_makes_the_bytes_of_a_run_here_and_its_last_line(
    conf: Path, tmp_path: Path
) -> None:
    corpus = make_corpus(tmp_path / "corpus")
    here = run("refresh", corpus, tmp_path / "here")
    job = run("refresh", corpus, tmp_path / "job", *JOB, SLURM_CONF=str(conf))
    assert contents(tmp_path / "job") == contents(tmp_path / "here")
    keys = [{name: one["key"] for name, one in summary(d)["stages"].items()} for d in (here, job)]
    assert keys[0] == keys[1] and not any(s["cached"] for s in summary(job)["stages"].values())
    assert "submitted as slurm job" in job.stderr
    again = run("refresh", corpus, tmp_path / "job", *JOB, SLURM_CONF=str(conf))
    assert "slurm job" not in again.stderr, "nothing is left to do"


@pytest.mark.slow
@needs_slurm
def test_a_user_error_in_the_job_is_one_line_here(conf: Path, tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "corpus")
    budget = "source.max_bad_frac=0"
    failed = run("refresh", corpus, tmp_path, *JOB, budget, code=2, SLURM_CONF=str(conf))
    last = failed.stderr.splitlines()[-1]
    assert "refresh: slurm job" in last and "ended with code 2; whole log: " in last


def test_the_flow_in_the_job_runs_where_it_is() -> None:
    given = ["source=sample", "cluster=slurm", "cluster.submits=flow", "cluster.kind=slurm"]
    inside = overrides_in_job(given)
    config = compose(inside)
    assert (config.cluster.kind, config.cluster.submits) == ("local", "train")
    assert config.orchestrator == "none" and config.source == compose(["source=sample"]).source


def test_a_server_of_the_site_is_used_from_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://prefect.site/api")
    assert compose(overrides_in_job(["cluster=slurm"])).orchestrator == "prefect"


@pytest.mark.usefixtures("stand_in_stages")
def test_a_job_writes_what_its_run_gave(places: list[str], tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    assert main(str(file), "refresh", "source=sample", "tracking=off", *IN_PLACE, *places) == 0
    assert read_json(file)["summary"]["stages"]["shards"]["key"]
    assert main(str(file), "refresh", "sourse=sample", *IN_PLACE, *places) == 2
    assert "summary" not in read_json(file)


def test_what_the_run_gave_is_known_here_without_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_in_job(tmp_path, monkeypatch, {"code": 0, "at": "now", "summary": {"run_id": "a"}})
    overrides = given(tmp_path)
    assert run_in_job("refresh", overrides, compose(overrides))[0] == {"run_id": "a"}


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (75, StageInterrupted, "was stopped and saved"),
        (2, StageFailure, "ended with code 2; whole log: "),
        (None, StageFailure, "ended as FAILED on n1"),
    ],
)
def test_a_job_ends_here_as_its_result_says(
    code: int | None,
    error: type[Exception],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer_in_job(tmp_path, monkeypatch, {"code": code, "at": "now"} if code else None)
    overrides = given(tmp_path)
    with pytest.raises(error, match=words):
        run_in_job("refresh", overrides, compose(overrides))


def given(place: Path) -> list[str]:
    return ["source=sample", f"store='{place}/store'", f"state='{place}/state'", *JOB]


def answer_in_job(
    place: Path, monkeypatch: pytest.MonkeyPatch, result: dict[str, Any] | None
) -> None:
    """Let the job write nothing but this result."""
    write = f"echo '{json.dumps(result)}' > result.json" if result else ""
    code = 1 if result is None else result["code"]
    put_on_path(
        place / "bin",
        monkeypatch,
        sbatch=SBATCH.replace("PATH=", 'cd "$(dirname "$word")"; PATH='),
        srun=f"#!/bin/bash\n{write}\nexit {code}\n",
        squeue=ENDED,
        scontrol="#!/bin/bash\n",
    )


def test_a_folder_that_pods_would_not_see_is_refused(tmp_path: Path) -> None:
    overrides = ["cluster=kubernetes", f"store='{tmp_path}'", "cluster.kubernetes.mount=/shared"]
    with pytest.raises(ConfigError, match="store .* must lie below cluster.kubernetes.mount"):
        run_in_job("refresh", overrides, compose(overrides))


def test_a_flow_that_trains_more_than_its_devices_hold_is_not_submitted(tmp_path: Path) -> None:
    overrides = [*given(tmp_path), "hardware=h100", "hardware.memory_gb=0.01"]
    with pytest.raises(ConfigError, match="training needs .* H100 SXM has 0.01 GB"):
        run_in_job("train", overrides, compose(overrides))
    assert not (tmp_path / "state" / "jobs").exists()
