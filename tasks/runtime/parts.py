"""Work in parts: a stage lists its parts, processes each into a directory of its own, then merges.

A part is finished when `part.json` stands in its directory; the directory is made under a temporary
name, synced and renamed, so a killed stage resumes at the missing part. Parts are named by the
content they read (`digest`) under a folder named by how they are made, so a grown source recomputes
only what is new. Results are in the order of the parts, whatever the executor: bytes never depend
on worker counts.

Threads share memory and start at once; kernels over Arrow buffers release the interpreter lock.
Processes cost an import each and help stages that spend their time in Python: `auto` starts them
once the work that is left is worth that. A cluster is opened once for a whole run and passed in.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from llm_core.durable import sync_file, sync_folder
from llm_core.printing import get_logger
from llm_core.process import return_free_memory, terminate_with_parent
from tasks.runtime.artifact import DamagedRecord, digest_file, read_sealed, write_sealed
from tasks.runtime.keys import digest
from tasks.runtime.soundness import damage as find_damage
from tasks.runtime.stage import StageFailure
from tasks.runtime.workers import WorkerContext

logger = get_logger("tasks.runtime.parts")
PART_FILE = "part.json"
MAX_IN_FLIGHT = 256
"""Parts that wait for a worker or are worked on at once."""
PROCESSES_START_S = 3.0
"""About what worker processes take to start, import what they need and load compiled code."""


@dataclass(frozen=True)
class Part:
    """One piece of a stage's work: small, picklable, and named by the digest of what it reads."""

    name: str
    digest: str
    payload: Mapping[str, Any]


def parts_of_pass(
    parts: Sequence[Part],
    name: str,
    payload: Mapping[str, Any],
    reads: Mapping[str, Any] | None = None,
) -> list[Part]:
    """Parts for one of several passes of a stage, each with `payload` added to its own.

    They are named by the pass and by `reads`. Without `reads` the payload itself names them; one
    that holds paths needs `reads`, with the digests of what is there.
    """
    told = digest({"pass": name, **(payload if reads is None else reads)})
    return [
        Part(part.name, digest([part.digest, told]), {**part.payload, **payload}) for part in parts
    ]


@dataclass(frozen=True)
class PartResult:
    """What `process_part` made: files in `path`, and its JSON counters."""

    name: str
    path: Path

    @property
    def counters(self) -> Mapping[str, Any]:
        """Read whenever they are asked for: those of ten thousand parts fill memory."""
        counters: Mapping[str, Any] = read_sealed(self.path / PART_FILE)["counters"]
        return counters


ProcessPart = Callable[[Part, Path, Any], Mapping[str, Any]]
"""(part, directory to write into, stage config) -> counters; importable by workers."""


Work = tuple[ProcessPart, Part, Path, Any]
"""(function, part, directory of the finished part, stage config)."""
MakeExecutor = Callable[..., AbstractContextManager[Executor]]


class RunParts(Protocol):
    """How a stage gets its parts done; stages take one and never know which."""

    def __call__(
        self, process_part: ProcessPart, parts: Sequence[Part], config: Any, out_dir: Path
    ) -> list[PartResult]: ...

    def here(self) -> RunParts:
        """The same in this process, in order."""


def scratch_dir(out_dir: Path) -> Path:
    """Where a stage keeps unfinished work that survives a kill and is not in its artifact."""
    path = out_dir.with_name(out_dir.name + ".work")
    path.mkdir(parents=True, exist_ok=True)
    return path


