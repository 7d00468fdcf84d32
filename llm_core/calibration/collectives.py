"""Runs, checks and times one collective at a time, with the sizes and bandwidths of nccl-tests.

S is the size of the buffer, and of those that hold the pieces of all n processes the size of all
pieces together. The algorithm bandwidth is S over the time; the bus bandwidth is that times a
factor, 2 (n - 1) / n for all_reduce, (n - 1) / n where pieces are exchanged and 1 elsewhere, so
that it can be held against the speed of a link whatever n is (nccl-tests, doc/PERFORMANCE.md).
A time is the longest of all processes, which begin together.

Out of place means that the input is kept: torch has all_reduce, reduce and broadcast in place only,
so that out of place a copy is made, and counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from llm_core.compat import all_gather_single, reduce_scatter_single
from llm_core.device import synchronize

Kind = Literal[
    "broadcast", "scatter", "reduce", "all_reduce", "gather", "all_gather", "reduce_scatter",
    "all_to_all", "send", "barrier",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
IN_PIECES = ("scatter", "gather", "all_gather", "reduce_scatter", "all_to_all")
"""Of which S holds a piece for each process."""
IN_PLACE = ("broadcast", "reduce", "all_reduce", "all_gather", "reduce_scatter")
"""Of which the result may lie where the input was."""
PERIOD, PERIOD_16_BIT = 251, 13
"""Of the numbers that are sent: primes, so that pieces differ, and small, so that sums are exact;
in bfloat16 of up to 21 processes."""


@dataclass(frozen=True)
class Job:
    """One collective of one group, ready to run any number of times."""

    kind: Kind
    group: dist.ProcessGroup
    num_bytes: int
    """S."""
    run: Callable[[], object]
    reset: Callable[[], object]
    """Put the input back, where a result took its place."""
    result: Tensor
    expected: Tensor
    """Equal to the result after a run; empty on processes that get none."""

    def is_right(self) -> bool:
        """Run once; whether every process of the group got what it should."""
        self.reset()
        self.run()
        wrong = torch.tensor(
            int(not torch.equal(self.result[: len(self.expected)], self.expected)),
            device=self.result.device,
        )
        dist.all_reduce(wrong, dist.ReduceOp.MAX, group=self.group)
        return not wrong

    def times_s(self, num_times: int, num_warm_up: int) -> list[float]:
        """Of each run, that of the slowest process."""
        device = self.result.device
        found = torch.zeros(num_times, dtype=torch.float64, device=device)
        for number in range(-num_warm_up, num_times):
            dist.barrier(group=self.group)
            synchronize(device)
            began = time.perf_counter()
            self.run()
            synchronize(device)
            if number >= 0:
                found[number] = time.perf_counter() - began
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.group)
        return found.tolist()  # type: ignore[no-any-return]


def bus_factor(kind: Kind, size: int) -> float:
    """Bus over algorithm bandwidth in a group of `size` processes."""
    if kind == "all_reduce":
        return 2 * (size - 1) / size
    return (size - 1) / size if kind in IN_PIECES else 1.0


def pattern(rank: int, numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What a process of this rank in its group sends: (7 rank + j) mod 251 or 13."""
    period = PERIOD_16_BIT if dtype.itemsize == 2 else PERIOD
    return ((torch.arange(numel, device=device) + 7 * rank) % period).to(dtype)


