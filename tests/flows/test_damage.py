"""Damaged artifacts are found by the run that meets them, said in one line and rebuilt; `textmill
verify` finds all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from flows import cli
from tasks.runtime import soundness
from tasks.runtime.artifact import ARTIFACT_FILE
from tasks.runtime.code import ROOT
from tasks.runtime.graph import STAGES
from tasks.runtime.store import Store
from tests.flows.conftest import RunCli

verify_command: Any = import_module("flows.commands.verify")


def flip(file: Path) -> None:
    """Another byte in the middle, under the old time of modification."""
    times = file.stat()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


HARMS: dict[str, Callable[[Path], object]] = {
    "flipped": flip,
    "truncated": truncate,
    "deleted": Path.unlink,
}


@pytest.fixture
def made(
    stand_in_stages: list[str], run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Path]:
    """{stage: folder of its artifact} of a finished run, all remembered as sound."""
    monkeypatch.setattr(soundness, "SETTLED_S", 0.0)
    first = run_cli("run")["summary"]
    run_cli("run")
    stand_in_stages.clear()
    return {
        name: tmp_path / "store" / name / stage["key"] for name, stage in first["stages"].items()
    }


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("name", ["out.txt", ARTIFACT_FILE])
def test_damage_to_every_stage_is_said_once_each_and_rebuilt(
    name: str, harm: str, made: dict[str, Path], stand_in_stages: list[str], run_cli: RunCli
) -> None:
    for path in made.values():
        HARMS[harm](
            path / ("report.html" if path.parent.name == "report" and name == "out.txt" else name)
        )
    result = run_cli("run")
    assert result["code"] == 0 and stand_in_stages == list(STAGES)
    for stage, path in made.items():
        said = [
            line
            for line in result["err"].splitlines()
            if line.startswith(f"{stage} {path.name}: damaged: ")
        ]
        assert len(said) == 1 and "; rebuilding" in said[0], result["err"]
    stand_in_stages.clear()
    assert run_cli("run")["code"] == 0 and stand_in_stages == []


@pytest.mark.parametrize("stage", [name for name in STAGES if name != "report"])
def test_a_flipped_byte_costs_its_own_stage_only(
    stage: str,
    made: dict[str, Path],
    stand_in_stages: list[str],
    run_cli: RunCli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    flip(made[stage] / "out.txt")
    assert "damaged: out.txt has changed content" in run_cli("plan")["out"]
    assert run_cli("run")["code"] == 0
    assert stand_in_stages == ([stage, "report"] if STAGES[stage].measured else [stage])


def test_damage_that_start_leaves_out_is_one_line_and_the_way_out_works(
    made: dict[str, Path], stand_in_stages: list[str], run_cli: RunCli
) -> None:
    flip(made["shards"] / "out.txt")
    refused = run_cli("run", "start=train", "train.num_steps=7")
    assert refused["code"] == 2 and refused["err"].count("\n") == 1 and stand_in_stages == []
    assert f"shards {made['shards'].name} is damaged: out.txt has changed content" in refused["err"]
    assert run_cli("run", "train.num_steps=7")["code"] == 0
    assert stand_in_stages == ["shards", "train", "evaluate", "bench", "report"]


def test_what_is_damaged_while_a_stage_reads_it_is_one_line(
    made: dict[str, Path],
    stand_in_stages: list[str],
    run_cli: RunCli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tests.support import stand_ins

    def breaks(*arguments: object) -> None:
        flip(made["shards"] / "out.txt")
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    monkeypatch.setattr(stand_ins, "train", breaks)
    result = run_cli("run", "force=[train]")
    assert result["code"] == 2 and "Traceback" not in result["err"]
    assert (
        f"train: shards {made['shards'].name} is damaged: out.txt has changed content; run again"
        in result["err"]
    )


@pytest.mark.parametrize(
    "command",
    [["generate", "Once"], ["export-shards", "megatron", "DIR"], ["explain", "x"], ["hits"]],
)
def test_commands_that_read_artifacts_name_the_damaged_one(
    command: list[str], made: dict[str, Path], run_cli: RunCli, tmp_path: Path
) -> None:
    for path in made.values():
        flip(path / ("report.html" if path.parent.name == "report" else "out.txt"))
    more = [
        f"run={json.loads(p.read_text())['run_id']}"
        for p in (tmp_path / "store/.runs").glob("*.json")
    ][:1]
    command = [str(tmp_path / "out") if word == "DIR" else word for word in command]
    result = run_cli(*command, *(more if command[0] in ("explain", "hits") else []))
    assert result["code"] == 2 and result["err"].count("\n") == 1
    assert "damaged: out.txt has changed content" in result["err"]


def test_verify_names_every_damaged_file_and_repair_leaves_a_sound_store(
    made: dict[str, Path], stand_in_stages: list[str], run_cli: RunCli, tmp_path: Path
) -> None:
    assert run_cli("verify")["code"] == 0
    other = run_cli("refresh", "source.name=other")["summary"]["stages"]
    stand_in_stages.clear()
    flip(made["quality"] / "out.txt")
    (made["bench"] / ARTIFACT_FILE).unlink()
    truncate(tmp_path / "store/documents" / other["documents"]["key"] / "out.txt")
    found = run_cli("verify")
    assert found["code"] == 1 and stand_in_stages == []
    wrong = {(d["stage"], *d["wrong"]) for d in found["summary"]["damaged"]}
    assert ("quality", "out.txt has changed content") in wrong and (
        "bench",
        "artifact.json is gone",
    ) in wrong
    assert len(wrong) == 3 and all(what in found["out"] for _, what in wrong)

    repaired = run_cli("verify", "--repair")
    assert repaired["code"] == 0 and repaired["summary"]["left"] == 0
    assert stand_in_stages == ["quality", "bench", "report"], (
        "what this configuration names is rebuilt"
    )
    assert "set aside" in repaired["err"], "and what it does not name is only removed"
    after = run_cli("verify")
    assert after["code"] == 0 and after["summary"]["damaged"] == []
    stand_in_stages.clear()
    assert run_cli("refresh", "source.name=other")["code"] == 0 and stand_in_stages == []
    assert Store(tmp_path / "store").damage("documents", other["documents"]["key"]) == "missing"


def test_verify_moves_nothing_that_a_store_did_not_make(
    made: dict[str, Path], run_cli: RunCli, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    letter = store / "letters" / "2024" / "letter.txt"
    draft = store / "train" / "drafts" / "draft.txt"
    for file in (letter, draft):
        file.parent.mkdir(parents=True)
        file.write_text("dear")
    assert run_cli("verify")["code"] == 0
    flip(made["quality"] / "out.txt")
    (store / ".textmill-store").unlink()
    refused = run_cli("verify", "--repair")
    assert refused["code"] == 2 and "has no .textmill-store" in refused["err"]
    assert letter.read_text() == draft.read_text() == "dear" and made["quality"].is_dir()


def test_repair_without_a_source_sets_aside_what_is_damaged(
    made: dict[str, Path], places: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    flip(made["quality"] / "out.txt")
    assert (
        cli.main(
            ["verify", "--repair", *places, "tracking=off", "orchestrator=none", "num_workers=1"]
        )
        == 0
    )
    assert "set aside" in capsys.readouterr().err and not made["quality"].exists()


HOLDER = """
import sys
from pathlib import Path
from tasks.runtime.store import Node, Store
root, stage, key = sys.argv[1:]
with Store(Path(root)).hold(Node(stage, key, key, {}, {}), print):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held(store: Path, stage: str, key: str) -> Iterator[int]:
    """A process that makes a key, as another run does; its id."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(store), stage, key],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process.pid
        process.communicate()
    assert process.returncode == 0


def test_repair_leaves_alone_what_another_process_is_making(
    made: dict[str, Path], places: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = made["quality"]
    part = tmp_path / "store" / ".parts" / "quality" / artifact.name / "part"
    part.mkdir(parents=True)
    (part / "part.json").write_text("{}")
    flip(artifact / "out.txt")
    words = ["verify", "--repair", *places, "tracking=off", "orchestrator=none", "num_workers=1"]
    with held(tmp_path / "store", "quality", artifact.name) as pid:
        assert cli.main(words) == 1
        out, err = capsys.readouterr()
        assert json.loads(out.splitlines()[-1])["left"] == 2
        lines = err.splitlines()
        assert len(lines) == 2 and all("left as it is" in line for line in lines)
        assert f"it is being made by process {pid} on " in lines[1]
        assert "quality is being made by another run" in lines[0]
        assert artifact.is_dir() and part.is_dir()
    assert cli.main(words) == 0
    assert not artifact.exists() and not part.exists()
    assert list(part.parent.iterdir()) == []


def test_repair_does_not_set_aside_what_was_rebuilt_meanwhile(
    made: dict[str, Path],
    places: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = made["quality"] / "out.txt"
    sound, times = file.read_bytes(), file.stat()
    flip(file)

    def repaired(store: Store, config: object, words: object, damaged: object) -> object:
        file.write_bytes(sound)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        return repair(store, config, words, damaged)  # type: ignore[arg-type]

    repair = verify_command._repair
    monkeypatch.setattr(verify_command, "_repair", repaired)
    words = ["verify", "--repair", *places, "tracking=off", "orchestrator=none", "num_workers=1"]
    assert cli.main(words) == 0
    assert "rebuilt or removed by another run meanwhile" in capsys.readouterr().err
    assert file.read_bytes() == sound


def test_verify_refuses_what_it_does_not_know(run_cli: RunCli) -> None:
    result = run_cli("verify", "--fix")
    assert (
        result["code"] == 2 and "--fix is not an option; known: --help, --repair" in result["err"]
    )
    result = run_cli("verify")
    assert result["code"] == 2 and "does not exist; name one with store=DIR" in result["err"]
