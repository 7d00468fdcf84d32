"""Trains with weights that are a few steps old: a worker of a parameter server, which waits for
others only where it would be more than `parallel.staleness` steps ahead.

The worker has a model of its own, so that weights do not change under a backward pass. In a step
it takes the gradient of its rows, divided by their targets; servers update with that at once, at an
n-th of the learning rate for n workers, so that n gradients move weights as far as one step of DDP.
Each is clipped by its own norm, and an optimizer's moments decay with each.

The model of the layout has the weights that this process serves, and those of others as they were
at the last meeting. Processes meet to validate, to save and at the end: then no gradient is under
way, and all have the same weights. A checkpoint is written there, so a run resumes from it as it
was, though not to the same numbers, which depend on the timing. Cost: 4 bytes a weight beyond DDP.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from llm_core.optim.optimizer import Optimizer
from llm_core.parallel.apply import build_layout
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.layout import Layout
from llm_core.parallel.ranks import Ranks
from llm_core.parallel.servers.shares import gradients_of, joined, pieces_of
from llm_core.training.adapted import trains
from llm_core.training.run_config import RunConfig
from llm_core.training.stale.server import (
    FACTS,
    GRADIENT,
    LEAVES,
    NUM_FACTS,
    WEIGHTS,
    Server,
)


class Worker:
    """Takes the place of the optimizer in a training step: it sends gradients to servers and has
    their weights afterwards.

    layout, ranks: those of the step, of one process. should_stop: asked in each step. stops:
    whether all workers stop after the step that was made last.
    """

    loss_scale: Tensor | None = None

    def __init__(
        self,
        config: RunConfig,
        served: Layout,
        optimizer: Optimizer,
        everyone: Ranks,
        should_stop: Callable[[], bool],
    ) -> None:
        assert served.servers is not None
        self._config, self._served, self._optimizer = config.parallel, served, optimizer
        self._servers, self._everyone, self._should_stop = served.servers, everyone, should_stop
        self.ranks = Ranks(0, 1, served.device)
        self.layout = build_layout(
            config.trained_model,
            ParallelConfig(device="cpu"),
            config.train,
            self.ranks,
            config.memory,
            fill=False,
            trains=partial(trains, config),
        )
        # Its own, since the server's thread receives while the trainer's exchanges.
        timeout = timedelta(seconds=self._config.timeout_s)
        self._group = dist.new_group(timeout=timeout)
        self._own = dict(self.layout.bare.named_parameters())
        self._server: Server | None = None
        self._clock, self._stop_at = 0, float("inf")
        self._sent_bytes = 0

    @property
    def stops(self) -> bool:
        return self._clock >= self._stop_at

    def begin(self) -> None:
        """Before a step: take the weights of the layout, where the last meeting has left them."""
        if self._server is not None:
            return
        with torch.no_grad():
            for name, weight in self._served.bare.named_parameters():
                self._own[name].copy_(weight)
        self._clock, self._stop_at = 0, float("inf")
        masters = dict(self._served.bare.named_parameters())
        mine = [masters[name] for name in self._servers.names[self._servers.rank]]
        settings = self._config.staleness, self._config.timeout_s
        self._server = Server(mine, self._optimizer, self._group, *settings)

    def step(
        self,
        lr: float,
        loss: Tensor,
        norm: Tensor,
        num_targets: Tensor | None = None,
        loads_LE: Tensor | None = None,
    ) -> Tensor:
        """Push the gradients of this worker and pull weights, as `Optimizer.step`; loss, norm,
        num_targets: of this worker's rows."""
        assert self._server is not None and num_targets is not None
        self._clock += 1
        rate, stops = lr / self._servers.size, float(self._should_stop())
        facts = torch.tensor(
            [self._clock, rate, float(loss), float(norm), float(num_targets), stops],
            dtype=torch.float64,
        )
        own, parts = self._servers.rank, [self._part(rank) for rank in range(self._servers.size)]
        # Asked for first: a server that answers never waits for a worker that still pushes.
        answers = {rank: self._receive(rank, part) for rank, part in enumerate(parts) if len(part)}
        sends = [self._send(rank, facts, part) for rank, part in enumerate(parts) if len(part)]
        report = self._server.push(own, facts, parts[own])
        for work in (work for some in sends for work in some):
            work.wait()
        for rank, (answer, arriving) in answers.items():
            if arriving is not None:
                arriving.wait()
            self._take(rank, self._server.pull() if arriving is None else answer)
        if own not in answers:
            self._server.pull()
        return report

    def zero_grad(self) -> None:
        for weight in self._own.values():
            weight.grad = None

    def row(self) -> dict[str, float]:
        """What the server of this process has seen since the processes met."""
        assert self._server is not None
        missed, ahead = self._server.missed, self._server.ahead
        return {
            "missed_updates": sum(missed) / len(missed),
            "most_missed_updates": max(missed),
            "most_steps_ahead": max(ahead),
        }

    @property
    def sent_bytes(self) -> int:
        """By this process, its server among them."""
        return self._sent_bytes + (self._server.sent_bytes if self._server else 0)

    def meet(self) -> bool:
        """Wait for all workers and servers, and give all processes the same weights; whether one of
        them wants to stop. Every process must call it, after the same step."""
        if self._server is not None:
            facts = torch.full((NUM_FACTS,), LEAVES, dtype=torch.float64)
            for rank, names in enumerate(self._servers.names):
                if names and rank != self._servers.rank:
                    dist.send(facts, rank, group=self._group, tag=FACTS)
            self._server.close()
            self._sent_bytes, self._server = self.sent_bytes, None
        self._servers.pull()
        return self._everyone.any(self._should_stop())

    def _part(self, rank: int) -> Tensor:
        """The gradient of what a process serves."""
        return joined(gradients_of(self._own[name] for name in self._servers.names[rank]))

    def _receive(self, rank: int, part: Tensor) -> tuple[Tensor, dist.Work | None]:
        answer = part.new_empty(len(part) + 1)
        if rank == self._servers.rank:
            return answer, None
        return answer, dist.irecv(answer, rank, group=self._group, tag=WEIGHTS)

    def _send(self, rank: int, facts: Tensor, part: Tensor) -> list[dist.Work]:
        if rank == self._servers.rank:
            return []
        self._sent_bytes += part.nbytes
        found = [
            dist.isend(facts, rank, group=self._group, tag=FACTS),
            dist.isend(part, rank, group=self._group, tag=GRADIENT),
        ]
        return [work for work in found if work is not None]

    @torch.no_grad()
    def _take(self, rank: int, answer: Tensor) -> None:
        weights = [self._own[name].data for name in self._servers.names[rank]]
        for weight, piece in pieces_of(weights, answer[:-1]):
            weight.copy_(piece)
        self._stop_at = min(self._stop_at, float(answer[-1]))


def make_worker(
    config: RunConfig,
    layout: Layout,
    optimizer: Optimizer,
    ranks: Ranks,
    should_stop: Callable[[], bool],
) -> Worker | None:
    """The worker of a process; None: processes wait for each other."""
    if not config.parallel.is_stale:
        return None
    return Worker(config, layout, optimizer, ranks, should_stop)
