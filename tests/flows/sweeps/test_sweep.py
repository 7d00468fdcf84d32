"""What a sweep says of its runs is what they did, in whatever process; what it cannot run is
refused at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hydra.experimental.callback import Callback

from flows.conf_files import choices
from flows.sweeps.config import SweepConfig
from flows.sweeps.job import Ending
from flows.sweeps.points import dimensions, listed_points
from flows.sweeps.results import SweepResult
from llm_core.config import ConfigError
from tasks.runtime.code import ROOT
from tests.flows.conftest import RunCli

Start = Callable[..., subprocess.Popen[str]]

LAUNCHER = '''
"""Runs each job in a process of its own, and forgets what it gives; a job of KILLED is killed when it has begun."""
import os, pathlib, subprocess, sys, time
import cloudpickle
from hydra.core.config_store import ConfigStore
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from omegaconf import open_dict

CHILD = """
import multiprocessing, sys, cloudpickle
from multiprocessing import context
class Foreign(context.SpawnContext):
    _name = "foreign"
context._concrete_contexts["foreign"] = Foreign()
multiprocessing.set_start_method("foreign", force=True)
from hydra.core.utils import run_job, setup_globals
setup_globals()
with open(sys.argv[1], "rb") as handed:  # by the launcher below, as Hydra's own launchers do
    context, job, config = cloudpickle.load(handed)
