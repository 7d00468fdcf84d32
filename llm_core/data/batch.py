"""Defines what a training step is given of its rows."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

IGNORED = -100
"""Target id of a position that is not predicted."""


# B rows of one data-parallel rank · T tokens
class Batch(NamedTuple):
    """On the CPU, pinned where there is a GPU."""

    ids_BT: Tensor
    targets_BT: Tensor
    documents_BT: Tensor | None = None
    """int32: document of each token within its row, for masks of documents; -1 in padding."""
    sources_BT: Tensor | None = None
    """uint8: number of each target's source (`llm_core.data.sources`); None where all is of one."""
    references_B2: Tensor | None = None
    """float64: log-probabilities of the chosen and the rejected answer of each row's pair under the
    reference model; None where rows are not pairs."""
    numbers_B: Tensor | None = None
    """int64: place of each row in the order of all samples of a run, which no layout changes."""
