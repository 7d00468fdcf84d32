"""A run that was stopped, killed or torn ends with the bytes of one that was not."""

import dataclasses
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from unittest.mock import patch

import pytest

from flows.services.processes import descendants
from llm_core.data.config import DataConfig
from llm_core.model import init
from llm_core.training.metric_log import MetricLog, read_rows
from llm_core.training.run_config import RunConfig
from llm_core.training.status import read_status
from llm_core.training.train import main, run, run_in
from tasks.training.trainer_process import trainer_command, trainer_environment
from tests.support.engine.small_runs import (
    change_config,
    kill_trainer,
    result_bytes,
    run_config,
    signal_when,
    stop_and_resume,
    trainer_arguments,
    write_config,
    write_token_shards,
)

MODEL_FILES = ("config.json", "model.safetensors")


@pytest.fixture(scope="module")
def uninterrupted(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    workdir = tmp_path_factory.mktemp("uninterrupted")
    run(config, workdir)
    return result_bytes(workdir)


def test_training_lowers_the_loss_and_logs_every_step_once(uninterrupted: dict[str, bytes]) -> None:
    rows = [json.loads(line) for line in uninterrupted["metrics.jsonl"].splitlines()]
    steps = [row for row in rows if "train_loss" in row]
    assert [row["step"] for row in steps] == list(range(1, 21))
    assert [row["step"] for row in rows if "val_loss" in row] == [6, 12, 18, 20]
    assert steps[-1]["train_loss"] < steps[0]["train_loss"] - 0.3
    assert all(row.keys() == {"step", "train_loss", "lr", "grad_norm", "tokens"} for row in steps)


@pytest.mark.parametrize(("step", "number"), [(9, signal.SIGTERM), (12, signal.SIGUSR1)])
def test_asked_to_stop_it_saves_and_the_resumed_run_matches_uninterrupted_run(
    config: RunConfig,
    uninterrupted: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: int,
    number: int,
) -> None:
    with monkeypatch.context() as patch:
        signal_when(step, number, patch)
        run(config, tmp_path)
    status = read_status(tmp_path / "status.json")
    assert status["outcome"] == "preempted" and step <= status["step"] <= step + 1
    assert not (tmp_path / "model").exists()
    run(config, tmp_path)
    assert read_status(tmp_path / "status.json")["outcome"] == "finished"
    assert result_bytes(tmp_path) == uninterrupted
    assert happened(tmp_path) == [("preempted", status["step"]), ("resumed", status["step"])]


def test_kept_models_are_those_of_their_steps_whether_a_run_was_stopped_or_not(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(
        config, train=dataclasses.replace(config.train, keep_models_every=10)
    )
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    run(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        signal_when(12, signal.SIGTERM, patch)
        run(config, tmp_path / "stopped")
    run(config, tmp_path / "stopped")
    kept = [
        {
            str(file.relative_to(folder)): file.read_bytes()
            for file in sorted(folder.rglob("*"))
            if file.is_file()
        }
        for folder in (tmp_path / "whole/models", tmp_path / "stopped/models")
    ]
    names = {f"step-000000{n}/{name}" for n in (10, 20) for name in MODEL_FILES}
    assert kept[0].keys() == names and kept[0] == kept[1]
    for name in MODEL_FILES:
        last = (tmp_path / "whole/model" / name).read_bytes()
        assert kept[0][f"step-00000020/{name}"] == last
    early, late = (kept[0][f"step-000000{n}/model.safetensors"] for n in (10, 20))
    assert early != late


def happened(workdir: Path) -> list[tuple[str, int]]:
    """Events in the metrics, with the step that each is of."""
    return [
        (row["event"], row["step"])
        for row in read_rows(workdir / "metrics.jsonl")
        if "event" in row
    ]


def test_a_process_asked_to_stop_ends_with_the_code_for_try_again(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = trainer_arguments(tmp_path, config)
    with monkeypatch.context() as patch:
        signal_when(5, signal.SIGUSR1, patch)
        with pytest.raises(SystemExit) as ended:
            main(arguments)
    assert ended.value.code == 75
    main(arguments)
    assert read_status(tmp_path / "work" / "status.json")["outcome"] == "finished"


@pytest.mark.slow
def test_torchrun_starts_again_what_lost_a_process_and_ends_with_the_same_bytes(
    tmp_path: Path,
) -> None:
    parallel = {"kind": "ddp", "num_processes": 2, "max_restarts": 1}
    config = run_config(
        tmp_path,
        train={"num_steps": 80, "checkpoint_every": 5, "validate_every": 40},
        parallel=parallel,
    )
    environment = trainer_environment() | {"OMP_NUM_THREADS": "1"}
    for name in ("whole", "killed"):
        workdir = tmp_path / name
        workdir.mkdir()
        write_config(workdir / "config.json", config)
        with (workdir / "log").open("wb") as log:
            torchrun = subprocess.Popen(
                trainer_command(config, workdir),
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        while name == "killed" and len(list((workdir / "checkpoints").glob("step-*"))) < 2:
            assert torchrun.poll() is None, (workdir / "log").read_text("utf-8")
            time.sleep(0.01)
        if name == "killed":
            ranks = [
                pid
                for pid in descendants([torchrun.pid])[1:]
                if b"llm_core.training.train" in command_line(pid)
            ]
            os.kill(ranks[-1], signal.SIGKILL)
        assert torchrun.wait(250) == 0, (workdir / "log").read_text("utf-8")[-3000:]
    assert b"exitcode: -9" in (tmp_path / "killed" / "log").read_bytes(), (
        "torchrun saw a process die and went on"
    )
    assert result_bytes(tmp_path / "killed") == result_bytes(tmp_path / "whole")


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_status_says_how_far_the_run_is_while_it_runs(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, seen = MetricLog.write, []

    def look(self: MetricLog, row: dict[str, object]) -> None:
        write(self, row)
        if "train_loss" in row:
            # The beat is a thread's, which a busy machine may keep waiting.
            deadline = time.monotonic() + 10
            while (status := read_status(tmp_path / "status.json"))["step"] != row["step"]:
                assert time.monotonic() < deadline, f"no beat in ten seconds: {status}, {row}"
                time.sleep(0.01)
            seen.append((row["step"], status))

    monkeypatch.setattr("llm_core.training.status.BEAT_S", 0.005)
    monkeypatch.setattr(MetricLog, "write", look)
    run_in(tmp_path, config)
    assert [(status["outcome"], status["step"]) for _, status in seen] == [
        ("running", step) for step, _ in seen
    ]
    times = [status["at"] for _, status in seen]
    assert (
        times == sorted(times)
        and len(set(times)) == len(times)
        and all(status["pid"] == os.getpid() for _, status in seen)
    )


def test_initial_weights_are_drawn_only_by_a_run_that_begins_with_them(
    config: RunConfig, uninterrupted: dict[str, bytes], tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with patch.object(init, "draw_tile", wraps=init.draw_tile) as draw:
        run(config, first)
        assert draw.call_count > 0
        draw.reset_mock()
        run(config, first)
        train = dataclasses.replace(config.train, num_steps=1, init_from=first / "model")
        run(dataclasses.replace(config, train=train), second)
        draw.assert_not_called()
    assert result_bytes(first) == uninterrupted


def test_killed_run_resumes_to_the_same_bytes(
    config: RunConfig, uninterrupted: dict[str, bytes], tmp_path: Path
) -> None:
    workdir = tmp_path / "work"
    trainer = kill_trainer(tmp_path, config)
    status = read_status(workdir / "status.json")
    assert status["outcome"] == "died" and f"process {trainer.pid} on " in status["cause"]
    run(config, workdir)
    assert happened(workdir)[0] == ("died", status["step"])
    assert result_bytes(workdir) == uninterrupted


def test_torn_checkpoint_is_set_aside_for_the_one_before(
    config: RunConfig,
    uninterrupted: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as patch:
        signal_when(13, signal.SIGTERM, patch)
        run(config, tmp_path)
    newest, older = sorted((tmp_path / "checkpoints").iterdir(), reverse=True)
    data = next(newest.glob("rank-*.safetensors"))
    data.write_bytes(data.read_bytes()[:-100])
    (tmp_path / "checkpoints" / ".step-00000014.tmp").mkdir()
    run(config, tmp_path)
    assert int(older.name.removeprefix("step-")) < int(newest.name.removeprefix("step-"))
    assert result_bytes(tmp_path) == uninterrupted
    kept = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert kept == {"step-00000016", "step-00000020", f"{newest.name}.damaged"}
    assert f"{newest.name}.damaged" in capsys.readouterr().err
    torn, sound = (int(folder.name.removeprefix("step-")) for folder in (newest, older))
    assert happened(tmp_path) == [
        ("preempted", torn),
        ("damaged_checkpoint", torn),
        ("resumed", sound),
    ]


def test_without_a_sound_checkpoint_nothing_begins_until_a_restart_is_asked_for(
    config: RunConfig,
    uninterrupted: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = trainer_arguments(tmp_path, config)
    with monkeypatch.context() as patch, pytest.raises(SystemExit, match="75"):
        signal_when(9, signal.SIGTERM, patch)
        main(arguments)
    for data in (tmp_path / "work" / "checkpoints").glob("*/rank-*.safetensors"):
        data.write_bytes(data.read_bytes()[:-1] + b"\x55")
    for _ in range(2):
        capsys.readouterr()
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
        refusal = capsys.readouterr().err.splitlines()[-1]
        assert "none is sound" in refusal and "train.restart=true" in refusal
    assert len(list((tmp_path / "work" / "checkpoints").glob("*.damaged/rank-*.safetensors"))) == 2
    change_config(tmp_path, train__restart=True)
    main(arguments)
    assert result_bytes(tmp_path / "work") == uninterrupted
    assert [event for event, _ in happened(tmp_path / "work")].count("restarted") == 1
    assert len(list((tmp_path / "work" / "checkpoints").glob("*.damaged/rank-*.safetensors"))) == 2


@pytest.mark.parametrize("prefetch", [0, 3])
def test_packed_and_mixed_data_resume_to_the_same_bytes(prefetch: int, tmp_path: Path) -> None:
    mixture = {"0": {"walk": 1.0, "web": 0.0}, "5": {"walk": 2.0, "web": 1.0}}
    data = DataConfig(
        packing="best_fit", mixture=mixture, prefetch_batches=prefetch, verify_shards=True
    )
    config = run_config(tmp_path, train={"num_steps": 9, "checkpoint_every": 4, "data": data})
    write_token_shards(tmp_path / "shards", sources=("walk", "web"))
    (tmp_path / "whole").mkdir()
    run(config, tmp_path / "whole")
    stopped = stop_and_resume(config, tmp_path / "stopped", 6)
    assert result_bytes(stopped) == result_bytes(tmp_path / "whole")
    steps = [row for row in read_rows(tmp_path / "whole" / "metrics.jsonl") if "train_loss" in row]
    assert [row["by_source"].keys() for row in steps[:5]] == [{"walk"}] * 5, (
        "until the mixture takes the other"
    )
    assert {"walk", "web"} in [row["by_source"].keys() for row in steps[5:]]
    for row in steps:
        by_source = row["by_source"].values()
        mean = sum(one["train_loss"] * one["targets"] for one in by_source) / sum(
            one["targets"] for one in by_source
        )
        assert mean == pytest.approx(row["train_loss"], rel=1e-6)
    shares = read_status(tmp_path / "whole" / "status.json")["packing"]
    assert (
        shares["cropped_frac"] == 0
        and 0 <= shares["padding_frac"] < 0.2
        and shares["cut_documents_frac"] == 1
    )


def test_finished_run_only_exports_again(
    config: RunConfig, uninterrupted: dict[str, bytes], tmp_path: Path
) -> None:
    run(config, tmp_path)
    (tmp_path / "model" / "model.safetensors").unlink()
    before = (tmp_path / "timing.jsonl").read_bytes()
    run(config, tmp_path)
    assert result_bytes(tmp_path) == uninterrupted
    assert (tmp_path / "timing.jsonl").read_bytes() == before
