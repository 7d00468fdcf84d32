"""Compiled kernels never outlive their sources."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tasks.keys import ROOT

OUTER = "from numba import njit\nfrom tasks.kernels.inner import answer\n@njit(cache=True)\ndef outer():\n    return answer()\n"
INNER = "from numba import njit\n@njit(cache=True)\ndef answer():\n    return {}\n"


def test_an_edited_helper_is_compiled_into_the_kernels_that_call_it(tmp_path: Path) -> None:
    kernels = tmp_path / "tasks" / "kernels"
    kernels.mkdir(parents=True)
    (tmp_path / "tasks" / "__init__.py").touch()
    shutil.copy(ROOT / "tasks" / "kernels" / "__init__.py", kernels)
    (kernels / "outer.py").write_text(OUTER)
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"} | {"PYTHONPATH": str(tmp_path)}
    for value in ("1", "2"):
        (kernels / "inner.py").write_text(INNER.format(value))
        command = [sys.executable, "-c", "from tasks.kernels.outer import outer; print(outer())"]
        assert subprocess.check_output(command, env=environment, cwd=tmp_path, text=True).strip() == value
