"""Every file of every stage of a real run: a flipped byte, a truncation or a deletion is named, and
the next run is sound."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.runtime import soundness
from tasks.runtime.graph import ancestors
from tasks.runtime.store import Store
from tests.support.whole_runs import contents, run


@pytest.fixture
def copy_of_run(plain_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(plain_run, tmp_path / "place"))


def damaged_forms(content: bytes) -> Iterator[bytes | None]:
    """Each kind of damage there is to a file; None: it is deleted."""
    yield None
    if content:
        middle = len(content) // 2
        yield content[:middle]
        yield content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def harm(file: Path, form: bytes | None) -> None:
    times = file.stat()
    if form is None:
        file.unlink()
    else:
        file.write_bytes(form)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_any_damage_to_any_file_of_any_stage_is_named(
    copy_of_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soundness, "SETTLED_S", 0.0)
    store, stages = Store(copy_of_run / "store"), set()
    for folder in sorted(path for path in store.root.glob("[!.]*/*") if path.is_dir()):
        stage, key = folder.parent.name, folder.name
        assert store.damage(stage, key) is None
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            content = file.read_bytes()
            for form in damaged_forms(content):
                harm(file, form)
                said = store.damage(stage, key)
                assert (
                    said
                    and said.startswith("damaged: ")
                    and file.relative_to(folder).as_posix() in said
                )
                assert store.find(stage, key) is None and "\n" not in said
                file.write_bytes(content)
        stages.add(stage)
        assert store.damage(stage, key) is None
    assert stages == set(ancestors("train"))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3), ids=["deleted", "truncated", "flipped"])
def test_a_run_over_damage_to_every_stage_and_part_is_as_if_nothing_had_been(
    number: int, copy_of_run: Path, plain_run: Path, small_corpus: Path
) -> None:
    store = copy_of_run / "store"
    before = contents(plain_run)
    parts = [path for path in (store / ".parts").glob("*/*/[!.]*") if path.is_dir()]
    folders = [path for path in store.glob("[!.]*/*") if path.is_dir()]
    assert len(parts) > len(folders) > 10
    for folder in [*folders, *parts]:
        file = max(
            (path for path in folder.rglob("*") if path.is_file()),
            key=lambda path: path.stat().st_size,
        )
        harm(file, list(damaged_forms(file.read_bytes()))[number])
    done = run("train", small_corpus, copy_of_run)
    for stage in ancestors("train"):
        assert (
            sum(
                line.startswith(f"{stage} ") and ": damaged: " in line
                for line in done.stderr.splitlines()
            )
            == 1
        ), done.stderr
    assert "part " in done.stderr and "; rebuilding" in done.stderr
    assert contents(copy_of_run) == before
    again = run("train", small_corpus, copy_of_run)
    assert "damaged" not in again.stderr
