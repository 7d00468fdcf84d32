"""Drafts for the small model: right, nearly right, and wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from llm_core.infer.choice.sampling import SamplingParams
from llm_core.infer.engine import Engine, EngineConfig
from llm_core.infer.guessing import GuessingEngine
from llm_core.infer.speculative import Draft, ModelDraft, NGramDraft, Speculated, speculate
from llm_core.model.transformer import Transformer
from tests.support.engine.small_model import make_model


def other_model() -> Transformer:
    """Much like the model: its last layer is another."""
    model = make_model()
    with torch.no_grad():
        for parameter in model.blocks[-1].parameters():
            parameter.mul_(0.8)
    return model


def engine_of(kind: str, model: Transformer, config: EngineConfig) -> Engine:
    """One that guesses, for "guessed"; one that replays recorded steps, for "captured"."""
    guesses = kind == "guessed"
    engine = (
        GuessingEngine(model, config, [], NGramDraft()) if guesses else Engine(model, config, [])
    )
    engine.captures = kind == "captured"
    return engine


class WrongDraft:
    """Guesses that are never right, or right by chance."""

    follows_many = True

    def propose(
        self, tokens: object, count: int, params: SamplingParams
    ) -> tuple[list[int], Tensor | None]:
        return list(range(count)), None


DRAFTS: dict[str, Callable[[], Draft]] = {
    "n-gram": NGramDraft,
    "model": lambda: ModelDraft(other_model(), 64),
    "itself": lambda: ModelDraft(make_model(), 64),
    "short": lambda: ModelDraft(other_model(), 20),
    "wrong": WrongDraft,
}


def generate_speculatively(
    model: Transformer,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    max_new_tokens: int,
    draft: Draft,
    eos_ids: Sequence[int] = (),
) -> Speculated:
    """The answer to one prompt, as `speculate` gives it, with the sums of its passes."""
    found = Speculated([], 0, 0, 0)
    for each in speculate(model, prompt_ids, params, max_new_tokens, draft, eos_ids):
        found = Speculated(
            found.ids + each.ids,
            found.num_passes + each.num_passes,
            found.num_guesses + each.num_guesses,
            found.num_taken + each.num_taken,
        )
    return found
