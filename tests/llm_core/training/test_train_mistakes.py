"""What a user gets wrong in a training run is one line and exit code 2."""

import errno
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_core.checkpoint.writer import Writer
from llm_core.training.metric_log import read_rows
from llm_core.training.run_config import RunConfig
from llm_core.training.status import read_status
from llm_core.training.train import main, run
from llm_core.training.trainer import TrainingDiverged
from tests.support.engine.small_runs import (
    change_config,
    run_config,
    trainer_arguments,
    write_config,
)


def damage_metrics(folder: Path) -> None:
    (folder / "work").mkdir()
    (folder / "work" / "metrics.jsonl").write_bytes(b'{"step": 1}\n\x00\xff\n{"step": 3}\n')


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


MISTAKES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (
        lambda folder: (folder / "config.json").unlink(),
        "No such file or directory: .*config.json",
    ),
    "torn config": (
        lambda folder: (folder / "config.json").write_text("{", "utf-8"),
        "config.json is not JSON",
    ),
    "unknown setting": (
        lambda folder: change_config(folder, train__num_stepz=1),
        "did you mean num_steps",
    ),
    "place of a file": (
        lambda folder: (folder / "work").write_text("", "utf-8"),
        "File exists: .*work",
    ),
    "no launcher": (
        lambda folder: change_config(folder, parallel__kind="ddp", parallel__num_processes=2),
        "the processes started",
    ),
    "no shards": (
        lambda folder: change_config(folder, shards=str(folder)),
        "no shards of split 'train'",
    ),
    "no table": (
        lambda folder: change_config(folder, bytes_per_token=str(folder / "config.json")),
        "not a table of numbers",
    ),
    "damaged curve": (damage_metrics, "line 2 of .*metrics.jsonl is damaged .*delete that line"),
    "diverged": (
        lambda folder: change_config(folder, optim__lr=1e30, optim__warmup_steps=0),
        "lower optim.lr",
    ),
}


@pytest.mark.parametrize(("mistake", "line"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_of_the_user_is_one_line_and_code_two(
    mistake: Callable[[Path], object],
    line: str,
    config: RunConfig,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_config(tmp_path / "config.json", config)
    mistake(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["--config", str(tmp_path / "config.json"), "--workdir", str(tmp_path / "work")])
    told = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and len(told) == 1 and re.search(line, told[0]), told


def test_fewer_steps_than_there_are_is_refused_and_a_full_disk_is_named_though_it_holds_no_status(
    config: RunConfig,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = trainer_arguments(tmp_path, config)
    change_config(tmp_path, train__num_steps=4, optim__schedule="constant")
    main(arguments)
    change_config(tmp_path, train__num_steps=3)
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert (
        "num_steps (3) must not be below the newest checkpoint, step 4" in capsys.readouterr().err
    )
    change_config(tmp_path, train__num_steps=8)
    with monkeypatch.context() as patch, pytest.raises(SystemExit, match="2"):
        patch.setattr(Writer, "write", full_disk)
        patch.setattr(
            "llm_core.training.status.write_status",
            lambda path, outcome, *_, **__: outcome == "failed" and full_disk(),
        )
        main(arguments)
    told = capsys.readouterr().err.splitlines()
    assert (
        "status.json was not written" in told[0]
        and "checkpoint of step 8 was not written, rank 0" in told[1]
    )
    main(arguments)
    assert read_status(tmp_path / "work" / "status.json")["outcome"] == "finished"


@pytest.mark.parametrize(
    ("num_steps", "lr"), [(12, 1e30), (1, 1e40)]
)  # the second in the validation after its only step
def test_a_loss_that_is_no_number_stops_the_run(num_steps: int, lr: float, tmp_path: Path) -> None:
    import dataclasses

    config = run_config(tmp_path, train={"num_steps": num_steps})
    (tmp_path / "work").mkdir()
    wild = dataclasses.replace(
        config, optim=dataclasses.replace(config.optim, lr=lr, warmup_steps=0)
    )
    with pytest.raises(TrainingDiverged, match=r"step \d+: .*lower optim.lr"):
        run(wild, tmp_path / "work")
    rows = read_rows(tmp_path / "work" / "metrics.jsonl")
    assert all(abs(row["train_loss"]) < float("inf") for row in rows if "train_loss" in row)
