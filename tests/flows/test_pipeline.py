"""Runs of the whole pipeline in this process, with stand-in stages."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flows.commands import runs
from flows.compose import RunConfig
from tasks.runtime.graph import STAGES, ancestors
from tasks.runtime.plan import Plan
from tasks.runtime.store import Store
from tests.flows.conftest import RunCli


def test_first_run_makes_every_stage_once_in_order(
    stand_in_stages: list[str], run_cli: RunCli
) -> None:
    result = run_cli("run")
    assert result["code"] == 0, result["err"]
    assert stand_in_stages == list(STAGES)
    summary = result["summary"]
    assert not any(stage["cached"] for stage in summary["stages"].values())
    assert (
        summary["vocab_size"],
        summary["val_bpb"],
        summary["bigram_bpb"],
        summary["unigram_bpb"],
    ) == (300, 1.4, 3.0, 4.0)
    assert summary["decode_tok_s"] == 123.0
    assert summary["stages"]["ingest"]["read"] == 10
    assert Path(summary["report"]).read_text() == "<html>report</html>"


def test_second_run_makes_nothing_and_tells_the_same(
    stand_in_stages: list[str], run_cli: RunCli
) -> None:
    first = run_cli("run")["summary"]
    stand_in_stages.clear()
    second = run_cli("run")["summary"]
    assert stand_in_stages == []
    assert all(stage["cached"] for stage in second["stages"].values())
    assert {n: s["key"] for n, s in first["stages"].items()} == {
        n: s["key"] for n, s in second["stages"].items()
    }
    assert first["report"] == second["report"]


def test_changed_setting_reruns_its_stage_and_what_follows(
    stand_in_stages: list[str], run_cli: RunCli
) -> None:
    run_cli("run")
    stand_in_stages.clear()
    result = run_cli("run", "tokenizer.vocab_size=512")
    assert stand_in_stages == ["tokenizer", "shards", "train", "evaluate", "bench", "report"]
    assert "changed vocab_size: 4096 → 512" in result["err"]
    assert "train" in result["err"] and "after shards, tokenizer" in result["err"]


def test_plan_says_why_and_runs_nothing(
    stand_in_stages: list[str], run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert f"{len(STAGES)} of {len(STAGES)} stages would run" in run_cli("plan")["out"]
    assert stand_in_stages == []
    first = run_cli("run")["summary"]
    assert f"0 of {len(STAGES)} stages would run" in run_cli("plan")["out"]
    assert f"2 of {len(STAGES)} stages would run" in run_cli("plan", "force=[bench]")["out"]
    shutil.rmtree(tmp_path / "store" / "train" / first["stages"]["train"]["key"])
    # Nothing needs the model as long as what was made of it is there.
    assert f"0 of {len(STAGES)} stages would run" in run_cli("plan")["out"]
    (tmp_path / "store" / "documents" / first["stages"]["documents"]["key"] / "out.txt").write_text(
        "shorter"
    )
    forced = run_cli("plan", "force=[report]")["out"]
    assert (
        "damaged: out.txt has 7 bytes" in forced
        and f"3 of {len(STAGES)} stages would run" in forced
    )
    num = len(ancestors("shards"))
    assert (
        f"{num} of {num} stages would run" in run_cli("plan", "refresh", "source.name=other")["out"]
    )


def test_controls_enter_no_key(stand_in_stages: list[str], run_cli: RunCli) -> None:
    run_cli("run")
    stand_in_stages.clear()
    assert run_cli("run", "runner=thread", "num_workers=2")["code"] == 0
    assert stand_in_stages == []


def test_flow_stops_at_its_target(stand_in_stages: list[str], run_cli: RunCli) -> None:
    result = run_cli("refresh")
    assert stand_in_stages[-1] == "shards" and "train" not in stand_in_stages
    assert result["summary"]["report"] is None and result["summary"]["val_bpb"] is None
    stand_in_stages.clear()
    run_cli("train")
    assert stand_in_stages == ["train"]
    stand_in_stages.clear()
    run_cli("bench")
    assert stand_in_stages == ["bench"], "a benchmark needs no evaluation"


def test_only_and_start_refuse_what_they_cannot_read(
    stand_in_stages: list[str], run_cli: RunCli
) -> None:
    result = run_cli("run", "only=train")
    assert result["code"] == 2 and "start/only leave it out" in result["err"]
    run_cli("run")
    stand_in_stages.clear()
    assert run_cli("run", "only=evaluate", "force=[evaluate]")["code"] == 0
    assert stand_in_stages == ["evaluate"]


def test_a_sweep_of_tokenizers_ends_with_a_page_and_a_recommendation(
    stand_in_stages: list[str], run_cli: RunCli, tmp_path: Path
) -> None:
    result = run_cli("tokenizer", "-m", "tokenizer.seed=1,2")
    assert (
        result["code"] == 0
        and stand_in_stages.count("tokenizer") == 2
        and "shards" not in stand_in_stages
    )
    assert result["summary"]["recommended"]["vocab_size"] == 300
    assert Path(result["summary"]["page"]).read_text("utf-8").count("300") >= 2


def test_a_sweep_says_which_part_of_it_is_not_on_the_page(
    stand_in_stages: list[str], run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = runs.decide

    def input_changes_for_the_second(config: RunConfig, until: str) -> tuple[Store, Plan]:
        store, plan = decide(config, until)
        return (Store(store.root / "other"), plan) if config.tokenizer.seed == 2 else (store, plan)

    monkeypatch.setattr(runs, "decide", input_changes_for_the_second)
    result = run_cli("tokenizer", "-m", "tokenizer.seed=1,2")
    assert "1 of 2 are not on the page" in result["out"] + result["err"]


def test_quarantined_records_are_said(stand_in_stages: list[str], run_cli: RunCli) -> None:
    result = run_cli("run")
    assert "completed with quarantine: 1 record could" in result["out"]
    assert "10 documents" in result["out"] and "100 tokens" in result["out"]


def test_stage_failure_is_one_line_and_exit_code_two(
    stand_in_stages: list[str], run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_TROUBLE", "quality:failure")
    result = run_cli("run")
    assert result["code"] == 2
    assert (
        result["err"].strip().splitlines()[-1]
        == "textmill: quality kept no document; loosen its thresholds"
    )
    assert "Traceback" not in result["err"]


def test_defect_raises(
    stand_in_stages: list[str], run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_TROUBLE", "quality:defect")
    with pytest.raises(KeyError, match="a defect"):
        run_cli("run")


@pytest.mark.parametrize(
    ("trouble", "code"), [("ctrl-c", 130), ("sigterm", 143), ("interrupted", 75)]
)
def test_stopped_run_says_so_and_the_next_goes_on(
    trouble: str,
    code: int,
    stand_in_stages: list[str],
    run_cli: RunCli,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("STAND_IN_TROUBLE", f"train:{trouble}")
    result = run_cli("run")
    assert result["code"] == code
    assert "textmill: stopped" in result["err"] and "Traceback" not in result["err"]
    assert signal.getsignal(signal.SIGTERM) is before
    (record,) = [json.loads(p.read_text()) for p in (tmp_path / "store" / ".runs").glob("*.json")]
    assert record["outcome"] == "interrupted"
    monkeypatch.setenv("STAND_IN_TROUBLE", "")
    stand_in_stages.clear()
    assert run_cli("run")["code"] == 0
    assert stand_in_stages == ["train", "evaluate", "bench", "report"]


def test_sweep_runs_each_point_and_survives_a_bad_one(
    stand_in_stages: list[str], run_cli: RunCli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    conf = Path(__file__).parents[2]
    (tmp_path / "data").symlink_to(conf / "data")
    result = run_cli("run", "-m", "tokenizer.vocab_size=300,400")
    assert result["code"] == 0, result["err"]
    summaries = [json.loads(line) for line in result["out"].splitlines() if line.startswith("{")]
    *summaries, swept = summaries  # the last line is that of the sweep
    assert swept["runs"] == 2 and swept["failed"] == 0
    assert len({s["stages"]["tokenizer"]["key"] for s in summaries}) == 2
    assert len({s["stages"]["documents"]["key"] for s in summaries}) == 1
    assert not (tmp_path / "outputs").exists() and not (tmp_path / "multirun").exists()
    stand_in_stages.clear()
    bad = run_cli("run", "-m", "tokenizer.vocab_size=500,3")
    assert bad["code"] == 2 and "vocab_size (3)" in bad["err"]
    assert stand_in_stages == [], "every point is checked before the first one runs"


def test_plan_imports_no_engine_and_no_orchestrator(places: list[str]) -> None:
    code = (
        "import sys; from flows.cli import main; assert main(sys.argv[1:]) == 0; print([m for m in"
        " ('torch', 'prefect', 'mlflow', 'numba', 'fasttext', 'sentencepiece') if m in"
        " sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "plan", "source=sample", *places],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_budget_of_faults_stops_a_run_and_a_looser_one_goes_on_with_what_was_read(
    run_cli: RunCli, tmp_path: Path
) -> None:
    (tmp_path / "my.jsonl").write_text('{"text": "good"}\n' * 8 + "{broken\n" * 2)
    source = ["source=files", f"source.paths=['{tmp_path / 'my.jsonl'}']", "only=ingest"]
    refused = run_cli("refresh", *source)
    (last,) = [line for line in refused["err"].splitlines() if line.startswith("textmill: ")]
    assert (
        refused["code"] == 2
        and "2 of 10 records (20.0 %) could not be read" in last
        and "my.jsonl line 9" in last
    )
    accepted = run_cli("refresh", *source, "source.max_bad_frac=0.2")
    assert accepted["code"] == 0 and accepted["summary"]["stages"]["ingest"]["cached"]
    assert "completed with quarantine: 2 records" in accepted["out"]
    assert run_cli("refresh", *source)["code"] == 2, (
        "a tighter budget is not forgotten for what is there"
    )
