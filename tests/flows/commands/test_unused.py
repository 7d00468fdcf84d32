"""`gc` removes what this store made and no recent run needs, and nothing else, whatever lies in and
beside the store."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flows.commands.unused import needed, remove, unused
from flows.records import RunRecord, write_record
from tasks.runtime.store import Node, Store
from tests.flows.conftest import RunCli
from tests.support.unused_store import KEYS, make_store


def own_paths(store: Store) -> list[Path]:
    return [
        *(
            store.root / folder / stage / key
            for folder in ("", ".parts", ".work")
            for stage in ("ingest", "train")
            for key in KEYS
        ),
        *(store.root / ".remote").iterdir(),
    ]


PLACES = [
    "..",
    ".",
    "train",
    f"train/{KEYS[0]}",
    f"train/{KEYS[0]}/model",
    "notes",
    ".parts",
    ".parts/train",
    f".parts/train/{KEYS[0]}",
    f".parts/train/{KEYS[0]}/{KEYS[0] * 2}",
    ".work",
    ".work/train",
    f".work/train/{KEYS[0]}",
    ".remote",
    "report",
]
NAMES = [
    "notes.txt",
    "train",
    "bench",
    "0123456789abcdef",
    "0123456789abcdef" * 2 + ".jsonl",
    "out",
    "replaced-train-1",
    ".x.1.tmp",
]
KINDS = [
    "file",
    "folder",
    "link to a file",
    "link to a folder",
    "link to an artifact",
    "link to nothing",
]


def put(place: Path, name: str, kind: str, elsewhere: Path) -> Path | None:
    """Something foreign in `place`; its path. None where the store has this name, or would take it
    for its own by the name alone: a fetched file, the folder that unfinished work is in."""
    place.mkdir(exist_ok=True)
    path = place / name
    by_name = (place.name, kind) == (".remote", "file") or (name, kind) == ("out", "folder")
    if os.path.lexists(path) or (by_name and (name == "out" or len(name) > 32)):
        return None
    if kind == "file":
        path.write_text("mine")
        os.utime(path, (0, 0))
    elif kind == "folder":
        (path / "0123456789abcdef").mkdir(parents=True)
        (path / "0123456789abcdef" / "photo.txt").write_text("mine")
    else:
        targets = {
            "link to a file": "file.txt",
            "link to a folder": "folder",
            "link to an artifact": f"artifacts/{KEYS[1]}",
        }
        path.symlink_to(elsewhere / targets.get(kind, "nothing"))
    return path


def contents(folder: Path) -> dict[str, str]:
    """{path: what is there} of a tree, by links' targets and files' texts."""
    return {
        str(path): _content(path)
        for path in [folder, *sorted(folder.rglob("*"))]
        if os.path.lexists(path)
    }


def _content(path: Path) -> str:
    if path.is_symlink():
        return f"-> {os.readlink(path)}"
    return path.read_text() if path.is_file() else "folder"


@settings(max_examples=40)
@example([(f".work/train/{KEYS[0]}", "out", "file")])
@given(
    st.lists(
        st.tuples(st.sampled_from(PLACES), st.sampled_from(NAMES), st.sampled_from(KINDS)),
        max_size=6,
        unique=True,
    )
)
def test_nothing_foreign_in_or_beside_a_store_is_removed(
    foreign: list[tuple[str, str, str]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        elsewhere = Path(folder).resolve() / "elsewhere"
        (elsewhere / "folder").mkdir(parents=True)
        (elsewhere / "folder" / "photo.txt").write_text("mine")
        (elsewhere / "file.txt").write_text("mine")
        store = make_store(Path(folder) / "beside" / "store")
        shutil.copytree(store.path("train", KEYS[1]), elsewhere / "artifacts" / KEYS[1])
        own = own_paths(store)
        placed = [
            path
            for place, name, kind in foreign
            if (path := put(store.root / place, name, kind, elsewhere))
        ]
        before = {path: contents(path) for path in placed}
        outside = contents(elsewhere)
        told: list[str] = []
        remove(unused(store, needed(store, 0), told.append))
        assert {path: contents(path) for path in placed} == before and contents(
            elsewhere
        ) == outside
        for path in own:
            beside = [other for other in placed if path in other.parents]
            assert path.exists() == bool(beside or path in placed), f"{path} with {beside}"
        assert len(told) <= 1


@pytest.mark.parametrize(
    "moved", ["train", ".parts", ".parts/train", ".work/train", ".work", ".remote"]
)
def test_a_folder_of_the_store_that_is_a_link_is_not_entered(moved: str, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    (store.root / moved).rename(tmp_path / "moved")
    (store.root / moved).symlink_to(tmp_path / "moved")
    before = contents(tmp_path / "moved")
    assert remove(unused(store, needed(store, 0))) > 0
    assert contents(tmp_path / "moved") == before and (store.root / moved).is_symlink()


def test_a_folder_that_becomes_a_link_between_listing_and_removal_is_not_entered(
    tmp_path: Path,
) -> None:
    store = make_store(tmp_path / "store")
    items = unused(store, needed(store, 0))
    store.path("train", "").rename(tmp_path / "moved")
    store.path("train", "").symlink_to(tmp_path / "moved")
    before = contents(tmp_path / "moved")
    remove(items)
    assert contents(tmp_path / "moved") == before


def test_a_store_that_is_reached_by_a_link_is_the_store(tmp_path: Path) -> None:
    make_store(tmp_path / "disk")
    (tmp_path / "store").symlink_to(tmp_path / "disk")
    store = Store(tmp_path / "store")
    remove(unused(store, needed(store, 0)))
    assert not any(path.exists() for path in own_paths(store))


@pytest.mark.parametrize(
    "record",
    [
        "{}",
        "[]",
        "{",
        '{"stage": "ingest"}',
        '{"stage": "train", "key": "other", "files": []}',
        "[" * 100_000,
    ],
)
def test_an_artifact_whose_record_names_another_stays(record: str, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    path = store.path("train", KEYS[0])
    (path / "artifact.json").write_text(record)
    told: list[str] = []
    remove(unused(store, needed(store, 0), told.append))
    assert path.exists() and str(path) in told[0] and told[0].count("\n") == 0


def test_a_folder_without_the_marker_is_refused(run_cli: RunCli, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    (store.root / ".textmill-store").unlink()
    before = contents(tmp_path / "store")
    result = run_cli("gc", "--yes", "keep=0")
    assert result["code"] == 2 and result["err"].count("\n") == 1
    assert (
        f"{store.root} has no .textmill-store" in result["err"]
        and "create that file" in result["err"]
    )
    assert contents(tmp_path / "store") == before


def test_a_store_that_does_not_exist_is_refused_in_one_line(
    run_cli: RunCli, tmp_path: Path
) -> None:
    result = run_cli("gc")
    assert result["code"] == 2 and result["err"].count("\n") == 1
    assert f"store ({tmp_path}/store) does not exist; name one with store=DIR" in result["err"]
    assert not (tmp_path / "store").exists()


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """A folder as somebody sees it who may read it: for root, who may write anywhere, as nobody."""
    entries = [folder, *folder.rglob("*")]
    for entry in entries:
        entry.chmod(0o555 if entry.is_dir() else 0o444)
    above = [parent for parent in folder.parents if parent.stat().st_uid == os.getuid()]
    modes = [(parent, parent.stat().st_mode) for parent in above]
    root = os.geteuid() == 0
    try:
        if root:
            for parent in above:
                parent.chmod(parent.stat().st_mode | 0o055)
            os.seteuid(65534)
        yield
    finally:
        if root:
            os.seteuid(0)
        for parent, mode in modes:
            parent.chmod(mode)
        for entry in entries:
            entry.chmod(0o755 if entry.is_dir() else 0o644)


def test_a_store_that_may_only_be_read_is_listed(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    listed = unused(store, needed(store, 0))
    node = Node("train", KEYS[0], KEYS[0], {}, {})
    with read_only(store.root):
        with pytest.raises(PermissionError):
            (store.root / "new").touch()
        assert unused(Store(store.root), needed(store, 0)) == listed
    with store.hold(node, print), read_only(store.root):
        kept = {item.path for item in listed} - {
            item.path for item in unused(store, needed(store, 0))
        }
    assert kept == {store.path("train", KEYS[0]), store.work_dir("train", KEYS[0])}, "held now"


def record() -> RunRecord:
    return RunRecord("r", "run", "report", [], "2026-01-01", {}, {}, "completed")


def test_an_older_store_is_marked_by_the_next_run(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    (store.root / ".textmill-store").unlink()
    (store.root / ".inputs.json").write_text("{}")
    write_record(store, record())
    assert remove(unused(store, needed(store, 0))) > 0


def test_what_becomes_foreign_between_listing_and_removal_stays(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    items = unused(store, needed(store, 0))
    (store.path("train", KEYS[0]) / "notes.txt").write_text("mine")
    remove(items)
    assert (store.path("train", KEYS[0]) / "notes.txt").read_text() == "mine"
    assert (
        json.loads((store.path("train", KEYS[0]) / "artifact.json").read_text())["key"] == KEYS[0]
    )
    assert not store.path("train", KEYS[1]).exists()


def test_an_artifact_with_a_folder_that_cannot_be_listed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path / "store")
    closed = store.path("train", KEYS[0]) / "model"

    def scandir(folder: str | os.PathLike[str]) -> object:
        if Path(folder) == closed:  # root may list everything
            raise PermissionError(13, "Permission denied", str(folder))
        return listed(folder)

    listed = os.scandir
    monkeypatch.setattr(os, "scandir", scandir)
    assert store.path("train", KEYS[0]) not in {
        item.path for item in unused(store, needed(store, 0))
    }
