"""Guards of the walls: imports flow one way, every wall stands where the documents say."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.runtime.code import ROOT

PACKAGES = ("flows", "tasks", "llm_core", "benchmarks")
FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from {}"
WITHIN_A_FUNCTION = "def later():\n    from {}"


def lint_imports(root: Path) -> subprocess.CompletedProcess:
    program = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [program, "--no-cache"],
        cwd=root,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(root)},
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_architecture_contracts_hold() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("file", "statement"),
    [
        ("llm_core/config.py", "from tasks import keys"),
        ("tasks/runtime/keys.py", "import flows"),
        ("tasks/runtime/store.py", "import prefect"),
        ("llm_core/config.py", "import hydra"),
        ("tasks/runtime/plan.py", "from omegaconf import OmegaConf"),
        ("flows/compose.py", "import mlflow"),
        ("llm_core/data/loader.py", "import tokenizers"),
        ("llm_core/parallel/apply.py", "import llm_core.training.config"),
        ("llm_core/infer/cache.py", "import llm_core.parallel.config"),
        ("llm_core/new_subject.py", ""),
