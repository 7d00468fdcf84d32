"""Repeats something in a thread beside the work of a process.

Files that cannot be written, as on a full disk or in a folder that was removed, end neither the
thread nor the process: the first such error is noted in one line. Other errors are defects.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from llm_core.printing import note


class Beats:
    """Calls `act` every `every_s` seconds while it is entered, from the first pause on.

    name: of the thread. what: what `act` writes, for the note.
    """

    def __init__(self, name: str, act: Callable[[], None], every_s: float, what: str) -> None:
        self._act, self._every_s, self._what = act, every_s, what
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name=name, daemon=True)
        self._has_noted = False

    def __enter__(self) -> Beats:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()
        self._thread.join()

    def end(self) -> None:
        """Begin no further beat; one may still be running."""
        self._ended.set()

    @property
    def have_ended(self) -> bool:
        return self._ended.is_set()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Note the first OSError raised within, and go on."""
        try:
            yield
        except OSError as error:
            if not self._has_noted:
                self._has_noted = True
                note(f"{self._what} was not written: {error}; the run goes on")

    def _repeat(self) -> None:
        while not self._ended.wait(self._every_s):
            with self.writing():
                self._act()
