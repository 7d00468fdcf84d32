"""Counts what lies in memory while a model runs, by storages: the first thing that a memory saving
has to lower."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, UntypedStorage
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts tensors that operations make, but for those given: `now`, their `peak`, and the
    `largest` in elements."""

    def __init__(self, uncounted: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.uncounted = {StorageWeakRef(tensor.untyped_storage()) for tensor in uncounted}
        self.counted: set[StorageWeakRef] = set()
        self.peak = self.largest = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = operation(*args, **(kwargs or {}))
        found = {
            StorageWeakRef(tensor.untyped_storage()): tensor.numel()
            for tensor in tree_leaves(out)
            # A DTensor's own storage takes no memory; its piece comes by itself.
            if isinstance(tensor, Tensor) and not isinstance(tensor, DTensor)
        }
        self.largest = max([self.largest, *(found[new] for new in found.keys() - self.uncounted)])
        if not found.keys() <= self.uncounted | self.counted:
            self.counted |= found.keys() - self.uncounted
            self.peak = max(self.peak, self.now)
        return out

    @property
    def now(self) -> int:
        # Asked for again each time: FSDP empties storages and fills them.
        sizes = {reference: _size(reference) for reference in self.counted}
        self.counted = {reference for reference, size in sizes.items() if size is not None}
        return sum(size or 0 for size in sizes.values())


def _size(reference: StorageWeakRef) -> int | None:
    """In bytes; None of a storage that is gone."""
    storage = UntypedStorage._new_with_weak_ptr(reference.cdata)
    return None if storage is None else storage.nbytes()
