"""`textmill calibrate` measures this machine, and the planner reads what it found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.cli import main


@pytest.mark.slow
def test_what_two_processes_measure_is_planned_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"state={tmp_path}", "parallel=ddp", "parallel.num_processes=2", "train.seq_len=64"]
    words += ["parallel.device=cpu", "tokenizer.vocab_size=512", "train.micro_batch_sequences=2"]
    assert main(["calibrate", "--json", *words]) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert json.loads((tmp_path / "hardware-2.json").read_text()) == record
    kinds = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"}
    assert record["hardware"]["links"].keys() == kinds
    assert main(["plan", "hardware=this", *words]) == 0
    planned = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert planned["hardware"]["links"] == record["hardware"]["links"]
    traffic = planned["time"]["traffic"]
    assert [row["axis"] for row in traffic] == ["ddp"] and traffic[0]["exposed_s"] > 0


def test_what_cannot_be_measured_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["calibrate", f"state={tmp_path}", "parallel.num_processes=2"]) == 2
    assert "needs a layout over processes" in capsys.readouterr().err
    assert main(["calibrate", f"state={tmp_path}", "folder=model"]) == 2
    assert "folder" in capsys.readouterr().err
    # Known in the process that measures alone.
    assert main(["calibrate", f"state={tmp_path}", "parallel=ddp", "parallel.device=cuda"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "GPUs, it shows 0" in error
    assert not list(tmp_path.glob("hardware-*"))
