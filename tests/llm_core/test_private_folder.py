"""Caches whose contents are run lie where no other user can put anything."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from llm_core.config import ConfigError
from llm_core.private_folder import (
    cache_folder,
    keep_compiled_code_private,
    open_to_others,
    private_folder,
)
from tasks.runtime.code import ROOT


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a folder belong to somebody else: root can do so, anyone else becomes somebody else."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        us = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: us + 1)


def test_folders_on_the_way_are_made_for_this_user_alone(tmp_path: Path) -> None:
    made = private_folder(tmp_path / "a" / "b" / "c")
    assert [mode(step) for step in (made, made.parent, made.parent.parent)] == [0o700] * 3
    assert open_to_others(made) is None


def test_a_cache_that_others_can_read_is_closed(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o755)
    assert mode(private_folder(tmp_path / "cache")) == 0o700


@pytest.mark.parametrize("others", [0o770, 0o707, 0o777, 0o1777])
def test_a_cache_that_others_can_write_is_refused(others: int, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(others)
    with pytest.raises(ConfigError, match="can be written by other users; fix its owner and mode"):
        private_folder(tmp_path / "cache")
    assert mode(tmp_path / "cache") == others, (
        "closing it now would trust what others have put there"
    )


@pytest.mark.parametrize(
    ("others", "refused"), [(0o775, True), (0o757, True), (0o755, False), (0o1777, False)]
)
def test_a_parent_that_others_can_write_is_refused_unless_it_is_sticky(
    others: int, refused: bool, tmp_path: Path
) -> None:
    parent = tmp_path / "parent"
    parent.mkdir()
    parent.chmod(others)
    if refused:
        with pytest.raises(ConfigError, match=f"{parent} can be written by other users"):
            private_folder(parent / "deep" / "cache")
        assert list(parent.iterdir()) == []
    else:
        assert private_folder(parent / "deep" / "cache").is_dir()


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_folder_of_another_user_is_refused_wherever_it_is_on_the_way(
    steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = private_folder(tmp_path / "a" / "b" / "c")
    give_away([cache, *cache.parents][steps], monkeypatch)
    with pytest.raises(ConfigError, match="belongs to another user"):
        private_folder(cache)


def test_a_link_is_judged_by_where_it_is_and_where_it_leads(tmp_path: Path) -> None:
    target, place = tmp_path / "target", tmp_path / "place"
    (target / "cache").mkdir(parents=True)
    place.mkdir()
    (place / "link").symlink_to(target)
    assert open_to_others(place / "link" / "cache") is None
    target.chmod(0o777)
    assert (
        open_to_others(place / "link" / "cache")
        == f"{place / 'link'} can be written by other users"
    )
    target.chmod(0o700)
    place.chmod(0o777)
    assert open_to_others(place / "link" / "cache") == f"{place} can be written by other users"


def ask(environment: dict[str, str], code: str) -> tuple[str, str]:
    known = {
        k: v
        for k, v in os.environ.items()
        if k not in ("XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "NUMBA_CACHE_DIR")
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**known, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip(), done.stderr


CACHE = "from llm_core.private_folder import cache_folder; print(cache_folder('kernels'))"


@pytest.mark.parametrize("variable", ["HOME", "XDG_CACHE_HOME"])
def test_the_cache_is_the_users_own(variable: str, tmp_path: Path) -> None:
    shown, said = ask({variable: str(tmp_path)}, CACHE)
    assert (
        Path(shown) == tmp_path / (".cache" if variable == "HOME" else "") / "textmill" / "kernels"
        and said == ""
    )


def test_a_cache_folder_that_a_group_can_write_is_passed_over_for_one_in_the_home(
    tmp_path: Path,
) -> None:
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache").chmod(0o775)
    shown, said = ask({"HOME": str(tmp_path)}, CACHE)
    assert Path(shown) == tmp_path / ".textmill-cache" / "kernels" and said == ""
    assert list((tmp_path / ".cache").iterdir()) == []


def test_without_a_cache_of_its_own_a_process_gets_a_new_folder_and_says_so(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    code = f"{CACHE}; import os; print(oct(os.stat(cache_folder('kernels')).st_mode)[-3:])"
    found = [ask({"XDG_CACHE_HOME": str(shared), "TMPDIR": str(tmp_path)}, code) for _ in range(2)]
    (first, right), (second, _) = (shown.splitlines() for shown, _ in found)
    assert first != second and right == "700" and Path(first).parent == tmp_path
    assert not Path(first).exists(), "it ends with its process"
    assert all(
        said.count("\n") == 1 and f"{shared} can be written by other users" in said
        for _, said in found
    )


def test_graphs_of_torch_are_kept_in_the_same_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    cache_folder.cache_clear()
    keep_compiled_code_private()
    cache_folder.cache_clear()
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    assert Path(cache_dir()) == tmp_path / "textmill" / "torch_graphs"
