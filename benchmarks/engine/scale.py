"""Counts what the processes of a large run send each other: `python -m benchmarks.engine.scale
[--processes 8,64,512,1024] [--page FILE]`.

All processes of a run are objects of this one, over one store in memory; each counts its own
requests and bytes. Model and state are those of 1.1 billion weights under AdamW, without their
numbers. A plan is made once for a layout; a save is all that processes exchange for one checkpoint;
a vote is put after each step. The page is `docs/reference/scale.md`.
"""

from __future__ import annotations

import argparse
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist

from llm_core.checkpoint.index import AXES, Entry, Index, dump_index, make_index
from llm_core.model.config import ModelConfig
from llm_core.parallel.cuts import cut_dim
from llm_core.parallel.hosts.exchange import Hosts, Question
from llm_core.parallel.places import whole_shapes
from llm_core.printing import show

MODEL = ModelConfig(32_000, 2048, 22, 32, 4, 5632, 2048, tied_embeddings=False)
MOMENTS = ("exp_avg", "exp_avg_sq")
Sizes = tuple[int, int, int, int]


@dataclass
class Counted:
    """A store that counts what one process asks of it; looks for what is not there yet are free."""

    store: dist.Store
    requests: int = 0
    num_bytes: int = 0

    def set(self, key: str, value: str) -> None:
        self._count(key, value)
        self.store.set(key, value)

    def get(self, key: str) -> bytes:
        found = self.store.get(key)
        self._count(key, found)
        return found

    def add(self, key: str, amount: int) -> int:
        self._count(key, b"8 bytes.")
        return self.store.add(key, amount)

    def delete_key(self, key: str) -> bool:
        self._count(key, b"")
        return self.store.delete_key(key)

    def check(self, keys: list[str]) -> bool:
        return self.store.check(keys)

    def _count(self, key: str, value: str | bytes) -> None:
        self.requests += 1
        self.num_bytes += len(key) + len(value)

    def taken(self) -> tuple[int, int]:
        """(requests, bytes) since the last time."""
        found = self.requests, self.num_bytes
        self.requests = self.num_bytes = 0
        return found


@dataclass(frozen=True)
class Costs:
    """The most that a process has of each."""

    plan: tuple[int, int]
    """(requests, bytes)"""
    save: tuple[int, int]
    vote: tuple[int, int]
    plan_s: float
    """Of all processes together, over their number."""
    index: Index


def entries(sizes: Sizes, pp: int, model: ModelConfig = MODEL) -> dict[str, Entry]:
    """What a pipeline rank has, cut as FSDP over tensor ranks does."""
    found: dict[str, Entry] = {}
    for name, shape in whole_shapes(model).items():
        owner = 0 if name.startswith("embedding") else sizes[0] - 1
        if name.startswith("blocks."):
            owner = int(name.split(".")[1]) * sizes[0] // model.num_layers
        if owner == pp:
            axes = {"tp": cut_dim(name), "dp_shard": 0}
            cuts = tuple((axis, dim) for axis, dim in axes.items() if dim is not None)
            for full in (f"model.{name}", *(f"optimizer.{name}.{kind}" for kind in MOMENTS)):
                found[full] = Entry(tuple(shape), "F32", cuts)
    return found


def simulate(sizes: Sizes, model: ModelConfig = MODEL) -> Costs:
    """What all processes of a mesh take to plan, to save and to vote; all must plan alike."""
    store, places = dist.HashStore(), list(itertools.product(*map(range, sizes)))
    own = [entries(sizes, pp, model) for pp in range(sizes[0])]
    counts = [Counted(store) for _ in places]
    all_hosts = [Hosts(cast(Any, count), rank, len(places)) for rank, count in enumerate(counts)]

    def plan(rank: int) -> Index:
        return make_index(own[places[rank][0]], sizes, places[rank], all_hosts[rank])

    def ask(questions: list[Question]) -> None:
        for question in questions:
            question.put(None)
        for question in questions:
            question.answer()

    def save() -> None:
        for turn in range(2):
            for rank, hosts in enumerate(all_hosts):
                hosts.collect(None if rank else 0, "[null]", 1)
            if turn == 0:
                ask(asked)

    def most() -> tuple[int, int]:
        taken = [count.taken() for count in counts]
        return max(requests for requests, _ in taken), max(size for _, size in taken)

    asked, voted = ([hosts.question() for hosts in all_hosts] for _ in range(2))
    firsts = [rank for rank, place in enumerate(places) if not any(place[1:])]
    began = time.perf_counter()
    # The first of each pipeline rank wait for each other, the others for nobody.
    with ThreadPoolExecutor(len(firsts)) as threads:
        indexes = dict(zip(firsts, threads.map(plan, firsts), strict=True))
    for rank in range(len(places)):
        if rank not in indexes:
            assert plan(rank) == indexes[0]
    plan_s, planned = (time.perf_counter() - began) / len(places), most()
    # The second turn also removes what the first has left.
    for _ in range(2):
        save()
        saved = most()
        ask(voted)
        in_vote = most()
    return Costs(planned, saved, in_vote, plan_s, indexes[0])


def files_read(there: Index, here: Index) -> int:
    """Most files that a process of one layout opens to read a checkpoint of another; of 16 to 31
    that are spread over all ranks."""
    places = itertools.product(*map(range, here.sizes))
    some = [place for number, place in enumerate(places) if number % max(1, here.world // 16) == 0]
    return max(
        len(
            {
                rank
                for name, entry in here.tensors.items()
                if entry.pp == place[0]
                for rank, _ in there.pieces(name, here.box(name, place))
            }
        )
        for place in some
    )


def table(worlds: list[int]) -> list[str]:
    lines = [
        "| processes | pp, dp_shard, tp | plan | save | vote | index | files read: same, half |",
        "|---|---|---|---|---|---|---|",
    ]
    for world in worlds:
        for sizes in ((1, 1, world, 1), (4, 1, world // 8, 2)):
            costs = simulate(sizes)
            half = simulate((sizes[0], 1, max(1, sizes[2] // 2), sizes[3])).index
            cells = [
                f"{requests}, {size:,} B" for requests, size in (costs.plan, costs.save, costs.vote)
            ]
            index_kb = len(dump_index(costs.index)) / 1e3
            read = files_read(costs.index, costs.index), files_read(costs.index, half)
            axes = ", ".join(str(sizes[AXES.index(axis)]) for axis in ("pp", "dp_shard", "tp"))
            lines.append(
                f"| {world:,} | {axes} | {cells[0]} | {cells[1]} | {cells[2]} | {index_kb:.0f} kB"
                f" | {read[0]}, {read[1]} |"
            )
            show(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", default="8,64,512,1024", help="numbers, with commas")
    parser.add_argument("--page", type=Path, help="page whose table is replaced")
    options = parser.parse_args()
    lines = table([int(number) for number in options.processes.split(",")])
    if options.page:
        kept = options.page.read_text("utf-8").splitlines()
        rows = [number for number, line in enumerate(kept) if line.startswith("|")]
        kept[rows[0] : rows[-1] + 1] = lines
        options.page.write_text("\n".join(kept) + "\n", "utf-8")


if __name__ == "__main__":
    main()
