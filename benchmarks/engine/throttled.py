"""A process group whose links are as slow as asked for: gloo's results, each held back until a link
of a given start and bandwidth would have brought it.

A process has one link in each direction: what it sends or takes in two groups at once queues. A
collective takes the time of `llm_core.planner.traffic`: hops x start + what a ring sends of it over
the bandwidth. It sleeps meanwhile, so computation goes on as beside a network card. The time begins
when all have come, which is when gloo is done. What is simulated is arithmetic, not TCP.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from llm_core.planner.traffic import collective_hops

NAME = "throttled"
FREE = (0.0, 1e15)
"""(start, bytes per second) of a link that delays nothing."""


class Link:
    """One direction of this process's link, shared by all its groups."""

    def __init__(self, start_s: float, bytes_per_s: float) -> None:
        self.set_speed(start_s, bytes_per_s)
        self.sent_bytes = 0.0
        self._free_at, self._lock = 0.0, threading.Lock()

    def set_speed(self, start_s: float, bytes_per_s: float) -> None:
        self.start_s, self.bytes_per_s = start_s, bytes_per_s

    def pass_through(self, num_bytes: float, hops: int) -> None:
        """Sleep until so much would have passed, after all before it."""
        with self._lock:
            self.sent_bytes += num_bytes
            begins = max(self._free_at, time.perf_counter())
            due = self._free_at = begins + hops * self.start_s + num_bytes / self.bytes_per_s
        time.sleep(max(0.0, due - time.perf_counter()))


class ThrottledGroup(dist.ProcessGroup):
    """What torch calls of a group, passed on to gloo, and answered late."""

    def __init__(self, gloo: Any, rank: int, size: int, links: tuple[Link, Link]) -> None:
        super().__init__(rank, size)
        self._gloo, self._size = gloo, size
        self._out, self._in = links
        # A receive may wait for long while others go on.
        self._waiting = ThreadPoolExecutor(64)

    def getBackendName(self) -> str:
        return NAME

    @property
    def group_name(self) -> str:
        # torch asks a backend for it, of which this group has none.
        return str(distributed_c10d._world.pg_names[self])

    def _late(self, work: Any, tensors: Any, num_bytes: float, link: Link, hops: int) -> Any:
        future: torch.futures.Future[Any] = torch.futures.Future()

        def finish() -> None:
            try:
                work.wait()
                link.pass_through(num_bytes, hops)
            except RuntimeError as error:
                future.set_exception(error)
            else:
                future.set_result(tensors)

        self._waiting.submit(finish)
        return torch._C._distributed_c10d._create_work_from_future(future)

    def _collective(self, work: Any, tensors: Any, num_bytes: float) -> Any:
        return self._late(work, tensors, num_bytes, self._out, collective_hops(self._size))

    def _share(self, tensors: Sequence[Tensor]) -> float:
        """(n - 1) / n of all bytes."""
        return sum(each.nbytes for each in tensors) * (self._size - 1) / self._size

    def broadcast(self, tensors: Any, options: Any) -> Any:
        work = self._gloo.broadcast(tensors, options)
        return self._collective(work, tensors, sum(each.nbytes for each in tensors))

    def allreduce(self, tensors: Any, options: Any) -> Any:
        work = self._gloo.allreduce(tensors, options)
        return self._collective(work, tensors, 2 * self._share(tensors))

    def reduce(self, tensors: Any, options: Any) -> Any:
        work = self._gloo.reduce(tensors, options)
        return self._collective(work, tensors, sum(each.nbytes for each in tensors))

    def allgather(self, outputs: Any, inputs: Any, options: Any) -> Any:
        work = self._gloo.allgather(outputs, inputs, options)
        return self._collective(work, outputs, self._share(outputs[0]))

    def _allgather_base(self, output: Any, given: Any, options: Any) -> Any:
        work = self._gloo._allgather_base(output, given, options)
        return self._collective(work, [output], self._share([output]))

    def _reduce_scatter_base(self, output: Any, given: Any, options: Any) -> Any:
        work = self._gloo._reduce_scatter_base(output, given, options)
        return self._collective(work, [output], self._share([given]))

    def alltoall_base(
        self, output: Any, given: Any, out_splits: Any, in_splits: Any, options: Any
    ) -> Any:
        work = self._gloo.alltoall_base(output, given, out_splits, in_splits, options)
        return self._collective(work, [output], self._share([given]))

    # As torch 2.13 names them.
    all_gather_single = _allgather_base
    reduce_scatter_single = _reduce_scatter_base
    all_to_all_single = alltoall_base

    def barrier(self, opts: Any) -> Any:
        return self._collective(self._gloo.barrier(opts), [], 0)

    def send(self, tensors: Any, target: int, tag: int) -> Any:
        work = self._gloo.send(tensors, target, tag)
        return self._late(work, tensors, sum(each.nbytes for each in tensors), self._out, 1)

    def recv(self, tensors: Any, source: int, tag: int) -> Any:
        work = self._gloo.recv(tensors, source, tag)
        return self._late(work, tensors, sum(each.nbytes for each in tensors), self._in, 1)

    def recv_anysource(self, tensors: Any, tag: int) -> Arrival:
        work = self._gloo.recv_anysource(tensors, tag)
        return Arrival(work, sum(each.nbytes for each in tensors), self._in)


class Arrival:
    """A message from whoever sends next, once its link has brought it; who that was is known then,
    for which torch's futures have no place."""

    def __init__(self, work: Any, num_bytes: float, link: Link) -> None:
        self._work, self._num_bytes, self._link = work, num_bytes, link

    def wait(self) -> bool:
        self._work.wait()
        self._link.pass_through(self._num_bytes, 1)
        return True

    def _source_rank(self) -> int:
        return int(self._work._source_rank())


def register(start_s: float, bytes_per_s: float) -> tuple[Link, Link]:
    """Make the backend known to torch under `NAME`, for this process; its links (out, in)."""
    links = Link(start_s, bytes_per_s), Link(start_s, bytes_per_s)

    def make(store: Any, rank: int, size: int, timeout: timedelta) -> ThrottledGroup:
        gloo: Callable[..., Any] = dist.ProcessGroupGloo
        return ThrottledGroup(gloo(store, rank, size, timeout), rank, size, links)

    dist.Backend.register_backend(NAME, make, devices=["cpu"])
    return links
