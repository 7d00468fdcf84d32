"""Assigns sequences of sources to positions, by a weighted schedule without state.

Positions come in blocks of `MIXTURE_SLOTS`. In each block of a phase every source has its share,
rounded to whole slots (largest remainders), and a keyed bijection of the slots says where. The
number of sequences that a source has given before p is then arithmetic plus one block, so any
position is found alone, and a source's sequences are taken in order, epoch after epoch, across all
phases. A new phase begins a new block.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llm_core.config import ConfigError, nearest
from llm_core.data.config import MIXTURE_SLOTS
from llm_core.data.order import permute


@dataclass(frozen=True)
class Phase:
    """Positions from `begin` on: (sources,) `slots` of each block, and `given` before it."""

    begin: int
    slots: np.ndarray
    given: np.ndarray


class Mixture:
    """`sources` name the columns; `phases` are (first position, {source: weight}), from 0 on."""

    def __init__(
        self, sources: Sequence[str], phases: Sequence[tuple[int, dict[str, float]]], seed: int
    ) -> None:
        for _, weights in phases:
            for name in weights:
                if name not in sources:
                    hint = nearest(name, list(sources))
                    raise ConfigError(
                        f"mixture names {name}, which is not a source of these shards; {hint}"
                    )
        self._seed = seed
        self._block = functools.lru_cache(maxsize=8)(self._make_block)
        self.phases: list[Phase] = []
        given = np.zeros(len(sources), np.int64)
        for begin, weights in phases:
            if self.phases:
                given = self._given_before(begin)
            shares = np.array([weights.get(source, 0.0) for source in sources])
            self.phases.append(Phase(begin, whole_slots(shares), given))

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(source, sequences it gave before) of each global position, both int64."""
        begins = np.array([phase.begin for phase in self.phases])
        phase_of = np.searchsorted(begins, positions, "right") - 1
        block_of, slot = np.divmod(positions - begins[phase_of], MIXTURE_SLOTS)
        source, number = np.empty_like(slot), np.empty_like(slot)
        for phase, block in sorted(set(zip(phase_of.tolist(), block_of.tolist(), strict=True))):
            here = (phase_of == phase) & (block_of == block)
            sources, ranks = self._block(phase, block)
            source[here] = sources[slot[here]]
            before = self.phases[phase].given + block * self.phases[phase].slots
            number[here] = before[source[here]] + ranks[slot[here]]
        return source, number

    def _make_block(self, phase: int, block: int) -> tuple[np.ndarray, np.ndarray]:
        """(source, how many earlier slots of the block are its) of each slot."""
        slots, begin = self.phases[phase].slots, self.phases[phase].begin
        key = f"mixture {self._seed} {begin} {block}"
        place = permute(np.arange(MIXTURE_SLOTS), MIXTURE_SLOTS, key)
        sources = np.repeat(np.arange(len(slots)), slots)[place]
        order = np.argsort(sources, kind="stable")
        ranks = np.empty(MIXTURE_SLOTS, np.int64)
        ranks[order] = np.arange(MIXTURE_SLOTS) - np.repeat(np.cumsum(slots) - slots, slots)
        return sources, ranks

    def _given_before(self, position: int) -> np.ndarray:
        """Sequences that each source has given before a position in the last phase so far."""
        number, last = len(self.phases) - 1, self.phases[-1]
        block, slot = divmod(position - last.begin, MIXTURE_SLOTS)
        sources, _ = self._block(number, block)
        return (
            last.given + block * last.slots + np.bincount(sources[:slot], minlength=len(last.slots))
        )


def whole_slots(weights: np.ndarray) -> np.ndarray:
    """`MIXTURE_SLOTS` shared out by weight, by largest remainders; the first of equals gains."""
    exact = weights / weights.sum() * MIXTURE_SLOTS
    slots = np.floor(exact).astype(np.int64)
    missing = MIXTURE_SLOTS - int(slots.sum())
    # The most negative difference is the largest remainder.
    slots[np.argsort(slots - exact, kind="stable")[:missing]] += 1
    return slots
