"""Reads the next batches in a thread while a step computes, so that the device never waits for the
disk.

Batches are a pure function of the step, so reading ahead changes when, never what: a step out of
order, as after a resume, begins anew. On a GPU the tensors are put into pinned memory, from which
copies run beside the computation. What goes wrong in the thread is raised where the batch is asked
for.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from llm_core.data.batch import Batch


class Prefetch:
    """`batches`, up to `depth` steps ahead, none after `num_steps`. Leaving it ends the thread."""

    def __init__(
        self, batches: Callable[[int], Batch], num_steps: int, depth: int, pin_memory: bool = False
    ) -> None:
        self._batches, self._num_steps = batches, num_steps
        self._depth, self._pin = depth, pin_memory
        self._pending: dict[int, Future[Batch]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")

    def __call__(self, step: int) -> Batch:
        """The batch of a step."""
        if self._depth == 0:
            return self._make(step)
        if step not in self._pending:
            self._forget()
        for number in (step, *range(step + 1, min(step + 1 + self._depth, self._num_steps))):
            if number not in self._pending:
                self._pending[number] = self._thread.submit(self._make, number)
        return self._pending.pop(step).result()

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._forget()
        self._thread.shutdown()

    def _forget(self) -> None:
        for future in self._pending.values():
            future.cancel()
        self._pending.clear()

    def _make(self, step: int) -> Batch:
        batch = self._batches(step)
        if not self._pin:
            return batch
        return Batch(*(None if tensor is None else tensor.pin_memory() for tensor in batch))  # type: ignore[arg-type]
