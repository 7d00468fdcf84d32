"""Configures how token shards become batches. Standard library only, so flows import it for
nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from llm_core.config import IN_KEY_IF_SET, NOT_IN_KEY, ConfigError

MIXTURE_SLOTS = 1024
"""Weights of a mixture are rounded to this many parts."""


@dataclass(frozen=True)
class DataConfig:
    """Packing, order and mixture of training sequences."""

    packing: Literal["concat", "best_fit", "one_per_row", "pairs"] = "concat"
    """How documents fill sequences. concat: one stream, cut every seq_len tokens. best_fit: whole
    documents where they fit. one_per_row: one document each, cropped. pairs: both answers of one
    pair each, for train.preference; those that do not fit are left out."""
    order: Literal["shuffled", "sequential", "random"] = "shuffled"
    """Order of the sequences. shuffled: each once per epoch, in a new order. sequential: as stored.
    random: drawn anew each time."""
    mask_documents: bool = False
    """Attend only within a document, with positions from 0 in each. False: a sequence is attended
    as one text."""
    loss_on: Literal["all", "assistant"] = field(default="all", metadata=IN_KEY_IF_SET)
    """Which tokens are learnt. assistant: of chats only what the assistant says, with the token
    that ends it; of other documents all."""
    mixture: dict[str, dict[str, float]] = field(default_factory=dict)
    """{first step: {source: weight}}, as shares of sequences; sources that are not named give none.
    Empty: every source as it is."""
    ranks: Literal["blocks", "strided"] = field(default="blocks", metadata=NOT_IN_KEY)
    """Rows of a global batch that a process takes. blocks: a run of them. strided: every n-th, as
    in torch's DistributedSampler."""
    prefetch_batches: int = field(default=2, metadata=NOT_IN_KEY)
    """Batches that a thread reads ahead, into pinned memory where there is a GPU. 0: none."""

    verify_shards: bool = field(default=False, metadata=NOT_IN_KEY)
    """Read all training shards once before the first step, and compare them with their recorded
    digests."""

    def __post_init__(self) -> None:
        if self.prefetch_batches < 0:
            raise ConfigError(
                f"prefetch_batches ({self.prefetch_batches}) must not be negative; 0 reads when"
                " asked"
            )
        if self.packing == "pairs":
            self._check_pairs()
        if self.mixture and "0" not in self.mixture:
            raise ConfigError(
                f"mixture (from step {', '.join(self.mixture)}) must say how it begins; add step 0"
            )
        for step, weights in self.mixture.items():
            if not step.isdecimal() or step != str(int(step)):
                raise ConfigError(
                    f"mixture ({step}) must be keyed by steps, whole numbers from 0 on"
                )
            if not weights or min(weights.values()) < 0 or not sum(weights.values()) > 0:
                raise ConfigError(
                    f"mixture at step {step} ({weights}) must have weights of at least 0, one of"
                    " them above"
                )
            if not math.isfinite(sum(weights.values())):
                raise ConfigError(
                    f"mixture at step {step} ({weights}) must have finite weights that add up; try"
                    " shares of 1"
                )
            for source, weight in weights.items():
                if 0 < weight < 0.5 / MIXTURE_SLOTS * sum(weights.values()):
                    raise ConfigError(
                        f"mixture at step {step} gives {source} {weight}, less than a"
                        f" {2 * MIXTURE_SLOTS}th; raise it or set 0"
                    )

    def _check_pairs(self) -> None:
        for name, value, needed in (
            ("mask_documents", self.mask_documents, True),
            ("loss_on", self.loss_on, "assistant"),
            ("mixture", self.mixture, {}),
        ):
            if value != needed:
                raise ConfigError(
                    f"packing (pairs) compares whole answers that do not attend to each other, and"
                    f" {name} is {str(value).lower()}; set train.data.{name}={str(needed).lower()}"
                )

    @property
    def phases(self) -> list[tuple[int, dict[str, float]]]:
        """(first step, weights), in order."""
        return [(int(step), self.mixture[step]) for step in sorted(self.mixture, key=int)]
