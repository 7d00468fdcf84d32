from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from flows import cli
from flows.services.prefect_api import PrefectApi
from tasks.runtime.graph import STAGES
from tests.support import stand_ins

RunCli = Callable[..., dict[str, Any]]


@pytest.fixture
def stand_in_stages(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Replace every stage by a small one; gives the list of stages that were executed."""
    for name, stage in list(STAGES.items()):
        stand_in = dataclasses.replace(
            stage,
            module="tests.support.stand_ins",
            function=name,
            libraries=(),
            entry_points=(),
            accept=None,
        )
        monkeypatch.setitem(STAGES, name, stand_in)
    stand_ins.CALLS.clear()
    yield stand_ins.CALLS


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    """Overrides that keep everything below the test's own directory."""
    return [f"store={tmp_path / 'store'}", f"state={tmp_path / 'state'}"]


def require_refused(run_cli: RunCli, words: Sequence[str], line: str) -> None:
    """A command says in one line of stderr what is wrong, and ends with code 2."""
    result = run_cli(*words)
    assert result["code"] == 2 and line in result["err"]
    assert len(result["err"].strip().splitlines()) == 1


@pytest.fixture
def run_cli(places: list[str], capsys: pytest.CaptureFixture[str]) -> RunCli:
    """Run a command in this process without Prefect; gives exit code, the JSON of the last line,
    stdout and stderr.

    Reads the embedded corpus (source=sample) unless a source is given.
    """

    def run(*arguments: str, tracking: str = "off", orchestrator: str = "none") -> dict[str, Any]:
        capsys.readouterr()
        controls = [
            "source=sample",
            f"tracking={tracking}",
            f"orchestrator={orchestrator}",
            "num_workers=1",
        ]
        given = {argument.split("=")[0] for argument in arguments}
        bare = arguments == ("generate",)
        more = [] if bare else [*places, *(c for c in controls if c.split("=")[0] not in given)]
        code = cli.main([*arguments, *more])
        out, err = capsys.readouterr()
        last = out.strip().splitlines()[-1] if out.strip() else ""
        return {
            "code": code,
            "out": out,
            "err": err,
            "summary": json.loads(last) if last.startswith("{") else None,
        }

    return run


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """The command line sets environment variables for the programs it starts; they must not leak
    into other tests."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """A Prefect server with a database of its own; flow runs without the second their heartbeat
    takes to end."""
    os.environ["DO_NOT_TRACK"] = "true"
    os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] = "false"
    from prefect.settings import (
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
        PREFECT_LOGGING_TO_API_ENABLED,
        temporary_settings,
    )
    from prefect.testing.utilities import prefect_test_harness

    with (
        prefect_test_harness(server_startup_timeout=300),
        temporary_settings(
            {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None, PREFECT_LOGGING_TO_API_ENABLED: False}
        ),
    ):
        yield


@pytest.fixture
def api(prefect_server: None, monkeypatch: pytest.MonkeyPatch) -> PrefectApi:
    """The server that commands use."""
    from prefect.settings import get_current_settings

    url = str(get_current_settings().api.url)
    monkeypatch.setenv("PREFECT_API_URL", url)
    return PrefectApi(url)
