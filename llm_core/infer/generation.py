"""Writes answers to a list of prompts, all at once, on an engine of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llm_core.infer.choice.sampling import SamplingParams
from llm_core.infer.config import EngineConfig
from llm_core.infer.engine import Engine
from llm_core.infer.requests import check_prompt
from llm_core.model.transformer import Transformer


def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams],
    max_new_tokens: int | Sequence[int],
    eos_ids: Sequence[int] = (),
    on_token: Callable[[int, int], None] | None = None,
    config: EngineConfig | None = None,
) -> list[list[int]]:
    """The new tokens of each prompt, at most `max_new_tokens` (one limit for all, or one each), up
    to and without the first of `eos_ids`.

    params: one for all requests (request i then draws from stream (seed, i)), or one per request
    (each from stream (seed, 0)). on_token: told (request, token id) as soon as a token is there.
    config: by default, as much as these prompts need. Raises ConfigError for an empty prompt, an
    unknown id or more tokens than the model's max_seq_len, SamplingError for broken logits.
    """
    shared = isinstance(params, SamplingParams)
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    limits = (
        [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else list(max_new_tokens)
    )
    asked = [number for number, limit in enumerate(limits) if limit]
    if not asked:
        return [[] for _ in prompts]
    for number in asked:
        check_prompt(model.config, prompts[number], limits[number], f"prompt {number}")
    lengths = [len(prompts[number]) + limits[number] for number in asked]
    engine = Engine(model, config or EngineConfig.holding(lengths), eos_ids)
    requests = {
        number: engine.submit(
            prompts[number], each[number], limits[number], first_choice=number if shared else 0
        )
        for number in asked
    }
    numbers = {request: number for number, request in requests.items()}
    while engine.busy:
        for new in engine.step():
            if on_token is not None and new.id is not None:
                on_token(numbers[new.request], new.id)
    return [
        requests[number].answers[0] if number in requests else [] for number in range(len(prompts))
    ]
