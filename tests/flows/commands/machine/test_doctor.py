"""`textmill doctor` finds what is wrong with a machine, under real limits."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.commands.machine.checks import disk, packages, shared_memory
from llm_core.memory_limit import memory_limit_bytes
from tasks.runtime.artifact import write_json
from tasks.runtime.code import ROOT

CHECKS = [
    "packages", "GPU", "memory", "shared memory", "disk of store", "disk of state", "clock",
    "open files", "processes", "locked memory", "ports of services", "serve.port",
]  # fmt: skip


def examined(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", "--json", *words])
    values = json.loads(capsys.readouterr().out)
    return code, {one["check"]: one for one in values["checks"]}


def in_shell(line: str, *prefix: str) -> tuple[int, dict[str, Any]]:
    """What the doctor finds after a line of shell."""
    command = f"{line} && exec {sys.executable} -m flows.cli doctor --json"
    done = subprocess.run(
        [*prefix, "sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, {one["check"]: one for one in json.loads(done.stdout)["checks"]}


def test_a_usable_machine_passes_every_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"store={tmp_path}/store", f"state={tmp_path}/state"]
    code, found = examined(capsys, *words)
    assert code == 0
    assert [name for name in found if name != "NCCL"] == CHECKS
    assert not [one for one in found.values() if one["state"] == "broken"]
    assert all(bool(one["advice"]) == (one["state"] != "ok") for one in found.values())
    # Nothing is left, and nothing is made.
    assert list(tmp_path.iterdir()) == []
    assert main(["doctor", *words]) == 0
    assert "a run can work" in capsys.readouterr().out


def test_few_open_files_and_processes_are_found() -> None:
    code, found = in_shell("ulimit -n 100")
    assert (code, found["open files"]["state"], found["open files"]["found"]) == (
        2,
        "broken",
        "100",
    )
    assert "ulimit -n" in found["open files"]["advice"]
    code, found = in_shell("ulimit -n 500 && ulimit -l 8")
    assert (code, found["open files"]["state"]) == (0, "costs")
    assert found["locked memory"]["found"] == "8 KiB"
    assert found["locked memory"]["state"] == "costs"


def test_taken_ports_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        write_json(tmp_path / "services.json", {"server": {"port": number}})
        code, found = examined(capsys, f"state={tmp_path}", f"serve.port={number}")
    assert code == 0
    assert found["serve.port"]["state"] == found["ports of services"]["state"] == "costs"
    assert str(number) in found["ports of services"]["found"]
    assert examined(capsys, f"state={tmp_path}")[1]["ports of services"]["state"] == "ok"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_is_found(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=1m tmpfs {tmp_path}"
    probe = ["unshare", "--mount", "sh", "-c", mount]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("this container may not mount")
    code, found = in_shell(f"{mount} && cd {tmp_path} && export PYTHONPATH={ROOT}", *probe[:2])
    assert (code, found["disk of store"]["state"]) == (2, "broken")
    assert "textmill gc" in found["disk of store"]["advice"]


def test_a_place_that_takes_no_file_is_found() -> None:
    found = disk("store", Path("/proc/textmill"))
    assert found.state == "broken" and "store" in found.advice


def test_a_cuda_run_without_gpus_cannot_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = examined(capsys, f"state={tmp_path}", "parallel.device=cuda")
    if found["GPU"]["found"].startswith("no NVIDIA"):
        assert (code, found["GPU"]["state"]) == (2, "broken")
    else:
        assert found["GPU"]["state"] == "ok"


def test_packages_that_are_missing_or_of_other_versions_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert packages().state == "ok"
    folder = tmp_path / "textmill-9.dist-info"
    folder.mkdir()
    about = "Metadata-Version: 2.1\nName: textmill\nVersion: 9\nRequires-Dist: torch<1\n"
    (folder / "METADATA").write_text(about + 'Requires-Dist: no-such-thing; extra == "x"\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    found = packages()
    assert found.state == "costs" and "torch" in found.found and "<1" in found.found
    (folder / "METADATA").write_text(about + "Requires-Dist: no-such-thing\n")
    assert packages().state == "broken" and "no-such-thing" in packages().found


def test_the_limit_of_a_container_is_read_in_both_versions(tmp_path: Path) -> None:
    assert memory_limit_bytes(tmp_path) is None
    old = tmp_path / "memory" / "memory.limit_in_bytes"
    old.parent.mkdir()
    old.write_text("9223372036854771712\n")
    assert memory_limit_bytes(tmp_path) is None
    old.write_text("2000000\n")
    assert memory_limit_bytes(tmp_path) == 2_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_limit_bytes(tmp_path) == 2_000_000
    (tmp_path / "memory.max").write_text("1000000\n")
    assert memory_limit_bytes(tmp_path) == 1_000_000


def test_little_shared_memory_is_found(tmp_path: Path) -> None:
    assert shared_memory(tmp_path / "none").state == "costs"
    assert shared_memory(tmp_path).state == "ok"
