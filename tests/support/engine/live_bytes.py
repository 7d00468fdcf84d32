"""Counts what lies in memory while a model runs, by storages: the first thing that a memory saving
has to lower."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts tensors that operations make, but for those given: `now`, their `peak`, and the
    `largest` in elements."""

    def __init__(self, uncounted: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.uncounted = {StorageWeakRef(tensor.untyped_storage()) for tensor in uncounted}
        self.sizes: dict[StorageWeakRef, int] = {}
        self.peak = self.largest = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = operation(*args, **(kwargs or {}))
        for tensor in (leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)):
            storage = tensor.untyped_storage()
            reference = StorageWeakRef(storage)
            if reference not in self.uncounted:
                self.sizes[reference] = storage.nbytes()
                self.largest = max(self.largest, tensor.numel())
        self.peak = max(self.peak, self.now)
        return out

    @property
    def now(self) -> int:
        self.sizes = {
            reference: size for reference, size in self.sizes.items() if not reference.expired()
        }
        return sum(self.sizes.values())
