"""Serves the weights of one process to workers that do not wait for each other, within a bound.

A worker at clock c has pushed c gradients. The server updates with each gradient as it comes, and
answers with its weights once the slowest worker is at clock c - staleness or later (stale
synchronous parallel: Ho et al. 2013, "More effective distributed ML via a stale synchronous parallel
parameter server"). So a worker never begins a step more than `staleness` clocks ahead.

| message | tag | content |
|---|---|---|
| facts | 1 | clock, learning rate, loss, norm, targets, whether the worker wants to stop; clock -1: it leaves |
| gradient | 2 | of the weights served here, flat |
| weights | 3 | the same weights, flat, and the clock after which all stop |

Workers that want to stop must all stop after the same step. Nobody goes beyond clock c + staleness
before the push of clock c is here, so that is where they stop.
"""  # noqa: E501

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from llm_core.parallel.servers.shares import joined, pieces_of

FACTS, GRADIENT, WEIGHTS = 1, 2, 3
NUM_FACTS = 6
LEAVES = -1.0


class Updates(Protocol):
    """What a server asks of an optimizer."""

    def step(self, lr: float, loss: Tensor, norm: Tensor, num_targets: Tensor) -> Tensor: ...

    def zero_grad(self) -> None: ...


class Server:
    """Answers the workers of a group while its thread runs; the worker of this process calls
    `push` and `pull` instead of sending.

    weights: those that this process serves and `optimizer` updates.
    """

    def __init__(
        self,
        weights: Sequence[nn.Parameter],
        optimizer: Updates,
        group: dist.ProcessGroup,
        staleness: int,
        timeout_s: float,
    ) -> None:
        self._weights, self._optimizer, self._group = list(weights), optimizer, group
        self._rank, self._size = dist.get_rank(group), dist.get_world_size(group)
        self._staleness, self._timeout_s = staleness, timeout_s
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._clocks = [0] * self._size
        self._waiting: set[int] = set()
        self._answer: Tensor | None = None
        self._stop_at = math.inf
        self._version, self._seen = 0, [0] * self._size
        self.missed: list[int] = []
        """Of each gradient, the updates that came between the weights it was taken of and it."""
        self.ahead: list[int] = []
        """Of each answer, how far the worker was ahead of the slowest."""
        self.sent_bytes = 0
        # A thread of a process that has failed must not keep it.
        self._thread = threading.Thread(target=self._serve, name="server", daemon=True)
        if self._weights:
            self._thread.start()

    @property
    def answer_numel(self) -> int:
        return sum(weight.numel() for weight in self._weights) + 1

    def push(self, worker: int, facts: Tensor, gradient: Tensor) -> Tensor:
        """Update with the gradient of a worker; the report of the optimizer."""
        with self._changed:
            self.missed.append(self._version - self._seen[worker])
            clock, lr, loss, norm, targets, stops = facts.unbind()
            for weight, piece in pieces_of(self._weights, gradient):
                weight.grad = piece
            report = self._optimizer.step(float(lr), loss, norm, targets)
            self._optimizer.zero_grad()
            self._version += 1
            self._clocks[worker] = int(clock)
            if stops:
                self._stop_at = min(self._stop_at, int(clock) + self._staleness)
            self._waiting.add(worker)
            self._answer_those_within()
        return report

    def pull(self) -> Tensor:
        """The answer to the worker of this process, once it may go on."""
        with self._changed:
            there = self._changed.wait_for(
                lambda: self._answer is not None or self._error is not None, self._timeout_s
            )
            if self._error is not None:
                raise RuntimeError("the server of this process failed") from self._error
            if not there or self._answer is None:
                raise RuntimeError(
                    f"the slowest worker did not come within {self._timeout_s:.0f} s"
                    " (parallel.timeout_s)"
                )
            answer, self._answer = self._answer, None
        return answer

    def close(self) -> None:
        """Return once all workers have left."""
        if self._weights:
            self._thread.join(self._timeout_s)
        if self._error is not None:
            raise RuntimeError("the server of this process failed") from self._error
        if self._thread.is_alive():
            raise RuntimeError(f"some workers did not leave within {self._timeout_s:.0f} s")

    def _answer_those_within(self) -> None:
        least = min(self._clocks) if self._weights else self._clocks[self._rank]
        within = [w for w in self._waiting if self._clocks[w] - least <= self._staleness]
        answer = None
        for worker in sorted(within):
            if answer is None:
                with torch.no_grad():
                    flat = joined([weight.data for weight in self._weights])
                    answer = torch.cat([flat, flat.new_tensor([self._stop_at])])
            self._waiting.discard(worker)
            self._seen[worker] = self._version
            self.ahead.append(self._clocks[worker] - least)
            if worker == self._rank:
                self._answer = answer
            else:
                # Workers wait for answers before they push, so this never waits for a worker.
                dist.send(answer, worker, group=self._group, tag=WEIGHTS)
                self.sent_bytes += answer.nbytes
        self._changed.notify_all()

    def _serve(self) -> None:
        try:
            num_workers, facts = self._size - 1, torch.empty(NUM_FACTS, dtype=torch.float64)
            gradient = joined([weight.data for weight in self._weights])
            while num_workers:
                worker = dist.recv(facts, group=self._group, tag=FACTS)
                if facts[0] == LEAVES:
                    num_workers -= 1
                    continue
                dist.recv(gradient, worker, group=self._group, tag=GRADIENT)
                self.push(worker, facts, gradient)
        except Exception as error:  # noqa: BLE001 - the worker raises it, as nobody waits for a thread
            with self._changed:
                self._error = error
                self._changed.notify_all()
