"""Decodes several answers speculatively: an engine whose passes may give each answer several
tokens.

While all running answers are greedy and nothing edits or scores their logits, a pass computes the
last token of each and the tokens that the draft guesses after it. It takes guesses as long as the
model would have chosen them, so answers are those of the plain engine. Other answers, and passes
with pieces of prompts, go one token at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from llm_core.infer.answers import Choice
from llm_core.infer.config import EngineConfig
from llm_core.infer.engine import Engine
from llm_core.infer.requests import NewToken
from llm_core.infer.scheduler import Plan
from llm_core.infer.speculative import NUM_GUESSES, Draft
from llm_core.model.transformer import Transformer


class GuessingEngine(Engine):
    """An engine with a draft."""

    def __init__(
        self, model: Transformer, config: EngineConfig, eos_ids: Sequence[int], draft: Draft
    ) -> None:
        super().__init__(model, config, eos_ids)
        self.draft = draft
        self.num_guesses = self.num_taken = 0

    def _burst_tokens(self, plan: Plan) -> int:
        choices = self._choices_of(plan)
        if plan.is_decode and self._may_guess(choices):
            count = min(NUM_GUESSES + 1, *(choice.num_left for choice in choices))
            if count > 1 and self.scheduler.reserve(plan, count):
                return count
        return super()._burst_tokens(plan)

    def _may_guess(self, choices: Sequence[Choice]) -> bool:
        are_greedy = all(
            each.answer and each.is_plain and each.request.params.temperature == 0
            for each in choices
        )
        return are_greedy and (len(choices) == 1 or self.draft.follows_many)

    def _burst(self, plan: Plan, count: int) -> list[NewToken]:
        choices = self._choices_of(plan)
        if count == 1 or not self._may_guess(choices):
            return super()._burst(plan, count)
        guesses = [
            self.draft.propose(c.sequence.tokens, count - 1, c.request.params)[0] for c in choices
        ]
        asked = [
            (c.sequence, [c.answer[-1], *guess], c.sequence.num_computed + 1 + len(guess))
            for c, guess in zip(choices, guesses, strict=True)
        ]
        logits_NV = self.model.logits(self._hidden(asked)).float()
        # As `choose` does: -1 where no token can be chosen.
        is_number_N = logits_NV.amax(-1).isfinite()
        best = torch.where(is_number_N, logits_NV.argmax(-1), -1).tolist()
        new, begin = [], 0
        for guess in guesses:
            wanted = best[begin : begin + 1 + len(guess)]
            begin += len(wanted)
            taken = next((k for k, id in enumerate(guess) if id != wanted[k]), len(guess))
            new.append(wanted[: taken + 1])
            self.num_guesses, self.num_taken = self.num_guesses + len(guess), self.num_taken + taken
        return self._advance(choices, new)
