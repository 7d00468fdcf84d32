"""Defines what a stage leaves behind: files in a directory, and `artifact.json` that says how they
came to be.

`artifact.json` is written last, by atomic rename: its presence means complete. A stage function
makes an `Artifact` with counters and metrics; `tasks.runtime.store` adds identity and lineage when
it publishes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_core.durable import write_durably
from llm_core.json_files import UnreadableJson, dump_json, is_inside, read_json

SCHEMA_VERSION = 1
ARTIFACT_FILE = "artifact.json"
SEAL = "record_digest"
"""Name in a record of the digest of all its other content."""


class ArtifactMismatch(ValueError):
    """An artifact that is not what its reader needs: older schema, other stage, missing file."""


class DamagedRecord(ValueError):
    """A JSON record that cannot be read, or is not what was written."""


@dataclass(frozen=True)
class Artifact:
    """A typed result on disk.

    `counters` are JSON counts; where documents pass through they hold `read`, `kept`,
    `dropped` {reason: count} and `quarantined`. `metrics` are JSON numbers, tables and texts.
    `record` is the whole artifact.json once published, and empty before.
    """

    path: Path
    stage: str
    counters: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> Path:
        """Where its files are, or will be: those of a shared store may not be fetched yet."""
        return self.path

    @property
    def key(self) -> str:
        return str(self.record.get("key", ""))

    @property
    def config(self) -> Mapping[str, Any]:
        return self.record.get("config", {})

    def files(self, pattern: str) -> list[Path]:
        """Files of this artifact that match a glob, in name order.

        A published artifact has the files of its record and no others.
        """
        found = sorted(self.path.glob(pattern))
        if not self.record:
            return found
        own = {self.path / entry["path"] for entry in self.record["files"]}
        return [path for path in found if path in own]

    def file(self, name: str) -> Path:
        path = self.path / name
        if not path.exists():
            raise ArtifactMismatch(
                f"{self.stage} artifact {self.path} has no {name}; rebuild it with"
                f" force=[{self.stage}]"
            )
        return path

    def file_digest(self, name: str) -> str:
        """The recorded content digest of a file; a fresh one where nothing is published yet."""
        for entry in self.record.get("files", ()):
            if entry["path"] == name:
                return str(entry["digest"])
        return digest_file(self.path / name)


def load_artifact(path: Path) -> Artifact | None:
    """The finished artifact in `path`, or None. Raises ArtifactMismatch on a broken record."""
    file = path / ARTIFACT_FILE
    try:
        sealed = _read_object(file)
        # Before the seal, which another version may make in another way.
        if sealed["schema_version"] != SCHEMA_VERSION:
            raise ArtifactMismatch(
                f"{file} has schema {sealed['schema_version']}, and this version of textmill reads"
                f" schema {SCHEMA_VERSION}"
            )
        if odd := [entry["path"] for entry in sealed["files"] if not is_inside(entry["path"])]:
            raise ArtifactMismatch(
                f"{file} names {odd[0]!r}, which is not in its folder; remove {path}"
            )
        record = _unsealed(sealed)
        return Artifact(path, record["stage"], record["counters"], record["metrics"], record)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (DamagedRecord, KeyError, TypeError) as error:
        raise ArtifactMismatch(f"{file} is not a readable artifact record ({error})") from error


def check_accounting(stage: str, counters: Mapping[str, Any]) -> None:
    """Every document that was read is kept, dropped for a reason, or quarantined."""
    read, kept = counters["read"], counters["kept"]
    dropped, quarantined = sum(counters.get("dropped", {}).values()), counters.get("quarantined", 0)
    assert read == kept + dropped + quarantined, (
        f"{stage} lost documents: read {read} != kept {kept} + dropped {dropped} + quarantined"
        f" {quarantined}"
    )


def digest_file(path: Path) -> str:
    """128-bit BLAKE2b of a file's bytes, in hex."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_json(path: Path, value: Any, indent: int | None = 1) -> None:
    """Write JSON so that a reader sees the old file or the whole new one, even after a crash.

    Without an indent the encoder is compiled, and an order of magnitude faster. Raises ConfigError
    for what `read_json` refuses: too long, too deep, or with a number of too many digits.
    """
    text = dump_json(path.name, value, indent=indent, ensure_ascii=False)
    write_durably(path, text + "\n")


def write_sealed(path: Path, record: Mapping[str, Any], indent: int | None = 1) -> None:
    """`write_json` of a record and the digest of its content. Raises ValueError for what JSON does
    not have.

    A flipped byte in a record is often valid JSON still: another count, another key.
    """
    # What JSON makes of it (tuples become lists) is what a reader takes the digest of.
    value = json.loads(json.dumps(record, allow_nan=False))
    write_json(path, value | {SEAL: _digest_record(value)}, indent)


def read_sealed(path: Path) -> dict[str, Any]:
    """A record without its seal; one that was written without is taken as it is.

    Raises DamagedRecord, or FileNotFoundError where there is none.
    """
    return _unsealed(_read_object(path))


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = read_json(path)
    except UnreadableJson as error:
        raise DamagedRecord(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DamagedRecord("not a JSON object")
    return value


def _unsealed(sealed: Mapping[str, Any]) -> dict[str, Any]:
    record = {name: value for name, value in sealed.items() if name != SEAL}
    if SEAL in sealed and sealed[SEAL] != _digest_record(record):
        raise DamagedRecord("its content is not what was written")
    return record


def _digest_record(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def link_file(source: Path, target: Path) -> None:
    """Give `source` a second name, or a copy where the file system has no links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
