"""Secrets of the environment stay out of every process that does not need them."""

from __future__ import annotations

import json
import os
import string
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.runtime.environment import may_be_secret, minimal_environment, without_secrets
from tasks.runtime.parts import Part, PartRunner, process_executor
from tasks.runtime.sandbox import Sandbox
from tasks.training.trainer_process import trainer_environment

NEEDS_PROC = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="the system shows no environments"
)
SECRETS = (
    *(
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
    ),
    *("PREFECT_API_KEY", "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"),
    *(
        "MLFLOW_TRACKING_PASSWORD",
        "MLFLOW_TRACKING_TOKEN",
        "AZURE_STORAGE_CONNECTION_STRING",
        "GITHUB_PAT",
    ),
    *("WANDB_API_KEY", "DB_PASS", "MYSQL_PWD", "SSH_AUTH_SOCK", "SOMETHING_ELSE"),
)
LETTERS = string.ascii_letters + string.digits
PLANTED = {name: f"planted-{i:02d}-9f2c" for i, name in enumerate(SECRETS)} | {
    "MLFLOW_TRACKING_URI": "postgresql://me:planted-uri-9f2c@db/runs",
    "https_proxy": "http://planted-user-9f2c@proxy:3128",
    "PYTHON_KEYRING_PASSWORD": "planted-prefix-9f2c",
}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)


def show_environments(part: Part, directory: Path, config: Any) -> dict[str, Any]:
    """The environments of a part worker and of a sandbox in it, as the system shows them to
    others."""
    with Sandbox(
        "tests.tasks.runtime.test_environment:read_environment", 30, 1_000_000_000
    ) as sandbox:
        return {"worker": read_environment(b"").decode(), "sandbox": sandbox.call(b"").decode()}


def read_environment(data: bytes) -> bytes:
    return Path("/proc/self/environ").read_bytes().replace(b"\0", b"\n")


@NEEDS_PROC
@pytest.mark.usefixtures("planted")
def test_workers_and_sandboxes_start_without_any_secret(tmp_path: Path) -> None:
    command_lines: set[bytes] = set()
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    command_lines.add((folder / "cmdline").read_bytes())
                except OSError:  # ended meanwhile
                    continue
            time.sleep(0.1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        parts = [Part(f"p{i}", f"d{i}", {}) for i in range(2)]
        results = PartRunner(make_executor=process_executor(2))(
            show_environments, parts, None, tmp_path / "out"
        )
    finally:
        ended.set()
        watcher.join()
    for result in results:
        for process in ("worker", "sandbox"):
            shown = result.counters[process]
            assert "9f2c" not in shown and "PATH=" in shown, shown
    assert any(b"tasks.runtime.sandbox" in line for line in command_lines), (
        "the watcher saw what ran"
    )
    assert not [line for line in command_lines if b"9f2c" in line]


class Asking:
    """A config whose parts read a variable."""

    part_variables = ("WANDB_API_KEY",)


@NEEDS_PROC
@pytest.mark.usefixtures("planted")
def test_parts_get_the_variables_that_their_config_names_and_no_others(tmp_path: Path) -> None:
    parts = [Part(f"p{i}", f"d{i}", {}) for i in range(2)]
    results = PartRunner(make_executor=process_executor(2))(
        show_environments, parts, Asking(), tmp_path / "out"
    )
    for result in results:
        planted = [line for line in result.counters["worker"].splitlines() if "9f2c" in line]
        assert planted == [f"WANDB_API_KEY={PLANTED['WANDB_API_KEY']}"]
        assert "9f2c" not in result.counters["sandbox"], "a page needs no key"


@pytest.mark.usefixtures("planted")
def test_a_trainer_gets_what_its_network_needs_and_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needed = {
        "NCCL_SOCKET_IFNAME": "eth0",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "MASTER_ADDR": "node-0",
        "FI_PROVIDER": "efa",
    }
    for name, value in needed.items():
        monkeypatch.setenv(name, value)
    environment = trainer_environment()
    assert needed.items() <= environment.items()
    assert [name for name, value in environment.items() if "9f2c" in value] == ["SOMETHING_ELSE"], (
        "named like nothing secret"
    )
    assert json.dumps(minimal_environment()).count("9f2c") == 0


@pytest.mark.parametrize(
    "name",
    [
        "PWD",
        "TOKENIZERS_PARALLELISM",
        "MONKEY",
        "KEYBOARD",
        "NCCL_IB_HCA",
        "MASTER_PORT",
        "PATH",
        "PYTHONPATH",
        "COMPASS",
    ],
)
def test_names_that_only_look_alike_are_kept(name: str) -> None:
    assert not may_be_secret(name, "/some/place:8080@x")


@given(
    st.sampled_from(["API_KEY", "TOKEN", "Password", "AUTH_STRING"]), st.text(LETTERS, min_size=1)
)
def test_a_secret_of_any_owner_is_one(kind: str, owner: str) -> None:
    assert may_be_secret(f"{owner}_{kind}", "x") and may_be_secret(f"{kind}_{owner}".upper(), "x")


def test_nothing_is_changed_here() -> None:
    before = dict(os.environ)
    kept = without_secrets()
    assert dict(os.environ) == before and kept["PATH"] == os.environ["PATH"] and sys.executable
