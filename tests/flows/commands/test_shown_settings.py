"""Settings as the command line shows them: composed values, and completions of a word."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flows.cli import main
from flows.compose import compose
from flows.conf_files import CONF_DIR, choices
from llm_core.config import to_plain


def test_completion_and_config_dump_leave_no_files(tmp_path: Path) -> None:
    def textmill(*arguments: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(CONF_DIR.parent), **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert textmill("-sc", "query=bash", COMP_LINE="textmill re").split() == ["refresh", "replay"]
    expected = [f"tokenizer={choice}" for choice in choices("tokenizer")]
    assert textmill("-sc", "query=bash", COMP_LINE="textmill run tokenizer=").split() == expected
    assert textmill("completion", "bash") == textmill("run", "-sc", "install=bash")
    assert "vocab_size: 777" in textmill("run", "--cfg", "job", "tokenizer.vocab_size=777")
    assert list(tmp_path.iterdir()) == []


def shown_config(overrides: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["run", "--cfg", "job", *overrides]) == 0
    return capsys.readouterr().out


def test_shown_configuration_has_every_field_with_its_value(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = yaml.safe_load(shown_config(["run=demo", "train.compile=true"], capsys))
    assert shown == to_plain(compose(["run=demo", "train.compile=true"]))
    assert {"attention", "kernels", "grace_s"} <= shown["train"].keys()


@pytest.mark.parametrize(
    "overrides",
    [
        ["run=demo"],
        ["quality=by_kind", "dedup=thorough", "documents=rehydrated", "model=llama_1b"],
        [r"source.paths=['a\${b}', 'c\\\${d}', '1e3', 'on']", "source.root='\u00e9 \u2028'"],
    ],
    ids=" ".join,
)
def test_shown_configuration_given_back_is_the_same_one(
    overrides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(CONF_DIR, tmp_path / "conf")
    text = shown_config(overrides, capsys)
    (tmp_path / "conf" / "run" / "given.yaml").write_text(text, "utf-8")
    assert compose(["run=given"], tmp_path / "conf") == compose(overrides)


def test_part_of_the_configuration_is_shown_by_its_package(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = yaml.safe_load(shown_config(["-p", "optim.muon"], capsys))
    assert shown == to_plain(compose().optim.muon)
    for package in ("optim.moun", "optim.lr"):
        assert main(["run", "--cfg", "job", "--package", package]) == 2
        assert f"{package} is not a group of settings" in capsys.readouterr().err


def test_completion_knows_fields_that_no_yaml_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for word, expected in {
        "train.comp": ["train.compile="],
        "optim.guard.max_s": ["optim.guard.max_skips="],
        "optim.kind=": ["optim.kind=lion"],
        "quality.line_cuts.": ["quality.line_cuts.languages.", "quality.line_cuts.rules="],
    }.items():
        monkeypatch.setenv("COMP_LINE", f"textmill run optim=lion {word}")
        assert main(["-sc", "query=bash"]) == 0
        assert capsys.readouterr().out.split() == expected
