"""Tracks the source of each token of a batch, and sums losses by source.

The `MAX_SOURCES` with most tokens have names of their own, the others are `OTHER`. Memory: 9 bytes
per document of a split with several sources, nothing for one of a single source. Cost: two look-ups
per row of a batch, and one small product per micro batch on the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from llm_core.data.shards import TokenShards

MAX_SOURCES, OTHER = 20, "(other)"
NO_SOURCE = 255
"""Number of the source of a target that does not count."""


@dataclass(frozen=True, eq=False)
class Sources:
    """Of the documents of a split, in stream order.

    of_document: uint8 number of its source among the names; stops: int64 place behind its last
    token.
    """

    names: tuple[str, ...]
    of_document: np.ndarray
    stops: np.ndarray

    def fill(self, start: int, stop: int, out: np.ndarray) -> None:
        """Write the source number of each token of [start, stop) into `out` (uint8, as long)."""
        first, last = np.searchsorted(self.stops, (start, stop - 1), "right")
        numbers = self.of_document[first : last + 1]
        # As often as each document has tokens in the range.
        out[:] = np.repeat(
            numbers, np.diff(self.stops[first : last + 1].clip(max=stop), prepend=start)
        )


def read_sources(shards: TokenShards) -> Sources | None:
    """None where all tokens are of one source."""
    names, source_of = shards.document_sources()
    starts, stops = shards.document_bounds()
    tokens = np.bincount(source_of, weights=stops - starts, minlength=len(names))
    shown, number_of = largest(names, tokens)
    return Sources(shown, number_of[source_of].astype(np.uint8), stops) if len(shown) > 1 else None


def largest(names: list[str], tokens: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """(names with most tokens, in order, then `OTHER` for the rest; int64 place of each source)."""
    by_size = np.argsort(-tokens, kind="stable")[: np.count_nonzero(tokens)]
    shown = np.sort(by_size[:MAX_SOURCES])
    place = np.full(len(names), len(shown), np.int64)
    place[shown] = np.arange(len(shown))
    others = (OTHER,) if len(by_size) > len(shown) else ()
    return (*(names[k] for k in shown), *others), place


# B rows of one process · T tokens · S sources
class SourceSums:
    """Losses of a step by source: `sums_S2` [nats, targets], float64 on the device.

    sources_BT: uint8 numbers of the rows of a step, `NO_SOURCE` where a target does not count.
    """

    def __init__(self, sources_BT: Tensor, num_sources: int) -> None:
        self.sources_BT = sources_BT
        self._numbers_S1 = torch.arange(num_sources, dtype=torch.uint8, device=sources_BT.device)[
            :, None
        ]
        self.sums_S2 = torch.zeros(num_sources, 2, dtype=torch.float64, device=sources_BT.device)

    def add(self, losses_BT: Tensor, sources_BT: Tensor) -> None:
        """Of some of the rows; losses are of no consequence to gradients."""
        belongs = (self._numbers_S1 == sources_BT.flatten()).double()
        # A product and not a scattered sum, whose order, and so its last bits, would not be fixed
        # on a GPU.
        self.sums_S2 += belongs @ torch.stack(
            [losses_BT.flatten().double(), torch.ones_like(belongs[0])], dim=1
        )
