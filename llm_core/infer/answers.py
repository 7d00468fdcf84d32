"""Keeps track of one answer while an engine writes it."""

from __future__ import annotations

from dataclasses import dataclass

from llm_core.infer.requests import Request
from llm_core.infer.scheduler import Running
from llm_core.kernels.decode.choose import MAX_TOP_K


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
