"""Writes answers to a list of prompts, all at once, on an engine of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llm_core.infer.choice.sampling import SamplingParams
from llm_core.infer.config import EngineConfig
from llm_core.infer.engine import Engine
from llm_core.infer.replicas import among_replicas
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
    items = [
        (number if shared else 0, list(prompts[number]), each[number], limits[number])
        for number in asked
    ]
    if on_token is None and config is None:
        answers = write_answers(model, items, list(eos_ids))
    else:

        def tell(number: int, token: int) -> None:
            if on_token is not None:
                on_token(asked[number], token)

        answers = _write(model, items, eos_ids, tell, config)
    found = dict(zip(asked, answers, strict=True))
    return [found.get(number, []) for number in range(len(prompts))]


Item = tuple[int, list[int], SamplingParams, int]
"""(random stream, prompt, parameters, limit)."""


@among_replicas(list)
def write_answers(
    model: Transformer, items: Sequence[Item], eos_ids: Sequence[int]
) -> list[list[int]]:
    """The new tokens of each item."""
    return _write(model, items, eos_ids, None, None)


def _write(
    model: Transformer,
    items: Sequence[Item],
    eos_ids: Sequence[int],
    on_token: Callable[[int, int], object] | None,
    config: EngineConfig | None,
) -> list[list[int]]:
    if not items:  # a process may have none of few
        return []
    lengths = [len(prompt) + limit for _, prompt, _, limit in items]
    room = EngineConfig.holding(lengths, model.config.common_window)
    engine = Engine(model, config or room, eos_ids)
    requests = [
        engine.submit(prompt, params, limit, first_choice=stream)
        for stream, prompt, params, limit in items
    ]
    numbers = {request: number for number, request in enumerate(requests)}
    while engine.busy:
        for new in engine.step():
            if on_token is not None and new.id is not None:
                on_token(numbers[new.request], new.id)
    return [request.answers[0] for request in requests]
