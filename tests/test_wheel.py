"""The wheel works away from the clone, and takes no common name in site-packages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tasks.runtime.code import ROOT
from tests.support.whole_runs import SMALL, make_corpus


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(out)]
    subprocess.run([sys.executable, "-m", "pip", "-q", "wheel", *options, str(ROOT)], check=True)
    (file,) = out.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`textmill` of an environment that has the wheel, and borrows what it depends on from ours."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    where = [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    own = Path(subprocess.check_output(where, text=True).strip())
    # A path in a .pth file is not searched for further .pth files: our clone stays out of sight.
    (own / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    install = [str(python), "-m", "pip", "-q", "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True)
    return place / "bin" / "textmill"


def run(program: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [program, *arguments], cwd=folder, env=kept, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_wheel_takes_one_name(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"textmill"}


@pytest.mark.slow
def test_the_wheel_holds_all_that_the_clone_runs_with(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split()
    wanted = [f for f in tracked if f.startswith(("flows/", "tasks/", "llm_core/", "conf/"))]
    texts = [(ROOT / file).read_text("utf-8") for file in wanted if file.startswith("conf/")]
    named = {name for text in texts for name in re.findall(r"\$\{tree:([\w./-]+)\}", text)}
    assert "data/suites_full" in named
    for name in named:
        inside = [f for f in tracked if f == name or f.startswith(f"{name}/")]
        assert inside, name
        wanted += inside
    wanted += ["prefect.yaml", "data/sample/LICENSES.md"]
    assert not [file for file in wanted if f"textmill/tree/{file}" not in held]


@pytest.mark.slow
def test_the_wheel_holds_no_records_that_were_downloaded(wheel: Path) -> None:
    held = zipfile.ZipFile(wheel).namelist()
    tracked = subprocess.check_output(["git", "ls-files", "data"], cwd=ROOT, text=True).split()
    data = {name.removeprefix("textmill/tree/") for name in held if "/tree/data/" in name}
    assert data and data <= set(tracked)


@pytest.mark.slow
def test_an_installed_textmill_plans_the_embedded_corpus(program: Path, tmp_path: Path) -> None:
    done = run(program, tmp_path, "plan", "run=demo", "tracking=off")
    assert done.returncode == 0 and "ingest" in done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_installed_textmill_takes_a_folder_of_text_to_a_model(
    program: Path, tmp_path: Path
) -> None:
    make_corpus(tmp_path / "mine")
    done = run(program, tmp_path, "run", *SMALL, "source.paths=[mine]")
    assert done.returncode == 0, done.stderr[-3000:]
    assert Path(json.loads(done.stdout.splitlines()[-1])["report"]).exists()


def test_every_message_that_names_an_extra_names_one_that_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    files = [f for part in ("flows", "tasks", "llm_core") for f in (ROOT / part).rglob("*.py")]
    named = {m for f in files for m in re.findall(r"textmill\[(\w+)\]", f.read_text("utf-8"))}
    assert named and named <= set(extras)


def test_every_scheme_that_needs_a_package_has_an_extra() -> None:
    from tasks.ingest.remotefiles import EXTRAS

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert set(EXTRAS.values()) <= set(extras)