@dataclass(frozen=True)
class PartRunner:
    """Runs parts on an executor and reuses the finished ones."""

    parts_dir: Path | None = None
    """Where finished parts live; beside `out_dir` when None."""
    make_executor: MakeExecutor | None = None
    """Opens an executor for the missing parts, given the names of the environment variables that
    they read (`part_variables` of a config, where it has some). None runs them here, in order."""
    start_s: float = 0.0
    """Seconds its workers take to start. Parts are done here until what is left takes longer."""
    progress: Callable[[int, int], None] = field(default=lambda finished, total: None)
    """Told (finished, total) after each part."""
    used: set[str] = field(default_factory=set)
    """Digests of the parts that it has given so far: what an artifact was made of."""

    def __call__(
        self, process_part: ProcessPart, parts: Sequence[Part], config: Any, out_dir: Path
    ) -> list[PartResult]:
        parts_dir = self.parts_dir or scratch_dir(out_dir)
        parts_dir.mkdir(parents=True, exist_ok=True)
        # Parts of equal digest are the same work by definition: done once, given to both.
        directories = [parts_dir / part.digest for part in parts]
        self.used.update(part.digest for part in parts)
        results = {
            i: result
            for i, part in enumerate(parts)
            if (result := _finished(part, directories[i], say=True))
        }
        missing = {i: directories[i] for i in range(len(parts)) if i not in results}
        unique: dict[Path, Part] = {}
        for i, directory in missing.items():
            unique.setdefault(directory, parts[i])
        work = [(process_part, part, directory, config) for directory, part in unique.items()]
        finished = len({directories[i] for i in results})
        self.progress(len(results), len(parts))
        total = len(set(directories))
        for _ in self._work_off(work):
            finished += 1
            self.progress(len(parts) * finished // total, len(parts))
            if not finished % MAX_IN_FLIGHT:
                return_free_memory()
        for i, directory in missing.items():
            # Made and synced just now: another walk over the bytes would tell nothing.
            result = _finished(parts[i], directory, check_digests=False)
            assert result is not None, f"part {parts[i].name} was processed but is not there"
            results[i] = result
        return [results[i] for i in range(len(parts))]

    def here(self) -> PartRunner:
        return replace(self, make_executor=None)

    def _work_off(self, work: Sequence[Work]) -> Iterator[None]:
        """Yields after each item; on the executor once what is left is worth its start."""
        begun = time.perf_counter()
        # The mean time of the parts done so far says what the rest needs.
        for done, item in enumerate(work):
            left = len(work) - done
            needs_s = (time.perf_counter() - begun) / done * left if done else 0.0
            if self.make_executor and left > 1 and needs_s >= self.start_s:
                with self.make_executor(*getattr(item[3], "part_variables", ())) as executor:
                    yield from _completions(executor, work[done:])
                return
            _make_part(*item)
            yield


serial = PartRunner()
"""Parts one after another in this process, kept beside the output: for notebooks and tests."""


def thread_executor(num_workers: int) -> MakeExecutor:
    return lambda *variables: ThreadPoolExecutor(num_workers)


def process_executor(num_workers: int) -> MakeExecutor:
    # Spawned: workers must not inherit the parent's threads, locks or lock files, nor its secrets.
    return lambda *variables: ProcessPoolExecutor(
        num_workers, WorkerContext(variables), initializer=_die_with_parent, initargs=(os.getpid(),)
    )


class Cluster(Protocol):
    """What works on parts in place of this machine's own workers."""

    def executor(self, *variables: str) -> AbstractContextManager[Executor]:
        """Opens its executor, whose workers have these variables of the environment."""


def make_runner(
    runner: str,
    num_workers: int,
    progress: Callable[[int, int], None],
    cluster: Cluster | None = None,
) -> PartRunner:
    """The runner that `runner` (auto, thread or process) names, or one on `cluster`."""
    if cluster is not None:
        return PartRunner(make_executor=cluster.executor, progress=progress)
    if num_workers == 1:
        return PartRunner(progress=progress)
    make_executor = thread_executor if runner == "thread" else process_executor
    start_s = PROCESSES_START_S if runner == "auto" else 0.0
    return PartRunner(None, make_executor(num_workers), start_s, progress)


def _completions(executor: Executor, work: Sequence[Work]) -> Iterator[None]:
    waiting, pending = iter(work), set()  # type: ignore[var-annotated]
    try:
        # Submitted as others finish: what exists at once does not grow with the number of parts.
        while True:
            pending |= {
                executor.submit(_make_part, *item)
                for item in islice(waiting, MAX_IN_FLIGHT - len(pending))
            }
            if not pending:
                return
            finished, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in finished:
                future.result()
                yield
    except BrokenProcessPool as error:
        raise StageFailure(
            "a worker process was killed, perhaps because memory ran out. Finished parts are kept:"
            " run again, with fewer workers (num_workers=1) or runner=thread if it recurs"
        ) from error
    except BaseException:
        for future in pending:
            future.cancel()
        raise


def _make_part(process_part: ProcessPart, part: Part, directory: Path, config: Any) -> None:
    # Not by process id: workers on two machines may have the same.
    temporary = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}.tmp")
    temporary.mkdir(parents=True)
    counters = process_part(part, temporary, config)
    files = []
    for file in sorted(p for p in temporary.rglob("*") if p.is_file()):
        sync_file(file)
        files.append(
            {
                "path": str(file.relative_to(temporary)),
                "size": file.stat().st_size,
                "digest": digest_file(file),
            }
        )
    record = {"name": part.name, "counters": dict(counters), "files": files}
    write_sealed(temporary / PART_FILE, record, indent=None)
    _put_in_place(part, temporary, directory)
    sync_folder(directory.parent)


def _put_in_place(part: Part, made: Path, directory: Path) -> None:
    """Give a part its name; one that another run made meanwhile, and may be reading, stays."""
    while True:
        try:
            os.rename(made, directory)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if _finished(part, directory):
            shutil.rmtree(made)
            return
        damaged = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}.tmp")
        with contextlib.suppress(FileNotFoundError):  # the other run was faster
            os.rename(directory, damaged)
            shutil.rmtree(damaged)


def _finished(
    part: Part, directory: Path, check_digests: bool = True, say: bool = False
) -> PartResult | None:
    """The result of a finished part; None where there is none, or a damaged one."""
    try:
        record = read_sealed(directory / PART_FILE)
        _ = record["counters"]
        damage = next(find_damage(directory, record["files"], check_digests), None)
    except FileNotFoundError:
        damage = f"{PART_FILE} is gone" if directory.exists() else ""
    except (DamagedRecord, KeyError, TypeError) as error:
        damage = f"{PART_FILE} cannot be read ({error})"
    if damage is None:
        return PartResult(part.name, directory)
    if damage and say:
        logger.warning(
            "part %s of %s is damaged: %s; rebuilding", part.name, directory.parent, damage
        )
    return None


def _die_with_parent(parent: int) -> None:
    """A worker whose parent is killed must not go on writing: the next run may own the key."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    terminate_with_parent(parent, signal.SIGKILL)
