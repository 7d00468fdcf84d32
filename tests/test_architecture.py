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
        ("llm_core/infer/cache/static.py", "import llm_core.parallel.config"),
        ("llm_core/new_subject.py", ""),
        ("tasks/quality/presets.py", "import tasks.dedup.config"),
        ("tasks/readers/formats.py", "from tasks.ingest import sources"),
        ("tasks/corpus/urls.py", FOR_TYPES.format("tasks.readers.items import Item")),
        ("tasks/evaluation/ngrams.py", WITHIN_A_FUNCTION.format("tasks.report.run import Run")),
    ],
)
def test_an_import_against_the_architecture_is_refused(
    file: str, statement: str, tree: Path
) -> None:
    source = (tree / file).read_text() if (tree / file).exists() else ""
    (tree / file).write_text(f"{source}\n\n{statement}  # noqa\n")
    result = lint_imports(tree)
    assert result.returncode != 0 and "BROKEN" in result.stdout, result.stdout


def test_a_stage_without_a_place_among_the_layers_is_refused(tree: Path) -> None:
    (tree / "tasks/translation").mkdir()
    (tree / "tasks/translation/__init__.py").touch()
    result = lint_imports(tree)
    assert result.returncode != 0 and "translation" in result.stdout, result.stdout


def test_readme_file_map_exists() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    block = re.search(r"## File map\n+```\n(.*?)```", readme, re.DOTALL)
    assert block, "the README has no file map"
    paths = [match for line in block[1].splitlines() if (match := line.split("  ")[0].strip())]
    assert len(paths) > 10
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert not missing, f"in the README's file map but not in the tree: {missing}"


def test_every_top_level_folder_is_in_the_file_map() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split()
    for folder in sorted({path.split("/")[0] for path in tracked if "/" in path}):
        assert re.search(rf"^{re.escape(folder)}/", readme, re.MULTILINE), (
            f"{folder}/ is not in the README's file map"
        )


def test_no_module_has_a_name_without_a_subject() -> None:
    vague = {"utils", "helpers", "misc", "common", "util", "helper"}
    found = [
        p
        for package in (*PACKAGES, "tests")
        for p in (ROOT / package).rglob("*.py")
        if p.stem in vague
    ]
    assert not found


def test_no_test_module_imports_another() -> None:
    """What two of them need is in tests/support or in a conftest."""
    imports = re.compile(r"(?:from|import) (tests\.[\w.]*\btest_\w+)")
    found = []
    for path in (ROOT / "tests").rglob("*.py"):
        own = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        others = set(imports.findall(path.read_text("utf-8"))) - {own}
        found += [f"{own} imports {other}" for other in sorted(others)]
    assert found == []


def test_nothing_is_unpickled() -> None:
    forbidden = re.compile(
        r"pickle\.loads?\(|torch\.load\((?![^)]*weights_only=True)|joblib\.load|allow_pickle=True"
    )
    found = [
        f"{p.relative_to(ROOT)}: {m[0]}"
        for package in PACKAGES
        for p in (ROOT / package).rglob("*.py")
        if (m := forbidden.search(p.read_text("utf-8")))
    ]
    assert not found


def test_only_the_public_interface_of_hydra_is_used() -> None:
    sources = [p for package in PACKAGES for p in (ROOT / package).rglob("*.py")]
    found = [str(p.relative_to(ROOT)) for p in sources if "hydra._internal" in p.read_text("utf-8")]
    assert not found


def pins_of(name: str) -> dict[str, set[str]]:
    """Digests of every `package==version ; marker` of a lock."""
    entries = re.findall(
        r"^([^\s#].*?)((?: \\\n    --hash=sha256:[0-9a-f]{64})*)$",
        (ROOT / name).read_text(),
        re.MULTILINE,
    )
    assert len(entries) == len({pin for pin, _ in entries})
    return {pin: set(re.findall("sha256:[0-9a-f]+", digests)) for pin, digests in entries}


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_locks_pin_every_package_once_per_marker_with_digests_of_its_files(name: str) -> None:
    pins = pins_of(name)
    assert all("==" in pin and digests for pin, digests in pins.items())
    assert "torch==2.13.0" in pins
    assert not [pin for pin in pins if pin.startswith(("nvidia-", "fasttext-predict="))]


def test_what_is_compiled_is_compiled_by_packages_of_the_lock() -> None:
    recipe = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    builds = re.findall(r"^.*\$\(PIP\) (?:wheel .*|install .* -e \.)$", recipe, re.MULTILINE)
    assert len(builds) == 2 and all("--no-build-isolation" in line for line in builds)
    pinned = {pin.partition("==")[0] for pin in pins_of("requirements.lock")}
    assert pinned >= {"setuptools", "pybind11", "hatchling"}


def test_development_lock_agrees_with_the_lock_of_users() -> None:
    user, dev = pins_of("requirements.lock"), pins_of("requirements-dev.lock")
    assert user.items() <= dev.items()
