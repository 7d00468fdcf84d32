"""Checks which files a source consists of: what is hidden, what links lead to, and what names
stay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llm_core.config import ConfigError
from tasks.ingest.sourcefiles import list_files
from tasks.runtime.code import ROOT


def names(*paths: Path | str) -> list[str]:
    return list(list_files([str(path) for path in paths], None, Path("unused")).files)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.jsonl", "sub/b.txt", ".git/info/c.txt", "sub/.d.txt", "sub/deep/e.txt"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text("{}")
    return tmp_path / "in"


def test_what_is_hidden_below_a_folder_is_left_out_at_any_depth(folder: Path) -> None:
    assert names(folder) == ["a.jsonl", "sub/b.txt", "sub/deep/e.txt"]
    assert (
        names(folder / "**") == names(folder)
        and names(folder / "**" / "*.txt") == names(folder)[1:]
    )


def test_hidden_folder_that_is_named_itself_is_read(folder: Path) -> None:
    hidden = folder.rename(folder.with_name(".in"))
    assert names(hidden) == ["a.jsonl", "sub/b.txt", "sub/deep/e.txt"]
    assert names(hidden / "*.jsonl") == ["a.jsonl"] and names(hidden / "a.jsonl") == ["a.jsonl"]
    assert names(hidden / ".git" / "*" / "*.txt") == ["info/c.txt"]


@pytest.mark.parametrize("entry", ["", "**", "**/*"])
def test_links_to_folders_are_followed_and_circles_end(
    folder: Path, entry: str, tmp_path: Path
) -> None:
    before = names(folder / entry)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "f.txt").write_text("f")
    (folder / "aa").symlink_to(tmp_path / "elsewhere")
    for name in ("again", "back"):
        (folder / name).symlink_to(folder)
        (folder / "sub" / name).symlink_to(folder)
        (tmp_path / "elsewhere" / name).symlink_to(folder / "sub")
    (folder / "up").symlink_to(tmp_path)
    assert names(folder / entry) == sorted(["aa/f.txt", *before])


def test_file_reached_by_a_link_keeps_its_own_name(folder: Path, tmp_path: Path) -> None:
    (folder / "0.jsonl").symlink_to(folder / "a.jsonl")
    (folder / "0").symlink_to(folder / "sub")
    assert names(folder) == ["a.jsonl", "sub/b.txt", "sub/deep/e.txt"]
    (tmp_path / "other").symlink_to(folder)
    assert names(tmp_path / "other") == names(folder)


@pytest.mark.parametrize("entry", ["", "*.jsonl", "**/*.jsonl"])
def test_link_to_nothing_is_an_error_and_no_silence(folder: Path, entry: str) -> None:
    (folder / "lost.jsonl").symlink_to(folder / "gone.jsonl")
    with pytest.raises(ConfigError, match=r"lost\.jsonl is a link to nothing"):
        names(folder / entry)
    (folder / "lost.jsonl").unlink()
    (folder / "lost.pptx").symlink_to(folder / "gone.pptx")
    assert "a.jsonl" in names(folder / entry)


def test_folder_that_cannot_be_listed_is_an_error_and_no_silence(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir = os.scandir

    def refuse(path: str) -> object:
        if path.endswith("deep"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError, match="deep"):
        names(folder)


@pytest.mark.parametrize("sign", ["[x]", "a*", "b?"])
def test_file_is_named_from_its_folder_whatever_signs_the_path_has(folder: Path, sign: str) -> None:
    odd = folder.rename(folder.with_name(sign))
    assert names(odd / "a.jsonl") == ["a.jsonl"] and names(odd)[0] == "a.jsonl"
    (odd / "a.jsonl").rename(odd / f"{sign}.jsonl")
    assert names(odd / f"{sign}.jsonl") == [f"{sign}.jsonl"]


@pytest.mark.parametrize("sign", ["[x]", "a*", "b?"])
def test_signs_in_the_name_of_the_current_folder_are_no_wildcards(
    folder: Path, monkeypatch: pytest.MonkeyPatch, sign: str
) -> None:
    monkeypatch.chdir(folder.rename(folder.with_name(sign)))
    for entry in ("*.jsonl", "**/*.jsonl", "./a.json?"):
        assert list(list_files([entry], None, Path("unused")).files) == ["a.jsonl"]
    assert list(list_files(["../*/sub/*.txt"], None, Path("unused")).files) == [f"{sign}/sub/b.txt"]


def test_pipes_are_refused_by_name_and_counted_in_folders(folder: Path) -> None:
    os.mkfifo(folder / "pipe.txt")
    with pytest.raises(ConfigError, match=r"pipe\.txt is a pipe, socket or device"):
        names(folder / "pipe.txt")
    for entry in (folder, folder / "*"):
        listing = list_files([str(entry)], None, Path("unused"))
        assert listing.left_out == ["pipe.txt"] and "a.jsonl" in listing.files


def test_a_name_that_is_not_utf8_is_named_by_its_folder(folder: Path) -> None:
    (folder / os.fsdecode(b"\xff.txt")).write_text("x")
    with pytest.raises(ConfigError, match=r"a file name under '/[^()]*in' is not UTF-8"):
        names(folder)


def test_names_are_the_same_in_every_locale(folder: Path) -> None:
    (folder / "größe 数.txt").write_text("x")
    program = (
        "import sys; from pathlib import Path; from tasks.ingest.sourcefiles import list_files\n"
        "print(ascii(list(list_files([sys.argv[1]], None, Path('unused')).files)))"
    )
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    listed = {
        subprocess.run(
            [sys.executable, "-c", program, str(folder)],
            env={**os.environ, **settings},
            capture_output=True,
            check=True,
            cwd=ROOT,
        ).stdout
        for settings in (plain, {"PYTHONUTF8": "1"})
    }
    assert listed == {ascii(names(folder)).encode() + b"\n"}
