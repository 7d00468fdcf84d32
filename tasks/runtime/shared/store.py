"""Keeps the artifact store in a bucket: index and files for all machines, and a local store as the
copy of this machine.

| object | what it is |
|---|---|
| `<stage>/<key>.json` | the record of an artifact, byte for byte `artifact.json` |
| `<stage>/<key>/<digest>/<path>` | one of its files |
| `<stage>/<key>.lease` | who is making it (`tasks.runtime.shared.leases`) |
| `.runs/<run>.json` | the record of a run |

The record is put last, where there is none or over the one that was there when the key was taken:
that put alone decides. Objects of files are named by their content and never change, so no reader
finds a mixture, an interrupted upload resumes, and a slow writer that has lost its lease spoils
nothing. Its own result is discarded for the existing one.

Files are downloaded once, when a stage or a command first asks for the folder of an artifact, and
checked by their digests. Parts, checkpoints and other unfinished work stay on the machine that made
them: a key that is taken over elsewhere is built from its beginning.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from llm_core.config import ConfigError
from llm_core.durable import sync_file
from llm_core.printing import get_logger
from tasks.runtime.artifact import (
    ARTIFACT_FILE,
    Artifact,
    ArtifactMismatch,
    link_file,
    load_artifact,
)
from tasks.runtime.shared.bucket import Bucket
from tasks.runtime.shared.leases import LEASE_S, held, held_if_free
from tasks.runtime.soundness import damage as find_damage
from tasks.runtime.stage import StageFailure
from tasks.runtime.store import MARKER_FILE, Node, Store, waiting_for

logger = get_logger("tasks.runtime.shared")
WORTH_SAYING_BYTES = 10_000_000


class SharedArtifact(Artifact):
    """An artifact in the bucket: its folder is filled when somebody first asks for `path`."""

    _place: Path
    _bring: Callable[[], Path]

    def __init__(self, there: Artifact, bring: Callable[[], Path]) -> None:
        # Past the dataclass, which would set `path`.
        self.__dict__.update(vars(there), _place=there.path, _bring=bring)
        del self.__dict__["path"]

    @cached_property
    def path(self) -> Path:  # type: ignore[override]
        return self._bring()

    @property
    def place(self) -> Path:
        return self._place

    def __repr__(self) -> str:
        return f"SharedArtifact({self.stage!r}, {self.key!r})"


class SharedStore(Store):
    """A store below `url`, of which `root` is this machine's copy."""

    def __init__(self, root: Path, url: str, lease_s: float = LEASE_S) -> None:
        super().__init__(root)
        self.bucket, self._lease_s = Bucket(url), lease_s
        self._replaces: dict[tuple[str, str], str | None] = {}
        """For each key that this process holds, the ETag of the record that it may replace."""

    def find(self, stage: str, key: str) -> Artifact | None:
        """The artifact of a key, here or in the bucket, or None."""
        if super().damage(stage, key) is None:
            return load_artifact(self.path(stage, key))
        there = self._look_there(stage, key)
        if isinstance(there, str):
            return None
        return SharedArtifact(there, partial(self._bring, stage, key))

    def damage(self, stage: str, key: str, check_digests: bool = False) -> str | None:
        """None where it is sound here or in the bucket, from which a damaged copy is replaced."""
        here = super().damage(stage, key, check_digests)
        if here is None:
            return None
        there = self._look_there(stage, key)
        if not isinstance(there, str):
            return None
        return here if there == "missing" else there

    def artifacts(self, stage: str) -> list[Artifact]:
        """Those of this machine; where it has none, the newest one in the bucket."""
        if here := super().artifacts(stage):
            return here
        records = {n: t for n, t in self.bucket.listed(stage).items() if n.endswith(".json")}
        if not records:
            return []
        newest = self._look_there(stage, Path(max(records, key=lambda name: records[name])).stem)
        return [] if isinstance(newest, str) else [newest]

    @contextlib.contextmanager
    def hold(self, node: Node, waiting: Callable[[str], None]) -> Iterator[Path]:
        stage, key = node.stage, node.key

        def tell(holder: str) -> None:
            waiting(waiting_for(stage, key, holder))

        with (
            super().hold(node, waiting) as out,
            held(self.bucket, _lease(stage, key), tell, self._lease_s),
        ):
            head = self.bucket.head(_record(stage, key))
            self._replaces[stage, key] = head.etag if head else None
            yield out

    @contextlib.contextmanager
    def alone(self, name: str, waiting: Callable[[], None]) -> Iterator[None]:
        with (
            super().alone(name, waiting),
            held(self.bucket, f".runs/{name}.lease", lambda holder: waiting(), self._lease_s),
        ):
            yield

    def share(self, artifact: Artifact) -> None:
        stage, key = artifact.stage, artifact.key
        if not isinstance(artifact, SharedArtifact) and not self.bucket.head(_record(stage, key)):
            self._send(stage, key, artifact.path, None)

    def bring(self, folder: Path) -> None:
        stage, key = folder.parent.name, folder.name
        if folder == self.path(stage, key) and (found := self.find(stage, key)):
            _ = found.path

    def share_file(self, path: Path) -> None:
        name = path.relative_to(self.root).as_posix()
        self._require_conditions()
        self.bucket.overwrite(name, path.read_bytes())
        if head := self.bucket.head(name):
            _set_time(path, head.modified.timestamp())

    def receive_files(self, folder: Path) -> None:
        """Of two versions the newer one is kept, as a record is written by one machine alone."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, modified in self.bucket.listed(folder.relative_to(self.root).as_posix()).items():
            path, time_s = self.root / name, modified.timestamp()
            if not name.endswith(".json") or path.parent != folder:
                continue
            here_s = path.stat().st_mtime if path.exists() else 0.0
            if here_s > time_s:  # a run that died, and was found out here
                self.share_file(path)
            elif here_s < time_s and (content := self.bucket.read(name)) is not None:
                temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
                temporary.write_bytes(content)
                _set_time(temporary, time_s)
                os.replace(temporary, path)

    def keys_there(self) -> dict[tuple[str, str], int]:
        """{(stage, key): bytes} of everything below stages in the bucket."""
        sizes: dict[tuple[str, str], int] = {}
        for name, size in self.bucket.below("").items():
            stage, _, rest = name.partition("/")
            if key := rest.partition("/")[0].partition(".")[0]:
                sizes[stage, key] = sizes.get((stage, key), 0) + size
        return sizes

    def check_there(self, stage: str, key: str) -> list[str]:
        """A phrase for each file of an artifact in the bucket that is damaged; fetches them all."""
        there = self._look_there(stage, key)
        if isinstance(there, str):
            # Without a record it is an interrupted upload.
            return [] if there == "missing" else [there]
        wrong: list[str] = []
        for file in there.record["files"]:
            with tempfile.TemporaryDirectory(dir=self.root) as folder:
                target = Path(folder) / file["path"]
                target.parent.mkdir(parents=True, exist_ok=True)
                self.bucket.fetch({_object(stage, key, file): target})
                wrong += find_damage(Path(folder), [file])
        return wrong

    def remove_there(self, stage: str, key: str) -> bool:
        """Remove an artifact from the bucket, its record first; False while somebody makes it."""
        with held_if_free(self.bucket, _lease(stage, key), self._lease_s) as free:
            if free:
                self.bucket.remove([_record(stage, key)])
                self.bucket.remove(list(self.bucket.below(f"{stage}/{key}")))
            return free

    def _place(self, stage: str, key: str, made: Path) -> Artifact:
        if self._send(stage, key, made, self._replaces.pop((stage, key), None)):
            return super()._place(stage, key, made)
        logger.warning("%s %s was made by another run meanwhile; taking that", stage, key)
        return self._take_over(stage, key)

    def _send(self, stage: str, key: str, folder: Path, replaces: str | None) -> bool:
        """Put an artifact into the bucket; False where another one is there by now."""
        artifact = load_artifact(folder)
        assert artifact is not None
        there = self.bucket.below(f"{stage}/{key}")
        self.bucket.send(
            {
                name: folder / file["path"]
                for file in artifact.record["files"]
                if there.get(name := _object(stage, key, file)) != file["size"]
            }
        )
        text = (folder / ARTIFACT_FILE).read_bytes()
        # The answer to a put may be lost, and then its own object is what is there.
        return (
            self.bucket.put(_record(stage, key), text, replaces) is not None
            or self.bucket.read(_record(stage, key)) == text
        )

    def _record_there(self, stage: str, key: str, folder: Path) -> Artifact | None:
        """What the bucket has of a key, by its record alone, which is written into a folder. Raises
        ArtifactMismatch on a broken one."""
        text = self.bucket.read(_record(stage, key))
        if text is None:
            return None
        (folder / ARTIFACT_FILE).write_bytes(text)
        artifact = load_artifact(folder)
        assert artifact is not None
        return replace(artifact, path=self.path(stage, key))

    def _look_there(self, stage: str, key: str) -> Artifact | str:
        """What the bucket has of a key, or what `damage` says of it, by the record and the
        sizes."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                artifact = self._record_there(stage, key, Path(folder))
            except ArtifactMismatch as error:
                return f"damaged: {error}"
        if artifact is None:
            return "missing"
        sizes = self.bucket.below(f"{stage}/{key}")
        for file in artifact.record["files"]:
            size = sizes.get(_object(stage, key, file))
            if size != file["size"]:
                wrong = "gone" if size is None else f"of {size} bytes, not {file['size']}"
                return f"damaged: {file['path']} is {wrong} in {self.bucket.url}"
        return artifact

    def _bring(self, stage: str, key: str) -> Path:
        """The folder of an artifact, fetched if it is not here."""
        with self._alone(stage, key, logger.info):
            if super().damage(stage, key) is not None:
                self._take_over(stage, key)
        return self.path(stage, key)

    def _take_over(self, stage: str, key: str) -> Artifact:
        """Fetch an artifact into its place here. The caller holds the key."""
        out = self._empty_out(stage, key)
        there = self._record_there(stage, key, out)
        if there is None:
            raise StageFailure(
                f"{stage} {key} was removed from {self.bucket.url} since the run began; run again"
            )
        num_bytes = sum(file["size"] for file in there.record["files"])
        self.require_free_disk(stage, num_bytes)
        if num_bytes > WORTH_SAYING_BYTES:
            logger.info("%s %s: fetching %.1f MB from the store", stage, key, num_bytes / 1e6)
        if wrong := self._fetch(there, out):
            raise StageFailure(
                f"{stage} {key} is damaged in {self.bucket.url}: {wrong[0]}; run again to rebuild"
                " it"
            )
        for path in out.rglob("*"):
            if path.is_file():
                sync_file(path)
        return super()._place(stage, key, out)

    def _fetch(self, there: Artifact, out: Path) -> list[str]:
        """Fetch the files of an artifact; a phrase for each that is damaged in the bucket. Its
        object is removed, for it is not what its name says, so the artifact counts as damaged from
        then on."""
        own, targets = self.path(there.stage, there.key), {}
        for file in there.record["files"]:
            target = out / file["path"]
            target.parent.mkdir(parents=True, exist_ok=True)
            if next(find_damage(own, [file]), None) is None:
                link_file(own / file["path"], target)
            else:
                targets[_object(there.stage, there.key, file)] = (file, target)
        wrong: dict[str, str] = {}
        for _ in range(2):  # once more, before a fault on the way is taken for one in the bucket
            self.bucket.fetch({name: target for name, (_, target) in targets.items()})
            found = {
                name: next(find_damage(out, [file]), None) for name, (file, _) in targets.items()
            }
            wrong = {name: phrase for name, phrase in found.items() if phrase is not None}
            targets = {name: targets[name] for name in wrong}
        self.bucket.remove(list(wrong))
        return list(wrong.values())

    def _require_conditions(self) -> None:
        """Mark the bucket as a store, and raise ConfigError where its server puts without looking
        at the condition: two runs would both take themselves for the only one."""
        if self.bucket.head(MARKER_FILE) is None:
            self.bucket.put(MARKER_FILE, b"This is a store of textmill.\n", None)
            if self.bucket.put(MARKER_FILE, b"This is a store of textmill.\n", None) is not None:
                raise ConfigError(
                    f"{self.bucket.url} ignores If-None-Match, which keeps two machines from"
                    " writing one artifact; use a server with conditional puts"
                )


def _record(stage: str, key: str) -> str:
    return f"{stage}/{key}.json"


def _lease(stage: str, key: str) -> str:
    return f"{stage}/{key}.lease"


def _object(stage: str, key: str, file: Mapping[str, Any]) -> str:
    return f"{stage}/{key}/{file['digest']}/{file['path']}"


def _set_time(path: Path, time_s: float) -> None:
    os.utime(path, (time_s, time_s))