def prepare(
    kind: Kind,
    numel: int,
    group: dist.ProcessGroup,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
    in_place: bool = False,
    fill: Callable[[int, int, torch.dtype, torch.device], Tensor] = pattern,
) -> Job:
    """A collective over `numel` numbers in all, of which those in pieces drop the remainder.

    fill: (rank, numel, dtype, device) → what that process sends. Raises ValueError for one that has
    no form in place.
    """
    if in_place and kind not in IN_PLACE:
        raise ValueError(f"{kind} has no form in place; of those that have: {', '.join(IN_PLACE)}")
    size, me = dist.get_world_size(group), dist.get_rank(group)
    place = device or torch.device("cpu")
    piece = numel // size
    numel = piece * size if kind in IN_PIECES else numel

    def of(rank: int, count: int) -> Tensor:
        return fill(rank, count, dtype, place)

    def pieces(whole: Tensor) -> list[Tensor]:
        return list(whole.view(size, piece))

    empty = torch.empty(0, dtype=dtype, device=place)
    whole = torch.empty(numel, dtype=dtype, device=place)
    part = torch.empty(piece, dtype=dtype, device=place)
    own = whole[me * piece : (me + 1) * piece]

    if kind in ("broadcast", "reduce", "all_reduce"):
        given = of(me, numel)
        everywhere = {
            "broadcast": lambda: dist.broadcast(whole, group=group, group_src=0),
            "reduce": lambda: dist.reduce(whole, group=group, group_dst=0),
            "all_reduce": lambda: dist.all_reduce(whole, group=group),
        }[kind]

        def run() -> None:
            if not in_place:
                whole.copy_(given)
            everywhere()

        expected = of(0, numel) if kind == "broadcast" else _sum(of, size, numel)
        if kind == "reduce" and me:
            expected = empty
        return _job(kind, group, numel, run, lambda: whole.copy_(given), whole, expected)
    if kind == "all_gather":
        mine = own if in_place else part
        return _job(
            kind, group, numel,
            lambda: all_gather_single(whole, mine, group=group),
            lambda: mine.copy_(of(me, piece)),
            whole, torch.cat([of(rank, piece) for rank in range(size)]),
        )  # fmt: skip
    if kind == "reduce_scatter":
        mine = own if in_place else part
        return _job(
            kind, group, numel,
            lambda: reduce_scatter_single(mine, whole, group=group),
            lambda: whole.copy_(of(me, numel)),
            mine, _sum(of, size, numel)[me * piece : (me + 1) * piece],
        )  # fmt: skip
    if kind == "all_to_all":
        given = of(me, numel)
        return _job(
            kind, group, numel,
            lambda: dist.all_to_all_single(whole, given, group=group),
            lambda: None,
            whole, torch.cat([pieces(of(rank, numel))[me] for rank in range(size)]),
        )  # fmt: skip
    if kind == "scatter":
        given = pieces(of(0, numel)) if me == 0 else None
        return _job(
            kind, group, numel,
            lambda: dist.scatter(part, given, group=group, group_src=0),
            lambda: None,
            part, of(0, numel)[me * piece : (me + 1) * piece],
        )  # fmt: skip
    if kind == "gather":
        given, gathered = of(me, piece), pieces(whole) if me == 0 else None
        joined = torch.cat([of(rank, piece) for rank in range(size)]) if me == 0 else empty
        return _job(
            kind, group, numel,
            lambda: dist.gather(given, gathered, group=group, group_dst=0),
            lambda: None,
            whole, joined,
        )  # fmt: skip
    if kind == "send":
        given = of(me, numel)
        return _job(
            kind, group, numel,
            lambda: send_around(given, whole, group),
            lambda: None,
            whole, of((me - 1) % size, numel),
        )  # fmt: skip
    return _job(kind, group, 0, lambda: dist.barrier(group=group), lambda: None, empty, empty)


def _job(
    kind: Kind,
    group: dist.ProcessGroup,
    numel: int,
    run: Callable[[], object],
    reset: Callable[[], object],
    result: Tensor,
    expected: Tensor,
) -> Job:
    reset()
    return Job(kind, group, numel * result.element_size(), run, reset, result, expected)


def _sum(of: Callable[[int, int], Tensor], size: int, numel: int) -> Tensor:
    total = of(0, numel)
    for rank in range(1, size):
        total = total + of(rank, numel)
    return total


def send_around(given: Tensor, taken: Tensor, group: dist.ProcessGroup) -> None:
    """To the next process of a ring, while the one before sends to this."""
    size, me = dist.get_world_size(group), dist.get_rank(group)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, given, group=group, group_peer=(me + 1) % size),
            dist.P2POp(dist.irecv, taken, group=group, group_peer=(me - 1) % size),
        ]
    )
    for work in works:
        work.wait()


def uneven_exchange_is_right(group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether all-to-all brings pieces of different lengths: process r sends r + j + 1 numbers to
    process j."""
    size, me = dist.get_world_size(group), dist.get_rank(group)
    sent = [me + other + 1 for other in range(size)]

    def to(rank: int, other: int) -> Tensor:
        return pattern(rank + size * other, rank + other + 1, torch.float32, device)

    taken = torch.empty(sum(sent), device=device)
    given = torch.cat([to(me, other) for other in range(size)])
    dist.all_to_all_single(taken, given, sent, sent, group=group)
    right = torch.equal(taken, torch.cat([to(rank, me) for rank in range(size)]))
    wrong = torch.tensor(int(not right), device=device)
    dist.all_reduce(wrong, dist.ReduceOp.MAX, group=group)
    return not wrong


def make_groups(size: int) -> dist.ProcessGroup:
    """That of this process, where neighbours in groups of `size` work at the same time. Collective
    over all processes."""
    world, found = dist.get_world_size(), dist.group.WORLD
    for first in range(0, world, size):
        members: Sequence[int] = range(first, first + size)
        made = dist.new_group(list(members)) if size < world else dist.group.WORLD
        if dist.get_rank() in members:
            found = made
    assert found is not None, "every process is in a group"
    return found
