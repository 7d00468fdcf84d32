"""Reads the list of withdrawn documents, and recognises them among records.

A line names one document, by our id in hex or by the id its source gave it. A withdrawn record is
dropped before its text is read: only its ids, its place and the reason reach `dropped.parquet`, and
so no later stage ever has it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from llm_core.config import ConfigError
from tasks.corpus.documentset import ID, read_table
from tasks.runtime.artifact import Artifact
from tasks.runtime.inputs import load_once
from tasks.runtime.keys import digest
from tasks.runtime.stage import StageFailure

WITHDRAWN = "WITHDRAWN"
REMOVE_FILE = "/source.remove"
"""Name of the list among the inputs of a key. No file of a source has a name that begins with /."""


class Withdrawn:
    """Names of withdrawn documents, and those that a record has had so far."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        # Ours in any case, those of a source as they are written.
        self._by_id = {name.lower(): name for name in names if _is_id(name)}
        self.found: set[str] = set()

    def has(self, document_id: bytes, source_id: str | None) -> bool:
        """Whether a record is withdrawn."""
        if not self._names:
            return False
        known = self._names & {self._by_id.get(document_id.hex()), source_id}
        self.found |= known
        return bool(known)

    @property
    def unknown(self) -> list[str]:
        return sorted(self._names - self.found)


def read_withdrawn(path: Path | None, expected: str | None = None) -> Withdrawn:
    """The names in a list; none without a list. Raises ConfigError for one that cannot be read.

    expected: `digest_withdrawn` of it, where a part was planned with it. Raises StageFailure where
    it is another one by now.
    """
    names = withdrawn_names(path)
    if expected is not None and _digest(names) != expected:
        raise StageFailure(f"{path} changed while the source was read; run again")
    return Withdrawn(names)


def digest_withdrawn(path: Path | None) -> str | None:
    """A digest of the names in a list, whatever their order; None where there are none."""
    names = withdrawn_names(path)
    return _digest(names) if names else None


def withdrawn_names(path: Path | None) -> frozenset[str]:
    """The names in a list; none without a list."""
    return _names(path) if path is not None else frozenset()


def find_named(ingest: Artifact, names: frozenset[str]) -> set[str]:
    """Which of these names a document of an artifact has."""
    found: set[str] = set()
    wanted = pa.array(sorted(names), pa.string())
    ids = pa.array([bytes.fromhex(n) for n in sorted(names) if _is_id(n)], ID)
    for file in ingest.files("documents/part-*.parquet"):
        table = read_table(file, ["id", "source_id"])
        own = table["id"].filter(pc.is_in(table["id"], value_set=ids))
        theirs = table["source_id"].filter(pc.is_in(table["source_id"], value_set=wanted))
        found |= {value.hex() for value in own.to_pylist()} | set(theirs.to_pylist())
    return found - {None}


def _is_id(name: str) -> bool:
    return re.fullmatch("[0-9a-fA-F]{32}", name) is not None


def _digest(names: frozenset[str]) -> str:
    return digest(sorted(names))


@load_once(4)
def _names(path: Path) -> frozenset[str]:
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"source.remove ({path}) is not UTF-8 at byte {error.start}; write one id a line, in"
            " UTF-8"
        ) from error
    return frozenset({line.strip() for line in lines} - {""})
