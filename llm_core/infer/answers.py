"""Keeps track of answers while an engine writes them; edits and scores for those that ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from llm_core.infer.choice.edits import LogitEdits
from llm_core.infer.choice.rows import Stream
from llm_core.infer.choice.scores import score_tokens
from llm_core.infer.requests import Request
from llm_core.infer.scheduler import Running
from llm_core.kernels.decode.choose import MAX_TOP_K

# B rows · N tokens of a piece · D width of the model · V vocabulary

SCORED_ROWS = 256
"""Prompt tokens whose logits are in memory at once."""


@dataclass(eq=False)
class Choice:
    """One answer that is being written."""

    request: Request
    number: int
    sequence: Running
    slot: int | None
    """Its place in `LogitEdits`, where its logits are edited."""
    stop_ids: frozenset[int]

    @property
    def answer(self) -> list[int]:
        return self.request.answers[self.number]

    @property
    def num_left(self) -> int:
        return self.request.max_new_tokens - len(self.answer)

    @property
    def stream(self) -> Stream:
        return self.request.params, self.request.first_choice + self.number

    @property
    def is_plain(self) -> bool:
        """Whether its next tokens follow from logits and parameters alone."""
        request = self.request
        return (
            self.slot is None
            and request.logprobs is None
            and request.allowed is None
            and request.params.top_k <= MAX_TOP_K
            and len(self.answer) >= request.params.min_new_tokens
        )

    @property
    def takes_one(self) -> bool:
        """Whether nothing but such a token comes of a pass over what is left of its sequence."""
        request = self.request
        begins_several = request.n > 1 and not (self.answer or self.number)
        scores = request.prompt_logprobs is not None
        return self.is_plain and not begins_several and not scores and request.max_new_tokens > 0


def edited(logits_BV: Tensor, choices: Sequence[Choice], edits: LogitEdits) -> Tensor:
    """The logits to draw from; a copy where any are changed."""
    counted = counted_rows(choices)
    bound = [
        (row, stop)
        for row, choice in enumerate(choices)
        if len(choice.answer) < choice.request.params.min_new_tokens
        for stop in choice.stop_ids
    ]
    masks = [
        (row, mask_V)
        for row, choice in enumerate(choices)
        if choice.request.allowed is not None
        and (mask_V := choice.request.allowed(choice.answer)) is not None
    ]
    if not (counted or bound or masks):
        return logits_BV
    logits_BV = logits_BV.to(torch.float32, copy=True)
    if counted:
        edits.apply(logits_BV, counted)
    if bound:
        bound_rows, stops = zip(*bound, strict=True)
        logits_BV[list(bound_rows), list(stops)] = float("-inf")
    for row, mask_V in masks:
        logits_BV[row].masked_fill_(~mask_V, float("-inf"))
    return logits_BV


def counted_rows(choices: Sequence[Choice]) -> dict[int, int]:
    """Row → slot of the answers whose logits are edited."""
    slots = {row: choice.slot for row, choice in enumerate(choices)}
    return {row: slot for row, slot in slots.items() if slot is not None}


def score_prompt(
    request: Request, begin: int, hidden_ND: Tensor, logits: Callable[[Tensor], Tensor]
) -> None:
    """Score the tokens of a prompt that follow those from `begin` on, where that is asked for."""
    if (count := request.prompt_logprobs) is None:
        return
    last = min(begin + len(hidden_ND), len(request.prompt_ids) - 1)
    for first in range(begin, last, SCORED_ROWS):
        end = min(first + SCORED_ROWS, last)
        ids = request.prompt_ids[first + 1 : end + 1]
        request.prompt_scores[first + 1 : end + 1] = score_tokens(
            logits(hidden_ND[first - begin : end - begin]), ids, [count] * len(ids)
        )
