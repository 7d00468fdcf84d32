"""Runs are checked before they are queued, and anybody sees how all of them stand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from flows.commands import queue
from flows.commands.table import FLOWS
from flows.compose import compose
from flows.live.announced import announced
from llm_core.config import ConfigError
from tasks.runtime.code import ROOT
from tests.flows.conftest import RunCli


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["submit"], "submit needs a flow first"),
        (["submit", "optim.lr=1"], "submit needs a flow first"),
        (["submit", "refrsh"], "refrsh is not a flow; did you mean refresh"),
        (["submit", "run", "optim.lr=abc"], "optim.lr"),
        (["submit", "run", "+typo=1"], "typo is not a known setting"),
        (["submit", "run", "source=files", "source.paths=[/nowhere/x]"], "/nowhere/x"),
        (["submit", "run", "tracking.uri=http://me:word@host/x"], "holds a secret"),
        (["schedule", "refresh", "optim.lr=abc"], "optim.lr"),
        (["submit", "run", "notify.webhook=https://chat.test/T0/word@"], "notify.webhook_env"),
        (["schedule", "run", "++notify.webhook='https://chat.test/word@'"], "notify.webhook_env"),
    ],
)
def test_what_would_fail_later_is_refused_before_it_is_queued(
    words: list[str], line: str, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("nothing is asked of a server")

    monkeypatch.setattr(queue, "ensure_server", never)
    result = run_cli(*words)
    assert result["code"] == 2 and line in result["err"], result["err"]
    assert result["err"].count("\n") == 1 and "word@" not in result["err"]


def test_path_that_starts_in_another_folder_than_the_worker_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "crawl").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"write {tmp_path}/crawl"):
        queue._require_absolute("source.paths=[crawl]")
    queue._require_absolute(f"source.paths=[{tmp_path}/crawl]")
    monkeypatch.chdir(ROOT)
    queue._require_absolute("source.paths=[data]")


def test_every_flow_has_the_deployment_that_it_is_queued_on() -> None:
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text("utf-8"))["deployments"]
    made = {(one["entrypoint"].partition(":")[2], one["name"]) for one in deployments}
    assert {(entry.flow, entry.deployment) for entry in FLOWS.values()} <= made
    assert all(one["tags"] == ["textmill"] for one in deployments), "by it dead ones are known"


def test_status_needs_no_server(run_cli: RunCli, places: list[str]) -> None:
    config = compose(places)
    with announced("pipeline", ["optim.lr=2e-3"], config) as live:
        live.note_stage("dedup", "0" * 16)
        shown = run_cli("status")
        assert shown["code"] == 0 and "no Prefect server" in shown["out"]
        assert any(
            line.split()[:4] == ["live", "pipeline", "optim.lr=2e-3", "dedup"]
            for line in shown["out"].splitlines()
        )
        assert max(map(len, shown["out"].splitlines())) <= 80
        (run,) = json.loads(run_cli("status", "--json")["out"])["live"]
        assert (run["name"], run["stage"]) == ("pipeline optim.lr=2e-3", "dedup")
    assert "no live, queued or dead runs" in run_cli("status")["out"]
