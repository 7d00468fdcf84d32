"""Changes logits by what an answer holds so far: penalties, bias and masks, before the draw.

Each answer with penalties or bias has a row of counts over the vocabulary on the device, kept from
its first token to its last, so preemption changes nothing. Definitions:
`llm_core.infer.choice.sampling`. Answers without any of it cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from llm_core.infer.choice.sampling import SamplingParams

# A rows that are edited · S slots · V vocabulary


class LogitEdits:
    """Counts of all answers that need them, in slots that are used again."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.vocab_size, self.device = vocab_size, device
        self._answer_SV = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self._prompt_SV = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)
        self._bias_SV = torch.zeros(0, vocab_size, device=device)
        self._free: list[int] = []
        self._params: dict[int, SamplingParams] = {}

    @torch.inference_mode()
    def take(self, params: SamplingParams, prompt_ids: Sequence[int]) -> int:
        """The slot of a new answer."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self._params[slot] = params
        self._answer_SV[slot], self._prompt_SV[slot], self._bias_SV[slot] = 0, False, 0.0
        self._prompt_SV[slot, torch.tensor(prompt_ids, device=self.device)] = True
        for token, bias in params.logit_bias.items():
            self._bias_SV[slot, token] = bias
        return slot

    def release(self, slot: int) -> None:
        del self._params[slot]
        self._free.append(slot)

    @torch.inference_mode()
    def count(self, slots: Sequence[int], ids: Sequence[int]) -> None:
        """Take note of the tokens that were chosen."""
        index = torch.tensor([slots, ids], device=self.device)
        self._answer_SV[index[0], index[1]] += 1

    @torch.inference_mode()
    def apply(self, logits_AV: Tensor, slots: Sequence[int]) -> Tensor:
        """The logits of the answers in these slots, edited."""
        index_A = torch.tensor(list(slots), device=self.device)
        each = [self._params[slot] for slot in slots]

        def column(name: str) -> Tensor:
            values = [getattr(params, name) for params in each]
            return torch.tensor(values, dtype=logits_AV.dtype, device=self.device)[:, None]

        count_AV = self._answer_SV[index_A]
        in_answer_AV = count_AV > 0
        edited_AV = logits_AV.clone()
        # Each is a pass over the vocabulary, which most answers do without.
        if any(params.repetition_penalty != 1 for params in each):
            penalty_A1 = column("repetition_penalty")
            # By the sign: a penalty lowers negative logits, too.
            lowered_AV = torch.where(logits_AV > 0, logits_AV / penalty_A1, logits_AV * penalty_A1)
            repeated_AV = in_answer_AV | self._prompt_SV[index_A]
            edited_AV = torch.where(repeated_AV, lowered_AV, logits_AV)
        if any(params.presence_penalty for params in each):
            edited_AV -= column("presence_penalty") * in_answer_AV
        if any(params.frequency_penalty for params in each):
            edited_AV -= column("frequency_penalty") * count_AV
        if any(params.logit_bias for params in each):
            edited_AV += self._bias_SV[index_A]
        return edited_AV

    def _grow(self) -> None:
        old = len(self._answer_SV)
        new = max(4, old)
        self._answer_SV, self._prompt_SV, self._bias_SV = (
            torch.cat((kept, kept.new_zeros(new, self.vocab_size)))
            for kept in (self._answer_SV, self._prompt_SV, self._bias_SV)
        )
        self._free.extend(range(old, old + new))
