"""The artifact store: `<root>/<stage>/<key>/`, finished once and never rewritten.

Work in progress lives in `<root>/.work/<stage>/<key>/out` and becomes the artifact by one rename. A
key has one holder at a time, by a lock that dies with its process; the next run waits, says so, and
takes over. Parts live in `<root>/.parts/<stage>/<part key>` and outlive the artifacts made of them;
whoever removes some locks their folder, which a stage at work shares.

Locks are those of the kernel (flock), also on NFS, where the server keeps them for all machines and
ends those of a machine that is silent. No process of another machine is ever asked whether it
lives. `tasks.runtime.shared` has the same store in a bucket.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from llm_core.durable import sync_file, sync_folder
from llm_core.locks import lock_if_free, open_lock
from llm_core.secrets import mask_values
from tasks.runtime.artifact import (
    ARTIFACT_FILE,
    SCHEMA_VERSION,
    Artifact,
    ArtifactMismatch,
    digest_file,
    load_artifact,
    write_sealed,
)
from tasks.runtime.mounts import require_shared_locks
from tasks.runtime.soundness import Soundness
from tasks.runtime.stage import StageFailure

MARKER_FILE = ".textmill-store"
"""Says that a folder or a bucket is a store. Without it nothing there is ever removed."""


@dataclass(frozen=True)
class Node:
    """A stage with its key decided: what to look up, and what to record when it is made."""

    stage: str
    key: str
    part_key: str
    identity: Mapping[str, Any]
    config: Mapping[str, Any]
    input_files: Mapping[str, Path] = field(default_factory=dict)
    """Where the inputs are whose digests the identity holds."""


class Store:
    """Artifacts by stage and key under one root directory."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._soundness = Soundness(self.root / ".sound.json")

    @property
    def digests_file(self) -> Path:
        """What is remembered of input files (`tasks.runtime.inputs`)."""
        return self.root / ".inputs.json"

    def path(self, stage: str, key: str) -> Path:
        return self.root / stage / key

    def work_dir(self, stage: str, key: str) -> Path:
        return self.root / ".work" / stage / key

    def lock_file(self, stage: str, key: str) -> Path:
        return self.work_dir(stage, key).with_name(f"{key}.lock")

    def parts_dir(self, node: Node) -> Path:
        return self.root / ".parts" / node.stage / node.part_key

    def parts_lock_file(self, stage: str, part_key: str) -> Path:
        """Locked while parts of this key are removed, and shared by the stages that use them."""
        return self.root / ".parts" / stage / f"{part_key}.lock"

    def find(self, stage: str, key: str) -> Artifact | None:
        """The finished, undamaged artifact of a key, or None."""
        return None if self.damage(stage, key) is not None else load_artifact(self.path(stage, key))

    def damage(self, stage: str, key: str, check_digests: bool = False) -> str | None:
        """None for a sound artifact, else what is wrong with it: `missing`, or `damaged:` and a
        named file.

        check_digests: for a caller about to read it: bytes are checked, whatever an earlier process
        found.
        """
        return self.damage_of(self.path(stage, key), check_digests)

    def damage_of(self, path: Path, check_digests: bool = False) -> str | None:
        """`damage` of the artifact in a folder, which may be one of another store."""
        try:
            artifact = load_artifact(path)
        except ArtifactMismatch as error:
            return f"damaged: {error}"
        if artifact is None:
            # Artifacts come into their place whole, with their record.
            return f"damaged: {ARTIFACT_FILE} is gone" if path.exists() else "missing"
        found = self._soundness.damage(path, artifact.record["files"], check_digests)
        return f"damaged: {found}" if found else None

    def check(self, artifact: Artifact) -> list[str]:
        """A phrase for every file of an artifact that is damaged; reads all of its bytes."""
        return self._soundness.check(artifact.path, artifact.record["files"])

    def is_interrupted(self, stage: str, key: str) -> bool:
        """Whether a key has unfinished work that no live process holds."""
        if not self.work_dir(stage, key).exists():
            return False
        with lock_if_free(self.lock_file(stage, key)) as free:
            return free

    def set_aside(self, stage: str, key: str) -> Path:
        """Move whatever is at the place of a key to `.work`, where `textmill gc` lists it."""
        aside = self.root / ".work" / f"replaced-{stage}-{key}-{time.time_ns()}"
        aside.parent.mkdir(parents=True, exist_ok=True)
        os.rename(self.path(stage, key), aside)
        return aside

    def artifacts(self, stage: str) -> list[Artifact]:
        """Finished artifacts of a stage, newest first, without unreadable ones (see `damage`)."""
        found = []
        for path in (self.root / stage).glob("*"):
            with contextlib.suppress(ArtifactMismatch):
                if artifact := load_artifact(path):
                    found.append(artifact)
        return sorted(found, key=lambda a: a.record["finished_at"], reverse=True)

    @contextlib.contextmanager
    def hold(self, node: Node, waiting: Callable[[str], None]) -> Iterator[Path]:
        """Be the one holder of a key; yields the directory to work in. Waits for a live holder."""
        parts_lock = self.parts_lock_file(node.stage, node.part_key)
        parts_lock.parent.mkdir(parents=True, exist_ok=True)
        require_shared_locks(self.root)
        with self._alone(node.stage, node.key, waiting), open_lock(parts_lock) as parts:
            fcntl.flock(parts, fcntl.LOCK_SH)
            yield self._empty_out(node.stage, node.key)

    @contextlib.contextmanager
    def _alone(self, stage: str, key: str, waiting: Callable[[str], None]) -> Iterator[None]:
        file = self.lock_file(stage, key)
        file.parent.mkdir(parents=True, exist_ok=True)
        with open_lock(file) as lock:
            if holder := _take(lock):
                waiting(waiting_for(stage, key, holder))
                fcntl.flock(lock, fcntl.LOCK_EX)
            _sign(lock)
            yield

    def _empty_out(self, stage: str, key: str) -> Path:
        # Always empty: unfinished work that can be trusted is in parts or the scratch folder.
        out = self.work_dir(stage, key) / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        return out

    @contextlib.contextmanager
    def alone(self, name: str, waiting: Callable[[], None]) -> Iterator[None]:
        """Hold a name of the whole store while the block runs. Waits for its holder."""
        file = self.root / ".runs" / f"{name}.lock"
        file.parent.mkdir(parents=True, exist_ok=True)
        with open_lock(file) as lock:
            if _take(lock):
                waiting()
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def try_hold(self, stage: str, key: str) -> Iterator[str]:
        """Be the one holder of a key while the block runs; yields its holder if it is not free."""
        file = self.lock_file(stage, key)
        file.parent.mkdir(parents=True, exist_ok=True)
        with open_lock(file) as lock:
            if not (holder := _take(lock)):
                _sign(lock)
            yield holder

    def publish(
        self,
        node: Node,
        made: Artifact,
        elapsed_s: float,
        cpu_s: float,
        started_at: str,
        parts: Sequence[str] = (),
        input_bytes: int = 0,
    ) -> Artifact:
        """Turn finished work into the artifact of its key, and give back its read-only view.

        parts: digests of the parts it was made of, which the store keeps as long as it is in use.
        input_bytes: of what its stage read.
        """
        files = []
        for path in sorted(p for p in made.path.rglob("*") if p.is_file()):
            sync_file(path)
            relative = path.relative_to(made.path).as_posix()
            files.append(
                {"path": relative, "size": path.stat().st_size, "digest": digest_file(path)}
            )
        record = {
            "schema_version": SCHEMA_VERSION,
            "stage": node.stage,
            "key": node.key,
            "part_key": node.part_key,
            "parts": list(parts),
            "identity": readable_identity(node),
            "config": mask_values(node.config),
            "counters": dict(made.counters),
            "metrics": dict(made.metrics),
            "files": files,
            "host": {
                "name": platform.node(),
                "machine": platform.machine(),
                "python": platform.python_version(),
                "cpus": os.cpu_count(),
            },
            "started_at": started_at,
            "finished_at": now(),
            "elapsed_s": round(elapsed_s, 3),
            "cpu_s": round(cpu_s, 3),
            "peak_memory_bytes": peak_memory_bytes(),
            "input_bytes": input_bytes,
        }
        write_sealed(made.path / ARTIFACT_FILE, record)
        return self._place(node.stage, node.key, made.path)

    def _place(self, stage: str, key: str, made: Path) -> Artifact:
        """Give finished work, with its record, the place of its key."""
        final = self.path(stage, key)
        final.parent.mkdir(parents=True, exist_ok=True)
        replaced = None
        # Damaged or forced: out of the way first, so that no reader sees a mixture.
        if final.exists():
            replaced = self.set_aside(stage, key)
        os.rename(made, final)
        sync_folder(final.parent)
        if replaced:
            shutil.rmtree(replaced)
        shutil.rmtree(self.work_dir(stage, key))
        artifact = load_artifact(final)
        assert artifact is not None
        return artifact

    def share(self, artifact: Artifact) -> None:
        """Give other machines an artifact that a run found here, if they do not have it."""

    def bring(self, folder: Path) -> None:
        """Fetch the folder of an artifact that another machine made; other folders are left as they
        are."""

    def share_file(self, path: Path) -> None:
        """Give other machines a file that belongs to no artifact, such as the record of a run."""

    def receive_files(self, folder: Path) -> None:
        """Fetch what other machines have written into such a folder."""

    def require_free_disk(self, stage: str, needed_bytes: int) -> None:
        """Raise StageFailure before anything is lost, rather than fail in the middle of a write."""
        self.root.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.root).free
        if free < needed_bytes:
            raise StageFailure(
                f"{stage} needs about {needed_bytes / 1e9:.1f} GB of free space in {self.root},"
                f" which has {free / 1e9:.1f} GB; free some with textmill gc, or set store to a"
                " folder on another disk"
            )


def waiting_for(stage: str, key: str, holder: str) -> str:
    return f"{stage} {key} is being built by {holder}; waiting for it"


def _take(lock: IO[str]) -> str:
    """Lock a file if it is free. Gives its holder, or an empty text if it was free."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        return lock.read().strip() or "another run"
    return ""


def _sign(lock: IO[str]) -> None:
    """Write into a lock file that this process holds it."""
    lock.truncate(0)
    lock.write(f"process {os.getpid()} on {platform.node()}")
    lock.flush()


def readable_identity(node: Node) -> dict[str, Any]:
    """What the key hashes, with secrets of the config masked. The key itself hashes the secrets."""
    return {
        name: mask_values(value) if name == "config" else value
        for name, value in node.identity.items()
    }


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def peak_memory_bytes() -> int:
    """Peak resident memory of this process or of its largest finished child."""
    unit = 1 if platform.system() == "Darwin" else 1024
    return unit * max(
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
