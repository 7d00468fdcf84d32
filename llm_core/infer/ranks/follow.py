"""Runs a further rank of a model: computes what rank 0 orders, until it is told to end.

`python -m llm_core.infer.ranks.follow` is started by rank 0 (`team.py`). Whatever fails ends this
process, and rank 0 then names it.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from llm_core.device import set_threads
from llm_core.huggingface.export import load_model
from llm_core.infer.bits_per_byte import score_documents
from llm_core.infer.cache.attention import any_length
from llm_core.infer.cache.branches import BranchCache
from llm_core.infer.cache.paged import PagedCache, Pass
from llm_core.infer.cache.rounding import RoundedKeys
from llm_core.infer.cache.rows import place_of
from llm_core.infer.cache.static import CacheOverflow, StaticCache
from llm_core.infer.choice.sampling import SamplingParams
from llm_core.infer.generation import Item as Request
from llm_core.infer.generation import write_answers
from llm_core.infer.ranks.layers import load_share
from llm_core.infer.ranks.messages import receive, reply
from llm_core.infer.score_plan import Continuation
from llm_core.infer.scoring import score_continuations
from llm_core.process import terminate_with_parent


class FollowedBlocks(PagedCache):
    """Blocks whose next pass may be told only when the model has reached its first layer."""

    receive: Callable[[], None]
    is_begun = False

    def begin(self, coming: Pass) -> None:
        super().begin(coming)
        self.is_begun = True

    def attend(self, layer: int, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor) -> Tensor:
        if layer == 0:
            if not self.is_begun:
                self.receive()
            self.is_begun = False
        return super().attend(layer, q_BHTD, k_BGTD, v_BGTD)


def _read_request(item: Any) -> Request:
    stream, prompt, params, limit = item
    # JSON has names for numbers and lists for tuples.
    bias = {int(id): value for id, value in params["logit_bias"].items()}
    changes = {"logit_bias": bias, "stop_ids": tuple(params["stop_ids"])}
    return stream, prompt, SamplingParams(**(params | changes)), limit


def _read_group(item: Any) -> list[Continuation]:
    return [Continuation(tuple(each["ids"]), each["begin"]) for each in item]


FUNCTIONS: dict[str, tuple[Callable[..., list[Any]], Callable[[Any], Any]]] = {
    "score_documents": (score_documents, np.asarray),
    "score_continuations": (score_continuations, _read_group),
    "write_answers": (write_answers, _read_request),
}
"""Those marked by `llm_core.infer.replicas`, and what reads an item of plain values."""
TIMEOUT = timedelta(minutes=30)
"""Of an exchange that a living rank takes no part in."""
IDLE = timedelta(days=3650)
"""Of a rank that waits for the next request."""
KINDS: dict[str, type] = {
    "StaticCache": StaticCache,
    "PagedCache": FollowedBlocks,
    "RoundedKeys": RoundedKeys,
}


class Follower:
    """Models and caches by their numbers."""

    def __init__(self, device: torch.device, group: dist.ProcessGroup) -> None:
        """group: of messages."""
        self.device, self.group, self.is_over = device, group, False
        self._objects: dict[int, Any] = {}

    @torch.inference_mode()
    def run(self) -> None:
        while not self.is_over:
            with contextlib.suppress(CacheOverflow):  # rank 0 tells whoever asked
                self._receive()

    def _receive(self) -> None:
        for what, *about in receive(self.group):
            getattr(self, f"_{what}")(*about)

    def _load(self, number: int, folder: str, dtype: str) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        with torch.inference_mode(False):  # weights count their versions
            model = load_share(Path(folder), getattr(torch, dtype), self.device, rank, world)
        self._objects[number] = model

    def _load_whole(self, number: int, folder: str, dtype: str) -> None:
        with torch.inference_mode(False):
            model = load_model(Path(folder), getattr(torch, dtype), self.device)
        self._objects[number] = model

    def _run(self, model: int, name: str, shares: list[list[Any]], about: list[Any]) -> None:
        function, read = FUNCTIONS[name]
        share = [read(item) for item in shares[dist.get_rank() - 1]]
        reply(function(self._objects[model], share, *about), self.group)

    def _make(
        self, model: int, number: int, kind: str, first: int, second: int, int8: bool
    ) -> None:
        owner = self._objects[model]
        cache = KINDS[kind](owner.config, first, second, *place_of(owner), int8=int8)
        if isinstance(cache, FollowedBlocks):
            cache.receive = self._receive
        self._objects[number] = cache

    def _branch(
        self,
        model: int,
        number: int,
        branches: list[list[int]],
        positions: list[list[int]],
        prefix: int | None,
        has_branches: bool,
    ) -> None:
        branches_BQ, positions_BQ = (
            torch.tensor(each, device=self.device) for each in (branches, positions)
        )
        before = None if prefix is None else self._objects[prefix]
        config = self._objects[model].config
        made = BranchCache(config, branches_BQ, positions_BQ, before, has_branches)
        self._objects[number] = made

    def _truncate(self, number: int, lengths: list[int]) -> None:
        self._objects[number].truncate(lengths)

    def _fork(self, number: int, twin: int, rows: list[int]) -> None:
        self._objects[twin] = self._objects[number].fork(rows)

    def _copy(self, number: int, copies: list[tuple[int, int]]) -> None:
        self._objects[number].copy_blocks(copies)

    def _begin(self, number: int, spans: list[tuple[int, int, list[int]]]) -> None:
        cache = self._objects[number]
        new, lengths, tables = zip(*spans, strict=True)
        # Ids come with the call of the model.
        tokens = [[0] * count for count in new]
        cache.begin(Pass.of(tokens, lengths, tables, cache.block_tokens, self.device))

    def _hidden(
        self, model: int, ids: list[Any], positions: list[Any] | None, number: int | None
    ) -> None:
        ids_BT = torch.tensor(ids, device=self.device)
        positions_BT = None if positions is None else torch.tensor(positions, device=self.device)
        cache = None if number is None else self._objects[number]
        with any_length():
            self._objects[model].hidden(ids_BT, positions_BT, cache)

    def _logits(self, model: int, num_places: int) -> None:
        owner = self._objects[model]
        dtype, device = place_of(owner)
        hidden_ND = torch.empty(num_places, owner.config.dim, dtype=dtype, device=device)
        dist.broadcast(hidden_ND, 0)
        owner.logits(hidden_ND)

    def _refused(self) -> None:
        raise CacheOverflow("refused on rank 0")

    def _drop(self, number: int) -> None:
        del self._objects[number]

    def _end(self) -> None:
        self.is_over = True


@contextlib.contextmanager
def joined(
    device: torch.device, store: dist.Store | None = None, rank: int = -1, world: int = -1
) -> Iterator[dist.ProcessGroup]:
    """Join the group of all ranks, found by a store or by the launcher's environment, until the
    block ends; gives the group of messages."""
    is_cuda = device.type == "cuda"
    if is_cuda:
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if is_cuda else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=TIMEOUT)
    try:
        messages = dist.new_group(backend="gloo", timeout=IDLE)
        # All connections are made while the interface is set.
        for place in (torch.device("cpu"), device):
            met = torch.zeros(1, device=place)
            dist.all_reduce(met)
            met.item()
        yield messages
    finally:
        dist.destroy_process_group()


def main() -> None:
    """A rank that rank 0 has started on this machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("rank", "world", "leader"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--device", type=torch.device, required=True)
    parser.add_argument("--store", required=True)
    given = parser.parse_args()
    terminate_with_parent(given.leader)
    set_threads(0, given.world)
    store = dist.FileStore(given.store, given.world)
    store.set(f"started-{given.rank}", "")
    with joined(given.device, store, given.rank, given.world) as messages:
        Follower(given.device, messages).run()


if __name__ == "__main__":
    main()
