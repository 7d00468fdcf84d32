"""Compiled kernels never outlive their sources."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llm_core.private_folder import cache_folder
from tasks.kernels import compiled_code_dir
from tasks.runtime.code import ROOT

OUTER = (
    "from numba import njit\nfrom tasks.kernels.inner import answer\n@njit(cache=True)\ndef"
    " outer():\n    return answer()\n"
)
INNER = "from numba import njit\n@njit(cache=True)\ndef answer():\n    return {}\n"


def test_an_edited_helper_is_compiled_into_the_kernels_that_call_it(tmp_path: Path) -> None:
    kernels = tmp_path / "tasks" / "kernels"
    kernels.mkdir(parents=True)
    (tmp_path / "tasks" / "__init__.py").touch()
    shutil.copy(ROOT / "tasks" / "kernels" / "__init__.py", kernels)
    (kernels / "outer.py").write_text(OUTER)
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"} | {
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
        # Python takes an edit of the same size within a second for no edit; only the compiled
        # kernels are at stake here.
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    for value in ("1", "2"):
        (kernels / "inner.py").write_text(INNER.format(value))
        command = [sys.executable, "-c", "from tasks.kernels.outer import outer; print(outer())"]
        assert (
            subprocess.check_output(command, env=environment, cwd=tmp_path, text=True).strip()
            == value
        )


@pytest.mark.parametrize("others", [0o755, 0o777])
def test_kernels_are_kept_beside_their_sources_only_where_no_other_user_writes(
    others: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, own = tmp_path / "kernels" / "__pycache__", tmp_path / "own"
    beside.mkdir(parents=True)
    beside.chmod(others)
    monkeypatch.setenv("XDG_CACHE_HOME", str(own))
    cache_folder.cache_clear()
    kept = compiled_code_dir(beside.parent)
    cache_folder.cache_clear()
    assert kept.parent == (beside if others == 0o755 else own / "textmill" / "kernels")
