"""What Slurm is asked for, and what its answers mean."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from tasks.clusters.commands import Refused
from tasks.clusters.config import ClusterConfig, SlurmConfig
from tasks.clusters.job import Job
from tasks.clusters.slurm import Slurm, batch_script, sbatch_options
from tests.support.clusters.fake_commands import put_on_path

SRUN = """#!/usr/bin/env python3
import json, os, sys
words = sys.argv[sys.argv.index("--") + 1:]
open("argv.json", "w").write(json.dumps([os.fsencode(word).hex() for word in words]))
sys.exit(int(os.environ.get("CODE", "0")))
"""
SCONTROL = '#!/bin/bash\necho "$@" >> scontrol.txt\n'
WORDS = st.lists(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
    | st.sampled_from(["$(touch x)", "`id`", "a'b", 'a"b', "*", "~", "a\nb", "--", "!!", "\\"]),
    min_size=1,
    max_size=5,
)


def make_job(folder: Path, command: tuple[str, ...] = ("true",), **fields: int) -> Job:
    return Job("textmill-train-0a", folder, folder / "log", command, {}, 0, 120.0, **fields)


def run_script(job: Job, config: ClusterConfig, **environment: str) -> subprocess.CompletedProcess:
    script = job.folder / "job.sh"
    script.write_text(batch_script(job, config), "utf-8")
    return subprocess.run(
        ["bash", str(script)],
        cwd=job.folder,
        env={**os.environ, "SLURM_JOB_ID": "7", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    put_on_path(tmp_path / "bin", monkeypatch, srun=SRUN, scontrol=SCONTROL)
    return tmp_path


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(WORDS)
def test_the_program_gets_every_word_as_it_is_whatever_is_in_it(
    commands: Path, words: list[str]
) -> None:
    done = run_script(make_job(commands, tuple(words)), ClusterConfig("slurm"))
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads((commands / "argv.json").read_text("utf-8"))
    assert [bytes.fromhex(word).decode() for word in found] == words
    assert {p.name for p in commands.iterdir()} == {"argv.json", "bin", "job.sh"}


@pytest.mark.parametrize(
    ("code", "restarts", "stopped", "again"),
    [
        (0, 0, False, False),
        (75, 0, False, True),
        (75, 3, False, False),
        (75, 0, True, False),
        (1, 0, False, True),
        (1, 1, False, False),
        (2, 0, False, False),
    ],
)
def test_a_job_goes_back_to_the_queue_where_it_saved_or_may_fail_again(
    code: int, restarts: int, stopped: bool, again: bool, commands: Path
) -> None:
    job = make_job(commands, max_restarts=1)
    if stopped:
        (commands / "stop").touch()
    config = ClusterConfig("slurm", max_requeues=3)
    done = run_script(job, config, CODE=str(code), SLURM_RESTART_COUNT=str(restarts))
    asked = commands / "scontrol.txt"
    assert (asked.exists() and asked.read_text("utf-8") == "requeue 7\n") == again
    assert done.returncode == (0 if stopped else code)


def test_what_a_job_asks_for_goes_to_sbatch_as_arguments(tmp_path: Path) -> None:
    options = {"partition": "gpu; rm -rf /", "exclusive": True, "nice": 5}
    config = ClusterConfig(
        "slurm",
        num_nodes=2,
        cpus_per_node=16,
        memory_gb_per_node=64,
        time_limit_min=90,
        slurm=SlurmConfig(options),
    )
    job = replace(make_job(tmp_path / "50%"), num_gpus=8)
    assert list(sbatch_options(job, config)) == [
        "--parsable",
        "--job-name=textmill-train-0a",
        f"--chdir={tmp_path}/50%",
        f"--output={tmp_path}/50%%/log",
        "--open-mode=append",
        "--requeue",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--signal=TERM@180",
        "--gpus-per-node=8",
        "--cpus-per-task=16",
        "--mem=61036M",
        "--time=90",
        "--partition=gpu; rm -rf /",
        "--exclusive",
        "--nice=5",
    ]


def test_lines_of_setup_run_before_the_program(commands: Path) -> None:
    config = ClusterConfig("slurm", slurm=SlurmConfig(setup=("export CODE=3",)))
    assert run_script(make_job(commands), config).returncode == 3


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"--partition": "gpu"}, "without leading dashes"),
        ({"job-name": "x"}, "set by textmill"),
        ({"comment": "a\nb"}, "one line"),
        ({"exclusive": False}, "or true"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        SlurmConfig(options)


LOST = "#!/bin/bash\necho 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1\n"
NO_ACCOUNTS = "#!/bin/bash\necho 'Slurm accounting storage is disabled' >&2; exit 1\n"


def say(text: str) -> str:
    return f"#!/bin/bash\necho '{text}'\n"


@pytest.mark.parametrize(
    ("squeue", "sacct", "phase", "words"),
    [
        (say("PENDING|Priority|"), LOST, "queued", "is queued (Priority)"),
        (say("RUNNING|None|n[1-2]"), LOST, "running", "runs on n[1-2]"),
        (say("COMPLETING|None|n1"), LOST, "running", "is COMPLETING"),
        (say("NODE_FAIL|NodeDown|n1"), LOST, "ended", "ended as NODE_FAIL on n1 (NodeDown)"),
        (LOST, say("OUT_OF_MEMORY|0:125|n1"), "ended", "OUT_OF_MEMORY on n1 (exit code 0:125)"),
        (LOST, say("CANCELLED by 1000|0:0|n1"), "ended", "ended as CANCELLED on n1"),
        (LOST, NO_ACCOUNTS, "gone", "vanished"),
    ],
)
def test_an_answer_of_slurm_says_how_a_job_stands(
    squeue: str,
    sacct: str,
    phase: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put_on_path(tmp_path / "bin", monkeypatch, squeue=squeue, sacct=sacct)
    seen = Slurm(ClusterConfig("slurm")).look("7")
    assert seen.phase == phase and words in seen.words


def test_a_controller_that_does_not_answer_is_not_taken_for_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = "#!/bin/bash\necho 'Unable to contact slurm controller' >&2; exit 1\n"
    put_on_path(tmp_path / "bin", monkeypatch, squeue=away)
    with pytest.raises(Refused, match="Unable to contact"):
        Slurm(ClusterConfig("slurm")).look("7")


def test_a_job_is_found_by_its_name_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = f"6|/another/store\n7|{tmp_path}"
    put_on_path(tmp_path / "bin", monkeypatch, squeue=say(listed))
    assert Slurm(ClusterConfig("slurm")).find(make_job(tmp_path)) == "7"
    assert Slurm(ClusterConfig("slurm")).find(make_job(tmp_path / "third")) is None


def test_a_submission_takes_nothing_of_the_allocation_it_is_made_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch = f'#!/bin/bash\nenv > {tmp_path}/env; echo "12;cluster"\n'
    put_on_path(tmp_path / "bin", monkeypatch, sbatch=sbatch)
    given = {"PATH": os.environ["PATH"], "SLURM_CONF": "c", "SLURM_JOB_ID": "3", "SBATCH_QOS": "q"}
    job = replace(make_job(tmp_path), environment=given)
    assert Slurm(ClusterConfig("slurm")).submit(job) == "12"
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text("utf-8").splitlines()}
    assert (tmp_path / "job.sh").stat().st_mode & 0o077 == 0
    assert "SLURM_CONF" in names and not names & {"SLURM_JOB_ID", "SBATCH_QOS"}
