from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows import cli
from tasks.graph import STAGES
from tests.flows import stand_ins

RunCli = Callable[..., dict[str, Any]]


@pytest.fixture
def stand_in_stages(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Replace every stage by a small one; gives the list of stages that were executed."""
    for name, stage in list(STAGES.items()):
        stand_in = dataclasses.replace(
            stage,
            module="tests.flows.stand_ins",
            function=name,
            libraries=(),
            entry_points=(),
            reads_inputs=name == "ingest",
        )
        monkeypatch.setitem(STAGES, name, stand_in)
    stand_ins.CALLS.clear()
    yield stand_ins.CALLS


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    """Overrides that keep everything below the test's own directory."""
    return [f"store={tmp_path / 'store'}", f"state={tmp_path / 'state'}"]


@pytest.fixture
def run_cli(places: list[str], capsys: pytest.CaptureFixture[str]) -> RunCli:
    """Run a command in this process without Prefect; gives exit code, the JSON of the last line, stdout and stderr."""

    def run(*arguments: str, tracking: str = "off", orchestrator: str = "none") -> dict[str, Any]:
        capsys.readouterr()
        controls = [f"tracking={tracking}", f"orchestrator={orchestrator}", "num_workers=1"]
        code = cli.main([*arguments, *places, *(c for c in controls if not any(c.split("=")[0] + "=" in a for a in arguments))])
        out, err = capsys.readouterr()
        last = out.strip().splitlines()[-1] if out.strip() else ""
        return {"code": code, "out": out, "err": err, "summary": json.loads(last) if last.startswith("{") else None}

    return run
