"""Looks at the folder of checkpoints from all ranks, so that all go on alike or fail alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from llm_core.checkpoint.index import CheckpointError
from llm_core.parallel.hosts.exchange import Said
from llm_core.parallel.ranks import Ranks

T = TypeVar("T")


@dataclass(frozen=True)
class Agreement:
    """Over one folder. Every rank has one and makes the same calls."""

    root: Path
    ranks: Ranks

    def on_first(self, act: Callable[[], T]) -> T:
        """What the first rank gets, a value that JSON has, for every rank. Raises CheckpointError
        on all of them where the file system refuses it."""
        answer, failure = "", None
        if self.ranks.is_first:
            try:
                answer = json.dumps([act()])
            except OSError as error:
                answer, failure = json.dumps(str(error)), error
        slot = 0 if self.ranks.is_first else None
        found = json.loads(self.ranks.hosts.collect(slot, answer, 1)[0])
        if isinstance(found, str):
            raise CheckpointError(
                f"{self.root} cannot be read or changed (rank 0: {found}); give it room and write"
                " permission, then run again"
            ) from failure
        first: T = found[0]
        return first

    def on_all(self, look: Callable[[], str | None]) -> Said:
        """What ranks find. Raises CheckpointError, on all, where one gets no answer."""
        found = failure = None
        try:
            found = look()
        except OSError as error:
            failure = f"rank {self.ranks.rank}: {error}"
        if (failed := self.ranks.hosts.ask(failure)).count:
            raise CheckpointError(
                f"{self.root} cannot be read ({listed(failed)}); it is left as it is, run again"
            )
        return self.ranks.hosts.ask(found)


def listed(said: Said) -> str:
    """What some said, in a line."""
    more = said.count - len(said.texts)
    return "; ".join(said.texts) + (f"; and {more} more" if more else "")
