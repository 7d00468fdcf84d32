"""Two machines on one network disk: processes with host names and process ids of their own, which
know each other by locks alone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llm_core.config import ConfigError
from tasks.runtime import mounts
from tasks.runtime.code import ROOT
from tasks.runtime.mounts import private_locks, require_shared_locks
from tasks.runtime.store import Store
from tests.support.data.stored_artifacts import make_node, publish

NAMESPACES = ["--user", "--map-root-user", "--uts", "--pid", "--fork", "--kill-child"]
HOST = """
import sys
from pathlib import Path
from tasks.runtime.store import Store
from tests.support.data.stored_artifacts import make_node
with Store(Path(sys.argv[1])).hold(make_node(), lambda line: print(line, flush=True)) as out:
    (out / "half.txt").write_text("x")
    print("held", flush=True)
    sys.stdin.read()
"""


def on_host(name: str, root: Path) -> subprocess.Popen[str]:
    """A machine of this name that holds the key until its input ends."""
    script = 'hostname "$0" && exec "$@"'
    command = ["unshare", *NAMESPACES, "sh", "-c", script, name]
    return subprocess.Popen(
        [*command, sys.executable, "-c", HOST, str(root)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.fixture
def namespaces() -> None:
    command = ["unshare", *NAMESPACES, "hostname", "other"]
    if not shutil.which("unshare") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this system gives no namespaces to a user")


def test_a_second_host_waits_for_the_first_and_follows_it_when_it_dies(
    namespaces: None, tmp_path: Path
) -> None:
    with on_host("alpha", tmp_path) as alpha, on_host("beta", tmp_path) as beta:
        both = {"alpha": alpha, "beta": beta}
        said = {name: line_of(process) for name, process in both.items()}
        first = next(name for name, line in said.items() if line == "held\n")
        [second] = both.keys() - {first}
        # Its process id is one of this machine too, of another process that lives on.
        waiting = f"ingest k1 is being built by process 1 on {first}; waiting for it\n"
        assert said[second] == waiting
        store = Store(tmp_path)
        assert not store.is_interrupted("ingest", "k1")
        with store.try_hold("ingest", "k1") as holder:
            assert holder == f"process 1 on {first}"
        both[first].send_signal(signal.SIGKILL)
        assert line_of(both[second]) == "held\n"
        both[second].communicate()
    assert publish(store, make_node()).file("data/a.txt").exists()


LINES = """22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:43 / /mnt/good rw - nfs4 host:/a rw,vers=4.2,local_lock=none,addr=10.0.0.1
41 22 0:44 / /mnt/bad rw - nfs host:/b rw,vers=3,nolock,local_lock=all,addr=10.0.0.1
42 22 0:45 / /mnt/with\\040space rw - nfs host:/c rw,vers=3,local_lock=flock
43 41 8:2 / /mnt/bad/disk rw - ext4 /dev/sdb1 rw,nolock
44 22 0:46 / /mnt/posix rw - nfs host:/d rw,vers=3,local_lock=posix
"""


@pytest.mark.parametrize(
    ("folder", "option"),
    [
        ("/data/store", None),
        ("/mnt/good/store", None),
        ("/mnt/bad/store", "nolock"),
        ("/mnt/badger", None),
        ("/mnt/with space/store", "local_lock=flock"),
        ("/mnt/bad/disk/store", None),
        ("/mnt/posix/store", None),
    ],
)
def test_a_mount_that_keeps_locks_to_itself_is_known(folder: str, option: str | None) -> None:
    assert private_locks(LINES, Path(folder)) == option


def test_a_store_on_such_a_mount_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mounts").write_text(LINES.replace("/mnt/bad ", f"{tmp_path} "))
    monkeypatch.setattr(mounts, "MOUNTS", tmp_path / "mounts")
    require_shared_locks(Path("/mnt/good"))
    with (
        pytest.raises(ConfigError, match="mounted with nolock") as error,
        Store(tmp_path / "store").hold(make_node(), print),
    ):
        pass
    assert "\n" not in str(error.value)
