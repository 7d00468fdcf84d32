"""Chooses tokens for rows whose parameters lie in a `Parcel`, so that a captured step can."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from llm_core.infer.choice.choosing import Choosers, choose
from llm_core.infer.choice.sampling import GREEDY, SamplingParams
from llm_core.infer.parcel import Parcel
from llm_core.kernels.decode.choose import ChooseTokens

# B rows · V vocabulary · K tokens told at most

Stream = tuple[SamplingParams, int]
"""Parameters of a row and which of a request's answers it is."""

FIELDS = {
    "temperature": torch.float32,
    "top_k": torch.int64,
    "top_p": torch.float64,
    "min_p": torch.float32,
    "seed": torch.int64,
    "choice": torch.int64,
    "steps": torch.int64,
}


def chooser_fields(rows: int) -> dict[str, tuple[tuple[int], torch.dtype]]:
    """What a parcel needs. steps: tokens that each row has chosen before."""
    return {name: ((rows,), dtype) for name, dtype in FIELDS.items()}


class RowChooser:
    """Rows of a parcel with `chooser_fields`, and the tokens that they were told."""

    def __init__(self, parcel: Parcel, rows: int, most_told: int, device: torch.device) -> None:
        self.parcel, self.rows = parcel, rows
        self.told_BK = torch.zeros(rows, most_told, dtype=torch.int64, device=device)
        self.num_told_B = torch.zeros(rows, dtype=torch.int32, device=device)
        self._kernel = ChooseTokens(device) if device.type == "cuda" else None
        self._streams: list[Stream] = []
        self._choosers = Choosers.of([GREEDY] * rows, [0] * rows, "cpu")

    def fill(self, streams: Sequence[Stream], steps: Sequence[int]) -> None:
        """Write the parcel; nobody reads what rows behind the last choose."""
        here = self.parcel.here
        here["steps"][: len(steps)] = steps
        same = len(streams) == len(self._streams) and all(
            new[0] is old[0] and new[1] == old[1]
            for new, old in zip(streams, self._streams, strict=True)
        )
        if same:
            return
        self._streams = list(streams)
        end = len(streams)
        for name in ("temperature", "top_k", "top_p", "min_p", "seed"):
            here[name][:end] = [getattr(params, name) for params, _ in streams]
        here["choice"][:end] = [choice for _, choice in streams]
        if self._kernel is None:
            greedy: list[Stream] = [(GREEDY, 0)] * (self.rows - end)
            params, choices = zip(*streams, *greedy, strict=True)
            self._choosers = Choosers.of(params, choices, "cpu")

    def begin(self) -> None:
        self.num_told_B.zero_()

    def __call__(self, logits_BV: Tensor, ids_B: Tensor, lengths_B: Tensor) -> None:
        """Tell each row its token, -1 where its logits are not numbers, and make it the last of the
        row."""
        given = self.parcel.there
        if self._kernel is not None:
            self._kernel(
                logits_BV.float(), given["temperature"], given["top_k"], given["top_p"],
                given["min_p"], given["seed"], given["choice"], given["steps"], ids_B, lengths_B,
                self.told_BK, self.num_told_B,
            )  # fmt: skip
            return
        chosen_B = choose(logits_BV, self._choosers, given["steps"])
        self.told_BK.scatter_(1, self.num_told_B.long()[:, None], chosen_B[:, None])
        self.num_told_B.add_(1)
        # An id that is none would be looked up in the embedding.
        ids_B.copy_(chosen_B.clamp(min=0))
        lengths_B.add_(1)
        given["steps"].add_(1)
