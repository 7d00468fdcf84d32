"""Processes that outlive the command that started them: start, recognise, stop.

A process is known by id and start time, since ids are used again, and to others by its host and
the boot of it too. Detached processes lead sessions of their own and get the default SIGINT: a
worker that inherits an ignored one cannot be stopped by SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import platform
import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from llm_core.process import boot_id

EXITING = 0x4
"""PF_EXITING of Linux (include/linux/sched.h), in the flags of /proc/PID/stat."""


def start_time(pid: int) -> str | None:
    """When a process started, as a text that no later process of the same id has; None where there
    is none."""
    try:
        # Field 22 counts ticks since boot; the name in field 2 may hold spaces and brackets.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    except ProcessLookupError:
        return None
    shown = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip() or None


def is_running(pid: int, started: str | None) -> bool:
    """Whether a process is there and was not killed: on a busy machine its end takes a while."""
    return started is not None and start_time(pid) == started and not _is_ending(pid)


def _is_ending(pid: int) -> bool:
    """Whether SIGKILL has reached a process, or it is about to leave. Linux only, else no."""
    try:
        flags = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6])
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return Path("/proc/self/stat").exists()
    pending = [int(mask, 16) for mask in re.findall(r"^S\w+Pnd:\s*(\w+)", status, re.MULTILINE)]
    killed = any(mask >> (signal.SIGKILL - 1) & 1 for mask in pending)
    return killed or bool(flags & EXITING)


def own_identity() -> dict[str, Any]:
    """What tells this process from every other one, on any host: `host`, `boot`, `pid`,
    `started`."""
    own = os.getpid()
    return {"host": platform.node(), "boot": boot_id(), "pid": own, "started": start_time(own)}


def may_be_alive(identity: Mapping[str, Any]) -> bool:
    """Whether a process may be there still, by its identity; one on another host cannot be
    asked."""
    if identity.get("host") != platform.node():
        return True
    boot = identity.get("boot")
    if boot is not None and boot != boot_id():
        return False
    return is_running(int(identity["pid"]), identity["started"])


def open_private(path: Path) -> IO[bytes]:
    """A file to append to, which only its owner reads where it is new."""
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600))


class Detached(subprocess.Popen[bytes]):
    """A process that nobody waits for: it goes on after the command that started it."""

    def __del__(self) -> None:
        """Popen's own warns that the process is still running. `stop` reaps it."""


def start_detached(
    command: Sequence[str], env: Mapping[str, str], cwd: Path, log_file: Path, umask: int = -1
) -> Detached:
    """Start a process that leads its own session and writes to `log_file`. umask: of the files it
    makes; -1 leaves it."""
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with open_private(log_file) as log:
        return Detached(
            list(command),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=umask,
            preexec_fn=_default_signals,
        )


def descendants(pids: Iterable[int]) -> list[int]:
    """Everything started by `pids`, directly or not, and everything in their sessions; parents
    first."""
    table = _process_table()
    found = list(pids)
    for pid in found:  # grows while it is walked
        found.extend(
            p
            for p, (parent, session) in table.items()
            if (pid in (parent, session)) and p not in found
        )
    return found


def left_behind(leader: int) -> list[int]:
    """What is left of the session of a process that has died. Its id is given to no other process
    before the last of them ends."""
    if start_time(leader) is not None:
        return []
    return [pid for pid, (_, session) in _process_table().items() if session == leader]


def stop(pids: Iterable[int], grace_s: float) -> None:
    """SIGTERM, and SIGKILL for what is still there after `grace_s`."""
    alive = {pid: started for pid in pids if (started := start_time(pid))}
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        until = time.monotonic() + wait_s
        while alive and time.monotonic() < until:
            _reap(alive)
            # Until they are gone, with their ports, and not only on their way.
            alive = {pid: started for pid, started in alive.items() if start_time(pid) == started}
            time.sleep(0.05 if alive else 0)


def free_port(preferred: int | None = None, patience_s: float = 0.0) -> int:
    """`preferred` where nothing listens on it within `patience_s`, else another one.

    Not one that the system gives to clients: such a port may be taken for a moment by anybody who
    connects to anything, and a server that is started again would not get it back.
    """
    until = time.monotonic() + patience_s
    while preferred is not None and not _is_free(preferred):
        if time.monotonic() > until:
            preferred = None
        time.sleep(0.1 if patience_s else 0)
    if preferred is not None:
        return preferred
    for port in random.sample(OWN_PORTS, 100):
        if _is_free(port):
            return port
    raise OSError("no free port on 127.0.0.1")


OWN_PORTS = range(20000, 30000)
"""Below those that Linux and macOS give to clients."""


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _default_signals() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _reap(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ChildProcessError):  # not ours: started by an earlier command
            os.waitpid(pid, os.WNOHANG)


def proc_folders() -> Iterator[Path]:
    """`/proc/PID` of every process. A pattern with a file behind it looks whether each is there,
    and raises where its process ends at that moment."""
    return Path("/proc").glob("[0-9]*")


def _process_table() -> dict[int, tuple[int, int]]:
    """{process: (parent, session)}."""
    table = {}
    if Path("/proc/self/stat").exists():
        for folder in proc_folders():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                table[int(folder.name)] = (int(fields[1]), int(fields[3]))
        return table
    # Sessions are shown as addresses here (macOS): parents alone must do.
    shown = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    )
    for line in shown.stdout.splitlines():
        pid, parent = line.split()
        table[int(pid)] = (int(parent), -1)
    return table
