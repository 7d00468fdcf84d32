"""Runs code that may hang or exhaust memory on many inputs, so that it costs only the bad ones.

`Sandbox` calls one function of bytes in a process of its own, under a limit of time and one of
memory per call. A call that goes over a limit, or crashes, raises `OutOfBounds`; its process is
killed and the next call gets a new one. What counts is how a fresh process does: a call that fails
in a used one is made once more in a new one, so that no input is judged by what was left over from
others.

Time is processor time of the called process, so that a busy machine and the number of workers judge
nothing; one that waits for something else is stopped when `PATIENCE` times as much has passed on
the clock. Where the system does not tell processor time, it is the clock alone.

The function takes bytes and gives bytes; frames are a length and the bytes, nothing is pickled. The
limit of memory is one of address space beyond what the process needs itself; Linux holds it, macOS
does not. The environment is a minimal one, without secrets. A call costs two copies through a
socket and no thread.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from llm_core.process import terminate_with_parent
from tasks.runtime.environment import minimal_environment

START_LIMIT_S = 60.0
"""What a process may take to start on a machine that is busy; not part of any call."""

PATIENCE = 10
CLOCK_TICK_S = 1 / os.sysconf("SC_CLK_TCK")

HEAD = struct.Struct("<qQd")
"""Code, length, and the processor time that the sender has used so far."""

READY, DONE, NO_MEMORY = range(3)
OVER_MEMORY = "took more memory than it may"


class OutOfBounds(RuntimeError):
    """A call that took too long or too much memory, or ended its process, as the message says."""


class Sandbox:
    """Calls `module:function` in a process that can be killed. The process starts with the first
    call.

    timeout_s: processor time that a call may take. max_memory_bytes: address space that a call may
    take.
    """

    def __init__(self, function: str, timeout_s: float, max_memory_bytes: int) -> None:
        self._function, self._timeout_s = function, timeout_s
        self._max_memory_bytes = max_memory_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._calls, self._used_s = 0, 0.0

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def call(self, data: bytes) -> bytes:
        """What the function makes of `data`. Raises OutOfBounds."""
        is_used = self._calls > 0
        try:
            return self._call(data)
        except OutOfBounds:
            self._stop()
            if not is_used:
                raise
        return self.call(data)

    def _call(self, data: bytes) -> bytes:
        if self._process is None:
            self._start()
        assert self._socket is not None and self._process is not None
        self._calls += 1
        limit = Limit(self._timeout_s, self._process.pid, self._used_s)
        try:
            self._socket.settimeout(PATIENCE * self._timeout_s)
            self._socket.sendall(HEAD.pack(DONE, len(data), 0.0) + data)
            code, result, self._used_s = _receive(self._socket, limit.left_s)
        except TimeoutError as error:
            raise OutOfBounds(f"took longer than {self._timeout_s:g} s") from error
        except (OSError, EOFError) as error:  # it ended, during the write or later
            raise OutOfBounds(_cause(self._process.wait())) from error
        if code == NO_MEMORY:
            raise OutOfBounds(OVER_MEMORY)
        return result

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            root = str(Path(__file__).resolve().parents[2])
            paths = [root, *(p for p in sys.path if p)]
            command = [sys.executable, "-m", "tasks.runtime.sandbox"]
            self._process = subprocess.Popen(
                [*command, self._function, str(self._max_memory_bytes), str(os.getpid())],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # One arena: each of glibc's would reserve 64 MB of the address space it may take.
                env={
                    **minimal_environment(),
                    "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
                    "MALLOC_ARENA_MAX": "1",
                },
            )
        self._socket = ours
        limit = Limit(START_LIMIT_S, self._process.pid, used_s=0.0)
        try:
            code, _, self._used_s = _receive(ours, limit.left_s)
        except (OSError, EOFError) as error:
            self._stop()
            raise RuntimeError(f"the process for {self._function} did not start") from error
        assert code == READY

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._socket is not None:
            self._socket.close()
        self._process = self._socket = None
        self._calls = 0


def _cause(code: int) -> str:
    # Compiled code that gets no memory ends its process by SIGABRT, as code that finds itself
    # broken does.
    died = f"brought its process down (exit code {code})"
    return OVER_MEMORY if code == -signal.SIGABRT else died


class Limit:
    """How long a process may still take, from now on; `used_s` is what it had used before."""

    def __init__(self, timeout_s: float, pid: int, used_s: float) -> None:
        self._timeout_s, self._pid, self._used_s = timeout_s, pid, used_s
        self._began = time.monotonic()

    def left_s(self) -> float:
        """Seconds to wait before asking again. Raises TimeoutError when there are none."""
        waited_s = time.monotonic() - self._began
        if waited_s < self._timeout_s:
            return self._timeout_s - waited_s
        now_s = _processor_s(self._pid)
        if now_s is None or waited_s > PATIENCE * self._timeout_s:
            raise TimeoutError
        if (left_s := self._timeout_s - (now_s - self._used_s)) <= 0:
            raise TimeoutError
        return max(left_s, CLOCK_TICK_S)


def _processor_s(pid: int) -> float | None:
    """Processor time of a process so far; None where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) * CLOCK_TICK_S


def _receive(
    connection: socket.socket, left_s: Callable[[], float] | None = None
) -> tuple[int, bytes, float]:
    code, length, used_s = HEAD.unpack(_receive_exactly(connection, HEAD.size, left_s))
    return code, _receive_exactly(connection, length, left_s), used_s


def _receive_exactly(
    connection: socket.socket, length: int, left_s: Callable[[], float] | None
) -> bytes:
    data = bytearray(length)
    view, filled = memoryview(data), 0
    while filled < length:
        try:
            connection.settimeout(left_s() if left_s else None)
            count = connection.recv_into(view[filled:])
        except TimeoutError:
            if left_s and left_s() > 0:  # raises when it is really over
                continue
            raise
        if not count:
            raise EOFError
        filled += count
    return bytes(data)


def serve(function: str, max_memory_bytes: int, parent: int) -> None:
    """The other side: answer calls until the socket on stdin is closed."""
    terminate_with_parent(parent, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    module, _, name = function.partition(":")
    work = getattr(importlib.import_module(module), name)
    connection = socket.socket(fileno=os.dup(0))
    _limit_memory(max_memory_bytes)
    connection.sendall(HEAD.pack(READY, 0, time.process_time()))
    while True:
        try:
            _, data, _ = _receive(connection)
        except EOFError:
            return
        try:
            code, result = DONE, work(data)
        except MemoryError:
            code, result = NO_MEMORY, b""
        connection.sendall(HEAD.pack(code, len(result), time.process_time()) + result)


def _limit_memory(max_memory_bytes: int) -> None:
    """Allow the address space that is taken already, and so much more."""
    # A core file of a crash would only fill the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    status = Path("/proc/self/statm")
    if status.exists():
        held = int(status.read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        wanted = held + max_memory_bytes
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
