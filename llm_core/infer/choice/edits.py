"""Changes logits by what an answer holds so far: penalties, bias and masks, before the draw.

Each answer with penalties or bias has a slot, kept from its first token to its last, so preemption
changes nothing. On a GPU a slot is a row of counts over the vocabulary, and edits are passes over
it; on a CPU it lists the ids that any edit concerns, and a loop visits those alone. Both give the
same numbers. Definitions: `llm_core.infer.choice.sampling`. Answers without any of it cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from llm_core.infer.choice.sampling import SamplingParams

# B rows · A rows that are edited · S slots · V vocabulary · K ids of an answer, once each


class LogitEdits(Protocol):
    """What all answers that are edited hold, by slot."""

    @property
    def num_taken(self) -> int:
        """Slots in use."""

    def take(self, params: SamplingParams, prompt_ids: Sequence[int]) -> int:
        """The slot of a new answer."""

    def release(self, slot: int) -> None:
        """Forget an answer; its slot is used again."""

    def count(self, slots: Sequence[int], ids: Sequence[int]) -> None:
        """Take note of the tokens that were chosen."""

    def apply(self, logits_BV: Tensor, slots: Mapping[int, int]) -> None:
        """Edit float32 logits in place. slots: row → the slot of its answer."""


def logit_edits(vocab_size: int, device: torch.device) -> LogitEdits:
    return ListedEdits(vocab_size) if device.type == "cpu" else DenseEdits(vocab_size, device)


class DenseEdits:
    """Rows over the vocabulary, on any device and without waiting for it."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.vocab_size, self.device = vocab_size, device
        self._answer_SV = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self._prompt_SV = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)
        self._bias_SV = torch.zeros(0, vocab_size, device=device)
        self._free: list[int] = []
        self._params: dict[int, SamplingParams] = {}

    @property
    def num_taken(self) -> int:
        return len(self._params)

    @torch.inference_mode()
    def take(self, params: SamplingParams, prompt_ids: Sequence[int]) -> int:
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
        index = torch.tensor([slots, ids], device=self.device)
        self._answer_SV[index[0], index[1]] += 1

    @torch.inference_mode()
    def apply(self, logits_BV: Tensor, slots: Mapping[int, int]) -> None:
        rows = list(slots)
        logits_BV[rows] = self._edited(logits_BV[rows], list(slots.values()))

    def _edited(self, logits_AV: Tensor, slots: Sequence[int]) -> Tensor:
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


class ListedEdits:
    """Lists of ids, on a CPU."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._answers: dict[int, _Listed] = {}
        self._free: list[int] = []

    @property
    def num_taken(self) -> int:
        return len(self._answers)

    def take(self, params: SamplingParams, prompt_ids: Sequence[int]) -> int:
        slot = self._free.pop() if self._free else len(self._answers)
        self._answers[slot] = _Listed(params, prompt_ids, self.vocab_size)
        return slot

    def release(self, slot: int) -> None:
        del self._answers[slot]
        self._free.append(slot)

    def count(self, slots: Sequence[int], ids: Sequence[int]) -> None:
        for slot, token in zip(slots, ids, strict=True):
            self._answers[slot].count(token)

    @torch.inference_mode()
    def apply(self, logits_BV: Tensor, slots: Mapping[int, int]) -> None:
        assert logits_BV.dtype == torch.float32
        for row, slot in slots.items():
            self._answers[slot].edit(logits_BV[row].numpy())


class _Listed:
    """The ids of one answer that any edit concerns, in the order in which they came."""

    def __init__(self, params: SamplingParams, prompt_ids: Sequence[int], vocab_size: int) -> None:
        self._params, self._vocab_size = params, vocab_size
        of_prompt = np.unique(np.asarray(prompt_ids if params.repetition_penalty != 1 else [], int))
        first = of_prompt.tolist()
        ids = first + [token for token in params.logit_bias if token not in set(first)]
        # The loop writes wherever an id says.
        assert all(0 <= token < vocab_size for token in ids)
        self._places = {token: place for place, token in enumerate(ids)}
        self._ids_K = np.array(ids, np.int64)
        self._counts_K = np.zeros(len(ids), np.int32)
        self._is_repeated_K = np.arange(len(ids)) < len(first)
        self._bias_K = np.array([params.logit_bias.get(token, 0.0) for token in ids], np.float32)

    def count(self, token: int) -> None:
        assert 0 <= token < self._vocab_size
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids_K):
            self._grow()
        self._ids_K[place] = token
        self._counts_K[place] += 1
        self._is_repeated_K[place] = True

    def edit(self, logits_V: np.ndarray) -> None:
        from llm_core.kernels.cpu.choose import edit

        params = self._params
        edit(
            logits_V, self._ids_K, self._counts_K, self._is_repeated_K, self._bias_K,
            len(self._places), np.float32(params.repetition_penalty),
            np.float32(params.presence_penalty), np.float32(params.frequency_penalty),
        )  # fmt: skip

    def _grow(self) -> None:
        more = max(64, len(self._ids_K))
        self._ids_K, self._counts_K, self._is_repeated_K, self._bias_K = (
            np.concatenate((kept_K, np.zeros(more, kept_K.dtype)))
            for kept_K in (self._ids_K, self._counts_K, self._is_repeated_K, self._bias_K)
        )
