"""`generate` and `serve` take any folder of a Hugging Face model, and say what is wrong with it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.flows.conftest import RunCli
from tests.support.served_models import publish_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_model(tmp_path_factory.mktemp("model") / "it's a model")


def test_generate_writes_with_the_model_of_a_folder(run_cli: RunCli, folder: Path) -> None:
    settings = [f"folder={folder}", "generate.max_new_tokens=5", "generate.temperature=0"]
    first, second = (run_cli("generate", "the a", *settings) for _ in range(2))
    assert first["code"] == 0 and first["out"].strip()
    assert first["out"] == second["out"]


@pytest.mark.parametrize("command", [["generate", "x"], ["serve"]])
def test_a_folder_that_is_none_is_one_line_and_code_2(
    run_cli: RunCli, folder: Path, tmp_path: Path, command: list[str]
) -> None:
    for words, reason in (
        ([f"folder={tmp_path / 'nowhere'}"], "is not a folder"),
        ([f"folder={tmp_path}"], "has no config.json"),
        ([f"folder={folder}", "folder=b"], "folder is given twice"),
        (["folder=s3://bucket/model"], "is an address"),
        ([], "no model is trained"),
    ):
        result = run_cli(*command, *words)
        assert result["code"] == 2 and reason in result["err"]
        assert result["err"].strip().count("\n") == 0


def test_serve_says_what_it_cannot_listen_on_or_read(
    run_cli: RunCli, folder: Path, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = run_cli("serve", f"folder={folder}", f"serve.port={taken.getsockname()[1]}")
        assert result["code"] == 2 and "cannot listen on 127.0.0.1" in result["err"]
    key = tmp_path / "it's a key"
    key.write_text("short")
    key.chmod(0o600)
    result = run_cli("serve", f"folder={folder}", "serve.host=0.0.0.0", "--api-key-file", str(key))
    assert result["code"] == 2 and "it's a key) must hold one word" in result["err"]
    result = run_cli("serve", f"folder={folder}", "serve.host=0.0.0.0")
    assert result["code"] == 2 and "requires a key" in result["err"]
