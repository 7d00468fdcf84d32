"""Says how many sequences each step trains on, where the global batch grows in the beginning.

Small batches suffice while gradients are large against their noise (McCandlish et al., 2018), and
give more updates for the same tokens. Sizes and places are pure functions of the step: nothing to
save, and any step is found alone. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BatchSizes:
    """Sequences of each global batch: `full`, but for the phases of `ramp` before it.

    ramp: (last step, sequences) of each phase in turn, steps counted from 1.
    """

    full: int
    ramp: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> BatchSizes:
        """Of the plain settings of a training; earlier ones have no ramp."""
        phases = sorted((int(end), size) for end, size in settings.get("batch_ramp", {}).items())
        return cls(settings["global_batch_sequences"], tuple(phases))

    @property
    def all(self) -> tuple[int, ...]:
        """Each size once, in turn."""
        return (*(size for _, size in self.ramp), self.full)

    def at(self, index: int) -> int:
        """Of the batch `index`, counted from 0."""
        return next((size for end, size in self.ramp if index < end), self.full)

    def before(self, index: int) -> int:
        """Sequences of the first `index` batches."""
        total, begin = 0, 0
        for end, size in self.ramp:
            total += max(0, min(index, end) - begin) * size
            begin = end
        return total + max(0, index - begin) * self.full

    def phases(self, num_steps: int) -> list[tuple[int, int]]:
        """(steps, sequences of each) of a training of so many, in turn."""
        ends = [min(end, num_steps) for end, _ in self.ramp] + [num_steps]
        begins = [0, *ends[:-1]]
        return [
            (end - begin, size)
            for begin, end, size in zip(begins, ends, self.all, strict=True)
            if end > begin
        ]