run_job(job, config, "hydra.sweep.dir", "hydra.sweep.subdir", context)
"""


class Elsewhere(Launcher):
    def setup(self, *, hydra_context, task_function, config):
        self.context, self.job, self.config = hydra_context, task_function, config

    def launch(self, job_overrides, initial_job_idx):
        for number, overrides in enumerate(job_overrides, initial_job_idx):
            config = self.context.config_loader.load_sweep_config(self.config, list(overrides))
            with open_dict(config):
                config.hydra.job.num = number
            folder = pathlib.Path(self.config.hydra.sweep.dir)
            call = folder / f"{number}.pickle"
            call.write_bytes(cloudpickle.dumps((self.context, self.job, config)))
            child = subprocess.Popen([sys.executable, "-c", CHILD, str(call)])
            while child.poll() is None:
                if os.environ.get("KILLED") == str(number) and list(folder.glob(f"*/{number}.json")):
                    child.kill()
                time.sleep(0.01)
            if os.environ.get("STOPPED") == str(number):
                os.kill(os.getpid(), 15)
            if os.environ.get("GIVES_UP") == str(number):
                raise RuntimeError("no more machines")
        return [JobReturn() for _ in job_overrides]


ConfigStore.instance().store(
    group="hydra/launcher", name="elsewhere", node={"_target_": "hydra_plugins.elsewhere.Elsewhere"}, provider="test"
)
'''  # noqa: E501


@pytest.fixture
def sweep(tmp_path: Path) -> Start:
    """A sweep with jobs in other processes; a quarter of its records are bad."""
    (tmp_path / "hydra_plugins").mkdir()
    (tmp_path / "hydra_plugins/elsewhere.py").write_text(LAUNCHER)
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        (tmp_path / f"in/{name}.jsonl").write_text('{"text": "good"}\n' * 3 + "{broken\n")

    def start(*overrides: str, **environment: str) -> subprocess.Popen[str]:
        places = [f"{name}='{tmp_path / name}'" for name in ("store", "state")]
        source = [
            f"source.paths=['{tmp_path / 'in'}/']",
            "only=ingest",
            "tracking=off",
            "orchestrator=none",
        ]
        arguments = ["refresh", "-m", "hydra/launcher=elsewhere", *overrides, *source, *places]
        return subprocess.Popen(
            [sys.executable, "-m", "flows.cli", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def test_runs_in_other_processes_are_counted_as_they_ended(sweep: Start) -> None:
    process = sweep(
        "source.max_bad_frac=0.5,0.1,0.4", "num_workers=2", "runner=process", KILLED="2"
    )
    out, err = process.communicate()
    assert process.returncode == 2 and "run 2 of 3: source.max_bad_frac=0.1" in err, err
    assert (
        "sweep: 3 runs, 2 failed, 1 of them died without a result; MLflow" in err
        and "Traceback" not in err
    )
    *runs, last = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert len(runs) == 1 and (last["runs"], last["failed"]) == (3, 2)
    points = json.loads(Path(last["results"]).read_text())["points"]
    assert [point["state"] for point in points] == ["completed", "failed", "died"]


def test_a_launcher_that_gives_up_fails_what_it_has_not_begun(sweep: Start) -> None:
    process = sweep("source.max_bad_frac=0.5,0.4", "num_workers=1", GIVES_UP="0")
    _, err = process.communicate()
    assert process.returncode == 1 and "the launcher gave up: no more machines" in err, err
    assert "sweep: 2 runs, 1 failed, 1 not begun" in err and "Traceback" not in err


def test_sweep_that_is_stopped_while_others_run_its_jobs_says_so(
    sweep: Start, tmp_path: Path
) -> None:
    process = sweep("source.max_bad_frac=0.5,0.4", "num_workers=1", STOPPED="0")
    _, err = process.communicate()
    assert process.returncode == 143 and err.endswith(
        "the same command resumes here (stopped by signal 15)\n"
    ), err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("codes", "num_begun", "code", "outcome"),
    [
        ([0, 0], 2, 0, "completed"),
        ([0, 2], 2, 2, "failed"),
        ([2, 1], 2, 2, "failed"),
        ([0, None], 2, 1, "failed"),
        ([0, 143, None], 2, 143, "interrupted"),
        ([75, None], 1, 75, "interrupted"),
    ],
)
def test_code_and_outcome_of_a_sweep_are_those_of_its_runs(
    codes: list[int | None], num_begun: int, code: int, outcome: str
) -> None:
    endings = [Ending(number < num_begun, code) for number, code in enumerate(codes)]
    result = SweepResult([], endings, SweepConfig())
    assert (result.exit_code, result.outcome) == (code, outcome)


def test_a_defect_costs_its_own_point(
    stand_in_stages: list[str], run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_TROUBLE", "tokenizer:defect")
    result = run_cli("tokenizer", "-m", "tokenizer.seed=1,2")
    assert result["code"] == 1 and "sweep: 2 runs, 2 failed" in result["err"]
    assert (
        stand_in_stages.count("tokenizer") == 2 and result["err"].count("KeyError: 'a defect'") == 2
    )


@pytest.mark.parametrize(
    ("trouble", "code"), [("ctrl-c", 130), ("sigterm", 143), ("interrupted", 75)]
)
def test_a_stop_ends_the_sweep(
    trouble: str,
    code: int,
    stand_in_stages: list[str],
    run_cli: RunCli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("STAND_IN_TROUBLE", f"tokenizer:{trouble}")
    result = run_cli("tokenizer", "-m", "tokenizer.seed=1,2")
    assert result["code"] == code and stand_in_stages.count("tokenizer") == 1
    assert (
        "sweep: 2 runs, 2 failed, 1 not begun" in result["err"] and "Traceback" not in result["err"]
    )
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_lists_values_makes_points() -> None:
    assert listed_points(dimensions(["train.seed=range(1,4)"])) == [
        ["train.seed=1"],
        ["train.seed=2"],
        ["train.seed=3"],
    ]
    assert listed_points(dimensions(["optim.lr=choice(1e-3,3e-3)"])) == [
        ["optim.lr=0.001"],
        ["optim.lr=0.003"],
    ]
    assert listed_points(dimensions(["train.seed=sort(3,1)"])) == [
        ["train.seed=1"],
        ["train.seed=3"],
    ]
    assert sorted(listed_points(dimensions(["train.seed=shuffle(1,2)"]))) == [
        ["train.seed=1"],
        ["train.seed=2"],
    ]
    assert listed_points(dimensions(["train.seed=tag(mine,choice(1,2))"])) == [
        ["train.seed=1"],
        ["train.seed=2"],
    ]
    assert listed_points(dimensions(["tokenizer=glob(*)"])) == [
        [f"tokenizer={name}"] for name in choices("tokenizer")
    ]
    assert listed_points(dimensions(["tokenizer=glob([b*,u*])"])) == [
        ["tokenizer=bpe"],
        ["tokenizer=unigram"],
    ]


@pytest.mark.parametrize(
    "override",
    ["tokenizer=glob(zz*)", "optim.lr=glob(*)", "train.seed=range(3,1)", "optim.lr=interval(0,1)"],
)
def test_what_lists_no_value_is_refused(override: str) -> None:
    with pytest.raises(ConfigError, match="optim.lr|tokenizer|train.seed"):
        listed_points(dimensions([override]))


def test_a_shuffled_sweep_runs_the_points_that_were_checked(
    stand_in_stages: list[str], run_cli: RunCli
) -> None:
    result = run_cli("tokenizer", "-m", "tokenizer.seed=shuffle(range(1,9))")
    assert result["code"] == 0 and stand_in_stages.count("tokenizer") == 8


def test_batches_of_a_sweep_are_counted_together(
    stand_in_stages: list[str], run_cli: RunCli, tmp_path: Path
) -> None:
    result = run_cli("tokenizer", "-m", "tokenizer.seed=1,2,3", "hydra.sweeper.max_batch_size=2")
    assert result["code"] == 0 and "sweep: 3 runs, 0 failed" in result["err"]
    written = sorted((tmp_path / "state/sweeps").glob("*/*.json"))
    assert [p.name for p in written] == ["0.json", "1.json", "2.json", "sweep.json"]
    assert all(json.loads(p.read_text())["code"] == 0 for p in written[:3])


class Told(Callback):
    """Remembers what it was told."""

    events: ClassVar[list[str]] = []

    def on_multirun_start(self, config: Any, **about: Any) -> None:
        self.events.append("sweep begins")

    def on_job_end(self, config: Any, job_return: Any, **about: Any) -> None:
        self.events.append(f"job {config.hydra.job.num} ends")

    def on_multirun_end(self, config: Any, **about: Any) -> None:
        self.events.append("sweep ends")


def test_callbacks_of_hydra_are_called(stand_in_stages: list[str], run_cli: RunCli) -> None:
    Told.events.clear()
    named = f"+hydra.callbacks.mine={{_target_: {__name__}.Told}}"
    result = run_cli("tokenizer", "-m", "tokenizer.seed=1,2", named)
    assert result["code"] == 0, result["err"]
    assert Told.events == ["sweep begins", "job 0 ends", "job 1 ends", "sweep ends"]


def test_what_is_not_supported_is_refused_in_one_line(
    stand_in_stages: list[str], run_cli: RunCli
) -> None:
    for override, hint in {
        "hydra/sweeper=optuna": "search with sweep.sampler=tpe",
        "hydra.sweeper.params={optim.lr: '1,2'}": "as overrides",
        "hydra/launcher=nowhere": "hydra/launcher (nowhere) is not a choice",
        "hydra/launcher=basic,basic": "give one",
        "hydra.launcher.n_jobs=2": "hydra.launcher.n_jobs is not a known setting",
        "optim.lr=interval(1e-4,1e-2)": "search with sweep.sampler=tpe, or give values",
        "sweep.objective=val_bbp": "did you mean val_bpb?",
        "tokenizer=glob(zz*)": "gives no value",
        "--cfg": "give one of them",
    }.items():
        result = run_cli(
            "run",
            "-m",
            "optim.weight_decay=0,0.1",
            *([override, "job"] if override == "--cfg" else [override]),
        )
        assert result["code"] == 2 and hint in result["err"] and result["err"].count("\n") == 1, (
            override,
            result["err"],
        )
    assert stand_in_stages == []
