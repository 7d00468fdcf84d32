"""Rank 0 of a model in several processes: to the rest of the program it is a model with caches.

Each call tells the other ranks what to compute, by ids and by numbers of objects: which tokens at
which positions, over which cache, with which blocks. What shapes a cache (a copy of blocks, a
truncation, a fork) is told along with the next call. Logits need the residual stream of the places
that are asked for, which is sent as it is. So rank 0 alone schedules and chooses tokens.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor

from llm_core.infer.cache.branches import BranchCache
from llm_core.infer.cache.paged import PagedCache, Pass
from llm_core.infer.cache.rounding import RoundedKeys
from llm_core.infer.cache.rows import place_of
from llm_core.infer.cache.static import CacheOverflow, StaticCache
from llm_core.infer.ranks.layers import SharedModel
from llm_core.infer.ranks.messages import replies, send
from llm_core.model.attention import KeyValueCache
from llm_core.model.transformer import Transformer


class Orders:
    """What the other ranks are to do next, in order. Objects that both sides have are numbered."""

    def __init__(
        self, group: dist.ProcessGroup, guard: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """group: of messages. guard: around what waits for other ranks; says which was lost."""
        self.group, self.guard = group, guard
        self._waiting: list[list[Any]] = []
        self._numbers = itertools.count()

    def add(self, what: str, *about: Any) -> None:
        """Told with the next call."""
        self._waiting.append([what, *about])

    def number(self) -> int:
        return next(self._numbers)

    def watch(self, owned: object, number: int) -> None:
        """Have the others forget their object of this number when ours is gone."""
        weakref.finalize(owned, self.add, "drop", number).atexit = False

    def tell(self) -> None:
        """Send what waits."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            send(waiting, self.group)


class _LedRows(StaticCache):
    """Rows whose other heads are on other ranks."""

    orders: Orders
    number: int

    def truncate(self, lengths: Sequence[int]) -> None:
        super().truncate(lengths)
        self.orders.add("truncate", self.number, list(lengths))

    def fork(self, rows: Sequence[int]) -> Any:
        twin = super().fork(rows)
        assert isinstance(twin, _LedRows)
        _give_number(twin, self.orders)
        self.orders.add("fork", self.number, twin.number, list(rows))
        return twin


class LedStatic(_LedRows):
    """A static cache of which this process has some heads."""


class LedBlocks(PagedCache):
    """A paged cache whose other heads are on other ranks."""

    orders: Orders
    number: int

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        super().copy_blocks(copies)
        if copies:
            self.orders.add("copy", self.number, list(copies))

    def begin(self, coming: Pass) -> None:
        super().begin(coming)
        spans = [(span.end - span.begin, span.length, span.blocks) for span in coming.spans]
        self.orders.add("begin", self.number, spans)

    def attend(self, layer: int, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor) -> Tensor:
        if layer == 0:  # rows of blocks begin a pass when the model has reached its first layer
            self.orders.tell()
        return super().attend(layer, q_BHTD, k_BGTD, v_BGTD)


class LedRounded(RoundedKeys):
    """Rounded keys of some heads, without a cache."""

    orders: Orders
    number: int


class LedBranches(BranchCache):
    """Branches whose other heads are on other ranks."""

    orders: Orders
    number: int


def _give_number(cache: _LedRows | LedBlocks | LedRounded | LedBranches, orders: Orders) -> None:
    cache.orders, cache.number = orders, orders.number()
    orders.watch(cache, cache.number)


def _number_of(cache: Any) -> int:
    """Rows of blocks have their numbers in another."""
    return cast(int, getattr(cache, "cache", cache).number)


KINDS: dict[type, type] = {
    StaticCache: LedStatic,
    PagedCache: LedBlocks,
    RoundedKeys: LedRounded,
}


class LedModel(SharedModel):
    """Rank 0's part of a model."""

    orders: Orders
    number: int

    def make_cache(self, kind: type, first: int, second: int, int8: bool) -> Any:
        """A cache with parts on all ranks (`llm_core.infer.cache.rows.MakesCaches`)."""
        cache = KINDS[kind](self.config, first, second, *place_of(self), int8=int8)
        _give_number(cache, self.orders)
        about = kind.__name__, first, second, int8
        self.orders.add("make", self.number, cache.number, *about)
        return cache

    def make_branches(
        self,
        branches_BQ: Tensor,
        positions_BQ: Tensor,
        prefix: StaticCache | None,
        has_branches: bool,
    ) -> LedBranches:
        """The same of branches."""
        cache = LedBranches(self.config, branches_BQ, positions_BQ, prefix, has_branches)
        _give_number(cache, self.orders)
        before = None if prefix is None else _number_of(prefix)
        about = branches_BQ.tolist(), positions_BQ.tolist(), before, has_branches
        self.orders.add("branch", self.number, cache.number, *about)
        return cache

    def hidden(
        self,
        ids_BT: Tensor,
        positions_BT: Tensor | None = None,
        cache: KeyValueCache | None = None,
        documents_BK: Tensor | None = None,
        counted_BT: Tensor | None = None,
        noise_BT: Tensor | None = None,
    ) -> Tensor:
        assert documents_BK is None, "documents of a row are for training"
        assert counted_BT is None and noise_BT is None, "balance and noise are for training"
        number = None if cache is None else _number_of(cache)
        positions = None if positions_BT is None else positions_BT.tolist()
        self.orders.add("hidden", self.number, ids_BT.tolist(), positions, number)
        with self.orders.guard():
            self.orders.tell()
            try:
                return super().hidden(ids_BT, positions_BT, cache)
            except CacheOverflow:
                # The others have refused it too, or wait for blocks that do not come.
                self.orders.add("refused")
                self.orders.tell()
                raise

    def logits(self, hidden_BTD: Tensor) -> Tensor:
        hidden_ND = hidden_BTD.reshape(-1, hidden_BTD.shape[-1]).contiguous()
        self.orders.add("logits", self.number, len(hidden_ND))
        with self.orders.guard():
            self.orders.tell()
            dist.broadcast(hidden_ND, 0)
            return super().logits(hidden_ND).unflatten(0, hidden_BTD.shape[:-1])


class Replicated:
    """Processes that each hold a model whole, this one among them."""

    def __init__(self, model: Transformer, orders: Orders) -> None:
        # Not the model itself, which holds this: both would stay for ever.
        self._model, self.orders, self.number = weakref.ref(model), orders, orders.number()

    def run(
        self, function: Callable[..., Sequence[Any]], items: Sequence[Any], *about: Any
    ) -> list[Any]:
        """As `llm_core.infer.replicas.Replicas`."""
        world, name = dist.get_world_size(), function.__name__
        shares = [items[rank::world] for rank in range(world)]
        self.orders.add("run", self.number, name, shares[1:], list(about))
        model = self._model()
        assert model is not None
        with self.orders.guard():
            self.orders.tell()
            results = [function(model, shares[0], *about), *replies(self.orders.group)]
        return [results[n % world][n // world] for n in range(len(items))]
