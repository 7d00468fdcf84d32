"""No secret that a run is given stands in anything that it leaves or prints."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.live.announced import run_name
from flows.tracking.runs import default_uri
from flows.under_prefect import reveal, withhold
from tasks.runtime.code import ROOT
from tasks.runtime.stage import StageFailure
from tests.flows.conftest import RunCli
from tests.support import stand_ins

SECRETS = [f"Pl4nted{number:02}x" for number in range(13)]


def raises(error: Exception) -> Callable[..., Any]:
    def stage(*_: Any) -> Any:
        raise error

    return stage


@pytest.mark.usefixtures("stand_in_stages")
def test_nothing_that_runs_leave_or_print_has_a_planted_secret(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def run(*arguments: str, code: int = 0, tracking: str = "local") -> None:
        result = run_cli(*arguments, tracking=tracking)
        assert result["code"] == code, result["err"]
        said.extend((result["out"], result["err"]))

    local = f"tracking.uri={default_uri(tmp_path / 'state')}"
    shards = stand_ins.shards
    # In an address of a tracker, a run and a sweep.
    run("refresh", f"tracking.uri=postgresql://me:{SECRETS[0]}@127.0.0.1:1/runs")
    run(
        "refresh",
        "-m",
        "tokenizer.vocab_size=300,400",
        f"tracking.uri=postgresql://me:{SECRETS[1]}@127.0.0.1:1/runs",
    )
    # In the environment, in an address of the source, and in settings that are in keys and
    # artifacts.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:{SECRETS[2]}@127.0.0.1:1")
    run("refresh", "tokenizer.vocab_size=500")
    run(
        "refresh", f"source.paths=['https://host/x.jsonl?sig={SECRETS[3]}']", "source=files", code=2
    )
    for column in (f"password={SECRETS[12]}", f"password={SECRETS[12]}2"):
        run("run", f"source.text_column='{column}'", local)
        run("plan", f"source.text_column='{column}3'", tracking="off")
    # In what stages raise and say, here and in a sweep.
    monkeypatch.setattr(
        stand_ins,
        "shards",
        raises(StageFailure(f"https://b/x?X-Amz-Signature={SECRETS[4]}&y=1 is gone")),
    )
    run("refresh", "tokenizer.vocab_size=600", "force=[shards]", local, code=2)
    monkeypatch.setattr(
        stand_ins, "shards", raises(KeyError(f"AWS_SECRET_ACCESS_KEY={SECRETS[5]}"))
    )
    run("refresh", "-m", "tokenizer.vocab_size=700", "force=[shards]", local, code=1)

    def speaks(*arguments: Any) -> Any:
        logging.getLogger("tasks").warning("refused Authorization: Bearer %s", SECRETS[6])
        return shards(*arguments)

    monkeypatch.setattr(stand_ins, "shards", speaks)
    run("refresh", "force=[shards]", local)
    # In settings that are refused, and in the configuration as it is shown.
    run("refresh", f"runner_address=tcp://me:{SECRETS[7]}@head:8786", code=2)
    run("refresh", f"tracking.uri='me:{SECRETS[8]}@host/token={SECRETS[8]}'", code=2)
    run(
        "run",
        "--cfg",
        "job",
        f"tracking.uri=postgresql://me:{SECRETS[9]}@host/runs",
        tracking="off",
    )

    left = {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    printed = {f"printed {number}": text.encode() for number, text in enumerate(said)}
    for name, content in {**left, **printed}.items():
        assert [secret for secret in SECRETS if secret.encode() in content] == [], name
    assert sum("artifact.json" in name for name in left) > 10 and any(
        "mlflow.db" in name for name in left
    )
    assert (
        b"***" in b"".join(printed.values())
        and sum(b"***" in content for content in left.values()) > 5
    )


def test_the_traceback_of_a_defect_has_no_secret(tmp_path: Path) -> None:
    code = (
        "import sys; from flows import cli; from flows.commands.unused import gc\n"
        f"def breaks(**_): raise KeyError('HF_TOKEN={SECRETS[10]}')\n"
        "gc.callback = breaks; sys.exit(cli.main(['gc']))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "HF_TOKEN=***" in done.stderr and "Traceback" in done.stderr


def test_flow_runs_are_given_masked_parameters_and_find_what_they_stand_for() -> None:
    told = "notify.email.to=[night@example.org]"
    overrides = ["run=demo", f"tracking.uri=http://me:{SECRETS[11]}@host", told]
    shown = withhold(overrides)
    masked = ["tracking.uri=http://me:***@host", "notify.email.to=***"]
    assert shown == ["run=demo", *masked] and reveal(shown) == overrides
    assert "night@" not in run_name("pipeline", [told])
    assert json.dumps(shown) and reveal(["other=1"]) == ["other=1"]
