"""Generates for many requests at once: each `step` is one pass through the model, which gives every
running answer its next token and goes on with the prompts that wait.

What a pass computes is decided by `llm_core.infer.scheduler` (token budget, chunked prefill,
preemption, shared prefixes), keys and values are in `llm_core.infer.paged`, and tokens are chosen
by `llm_core.infer.choosing`. An answer depends on its prompt, its parameters and its number, not on
its neighbours, on how its prompt is cut, or on whether it was interrupted: exactly so in float64.
In shorter numbers sums round by their order, which shapes decide, so two near-equal logits may
change places.

Ids in, ids out. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from llm_core.config import ConfigError, check_bounds
from llm_core.infer.blocks import BlockPool
from llm_core.infer.choosing import Choosers, check_chosen, choose
from llm_core.infer.cpu_products import speed_up
from llm_core.infer.edits import LogitEdits
from llm_core.infer.paged import PagedCache, Pass
from llm_core.infer.requests import Allowed, Finish, NewToken, Request, Scored, check_prompt
from llm_core.infer.rows import place_of
from llm_core.infer.sampling import SamplingParams
from llm_core.infer.scheduler import Piece, Plan, Running, Scheduler
from llm_core.model.transformer import Transformer

# N tokens of a pass · B rows that get a token · V vocabulary · D width of the model

SCORED_ROWS = 256
"""Prompt tokens whose logits are in memory at once."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """How much an engine keeps and computes at once."""

    cache_tokens: int = 16384
    """Tokens of all requests whose keys and values fit the cache."""
    block_tokens: int = 16
    """Tokens of a block, a power of two. Prefixes are shared in whole blocks."""
    budget_tokens: int = 2048
    """Most tokens of a pass: decoding requests first, then pieces of prompts."""
    max_running: int = 64
    """Most answers that are written at once; others wait."""
    cache: Literal["model", "int8"] = "model"
    """Numbers of the cache. int8: 8 bits each, with a scale per token and head."""
    prefix_cache: bool = True
    """Whether a prompt may begin behind blocks that an earlier one left."""
    copy_weights: bool = True
    """Whether float32 weights on a CPU may be kept a second time, in a faster order."""

    def __post_init__(self) -> None:
        check_bounds(self, block_tokens=(1, None), max_running=(1, None))
        check_bounds(self, cache_tokens=(self.block_tokens, None), budget_tokens=(2, None))
        if self.block_tokens & (self.block_tokens - 1):
            raise ConfigError(f"block_tokens ({self.block_tokens}) must be a power of two; try 16")
        if self.budget_tokens <= self.max_running:
            raise ConfigError(
                f"budget_tokens ({self.budget_tokens}) must exceed max_running"
                f" ({self.max_running}), or prompts would wait while answers grow; raise it"
            )


@dataclass(eq=False)
class _Choice:
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


class Engine:
    """A model, its cache and the requests that share them."""

    def __init__(self, model: Transformer, config: EngineConfig, eos_ids: Sequence[int]) -> None:
        """eos_ids: ids that end every answer and are not part of it; may be empty."""
        self.model, self.config, self.eos_ids = model, config, frozenset(eos_ids)
        if config.copy_weights:
            speed_up(model)
        dtype, self.device = place_of(model)
        num_blocks = config.cache_tokens // config.block_tokens
        self.pool = BlockPool(num_blocks, config.block_tokens)
        self.scheduler = Scheduler(self.pool, config.budget_tokens, config.max_running)
        is_int8 = config.cache == "int8"
        self.cache = PagedCache(
            model.config, num_blocks, config.block_tokens, dtype, self.device, is_int8
        )
        self.edits = LogitEdits(model.config.vocab_size, self.device)
        self.num_prefix_tokens = self.num_preemptions = self.num_computed_tokens = 0
        self._choices: dict[Running, _Choice] = {}
        self._choosers: tuple[list[_Choice], Choosers] | None = None

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._choices)

    @property
    def num_waiting(self) -> int:
        return len(self.scheduler.waiting)

    @property
    def num_running(self) -> int:
        return len(self.scheduler.running)

    @property
    def num_blocks(self) -> int:
        return self.pool.num_blocks

    @property
    def num_used_blocks(self) -> int:
        """Blocks that requests hold; those kept for later prefixes are free."""
        return self.pool.num_blocks - self.pool.num_free

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        max_new_tokens: int,
        *,
        n: int = 1,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        first_choice: int = 0,
        allowed: Allowed | None = None,
    ) -> Request:
        """Queue a request; `Request` describes the arguments.

        Raises ConfigError for what the model or the cache can never hold.
        """
        request = Request(
            tuple(prompt_ids), params, max_new_tokens, n, logprobs, prompt_logprobs, first_choice,
            allowed,
        )  # fmt: skip
        request.check(self.model.config)
        # Positions that are found and not computed have no logits to score them by.
        reuses = self.config.prefix_cache and prompt_logprobs is None
        sequence = self.scheduler.add(request.prompt_ids, max_new_tokens, reuses)
        self._write(request, 0, sequence)
        return request

    def cancel(self, request: Request, choice: int | None = None) -> None:
        """End a request, or one of its answers, at once; its blocks are free. What has ended
        already is left alone."""
        for sequence, each in list(self._choices.items()):
            if each.request is request and choice in (None, each.number):
                # The prompt of several answers is computed for the first of them.
                assert choice is None or request.n == 1 or each.answer, "no answer has begun"
                self._end(sequence)

    @torch.inference_mode()
    def step(self) -> list[NewToken]:
        """One pass: the tokens that it gave, in order of arrival. Nothing where all is done.

        Raises SamplingError for logits that are not numbers; the engine is then of no more use.
        """
        if not self.busy:
            return []
        waited = list(self.scheduler.waiting)
        plan = self.scheduler.plan()
        assert plan.pieces, "no sequence could go on"
        self._count(plan, waited)
        self.cache.copy_blocks(plan.copies)
        coming = self._pass_of(plan)
        self.cache.begin(coming)
        hidden_ND = self.model.hidden(
            coming.ids_N[None], coming.positions_N[None], self.cache
        )[0]  # fmt: skip
        self.scheduler.computed(plan)
        place = 0
        ready: list[tuple[_Choice, int]] = []
        for piece in plan.pieces:
            size = piece.end - piece.begin
            self._score_prompt(piece, hidden_ND[place : place + size])
            place += size
            if piece.needs_logits:
                ready += [(choice, place - 1) for choice in self._begin_answers(piece.sequence)]
        return self._next_tokens(ready, hidden_ND)

    def _count(self, plan: Plan, waited: Sequence[Running]) -> None:
        self.num_computed_tokens += plan.num_tokens
        self.num_preemptions += sum(each not in waited for each in self.scheduler.waiting)
        for piece in plan.pieces:
            if piece.sequence in waited:
                self.num_prefix_tokens += piece.sequence.num_reused

    def _pass_of(self, plan: Plan) -> Pass:
        pieces = plan.pieces
        return Pass.of(
            [piece.sequence.tokens[piece.begin : piece.end] for piece in pieces],
            [piece.end for piece in pieces],
            [piece.sequence.blocks for piece in pieces],
            self.config.block_tokens,
            self.device,
        )

    def _write(self, request: Request, number: int, sequence: Running) -> _Choice:
        params = request.params
        slot = self.edits.take(params, request.prompt_ids) if params.counts_tokens else None
        stops = self.eos_ids.union(params.stop_ids)
        self._choices[sequence] = _Choice(request, number, sequence, slot, stops)
        return self._choices[sequence]

    def _begin_answers(self, sequence: Running) -> list[_Choice]:
        """The answers that follow a computed sequence: several where it is a prompt of several."""
        first = self._choices[sequence]
        if first.answer or first.number:
            return [first]
        others = range(1, first.request.n)
        return [
            first,
            *(self._write(first.request, i, self.scheduler.fork(sequence)) for i in others),
        ]

    def _next_tokens(
        self, ready: Sequence[tuple[_Choice, int]], hidden_ND: Tensor
    ) -> list[NewToken]:
        ended = [choice for choice, _ in ready if not choice.request.max_new_tokens]
        new = [self._finished(choice, "length") for choice in ended]
        ready = [(choice, place) for choice, place in ready if choice not in ended]
        if not ready:
            return new
        choices = [choice for choice, _ in ready]
        places_B = torch.tensor([place for _, place in ready], device=self.device)
        raw_BV = self.model.logits(hidden_ND[places_B])
        logits_BV = self._edit(raw_BV, choices)
        steps_B = torch.tensor([len(choice.answer) for choice in choices], device=self.device)
        ids = choose(logits_BV, self._choosers_of(choices), steps_B).tolist()
        check_chosen(ids, logits_BV)
        scores = self._score(raw_BV, ids, choices)
        counted = [row for row, choice in enumerate(choices) if choice.slot is not None]
        if counted:
            slots = [slot for row in counted if (slot := choices[row].slot) is not None]
            self.edits.count(slots, [ids[row] for row in counted])
        told = zip(choices, ids, scores, strict=True)
        return new + [self._take(choice, token, score) for choice, token, score in told]

    def _edit(self, logits_BV: Tensor, choices: Sequence[_Choice]) -> Tensor:
        """The logits to draw from; a copy where any are changed."""
        counted = [row for row, choice in enumerate(choices) if choice.slot is not None]
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
        logits_BV = logits_BV.float()
        logits_BV = logits_BV.clone() if logits_BV.dtype == torch.float32 else logits_BV
        if counted:
            slots = [slot for row in counted if (slot := choices[row].slot) is not None]
            logits_BV[counted] = self.edits.apply(logits_BV[counted], slots)
        if bound:
            rows, stops = zip(*bound, strict=True)
            logits_BV[list(rows), list(stops)] = float("-inf")
        for row, mask_V in masks:
            logits_BV[row].masked_fill_(~mask_V, float("-inf"))
        return logits_BV

    def _choosers_of(self, choices: list[_Choice]) -> Choosers:
        if self._choosers is None or self._choosers[0] != choices:
            params = [choice.request.params for choice in choices]
            numbers = [choice.request.first_choice + choice.number for choice in choices]
            self._choosers = choices, Choosers.of(params, numbers, self.device)
        return self._choosers[1]

    def _take(self, choice: _Choice, token: int, score: Scored | None) -> NewToken:
        if token in choice.stop_ids:
            return self._finished(choice, "stop")
        choice.answer.append(token)
        self.scheduler.append(choice.sequence, token)
        finish: Finish | None = None
        if len(choice.answer) == choice.request.max_new_tokens:
            finish = "length"
            self._finished(choice, finish)
        logprob, top = (None, None) if score is None else (score.logprob, score.top)
        return NewToken(choice.request, choice.number, token, logprob, top, finish)

    def _finished(self, choice: _Choice, finish: Finish) -> NewToken:
        choice.request.finishes[choice.number] = finish
        self._end(choice.sequence)
        return NewToken(choice.request, choice.number, None, finish=finish)

    def _end(self, sequence: Running) -> None:
        choice = self._choices.pop(sequence)
        self.scheduler.end(sequence)
        if choice.slot is not None:
            self.edits.release(choice.slot)

    def _score(
        self, logits_BV: Tensor, ids: Sequence[int], choices: Sequence[_Choice]
    ) -> list[Scored | None]:
        wanted = {
            row: choice.request.logprobs
            for row, choice in enumerate(choices)
            if choice.request.logprobs is not None
        }
        scores: list[Scored | None] = [None] * len(ids)
        if wanted:
            tokens = [ids[row] for row in wanted]
            found = score_tokens(logits_BV[list(wanted)], tokens, list(wanted.values()))
            for row, score in zip(wanted, found, strict=True):
                scores[row] = score
        return scores

    def _score_prompt(self, piece: Piece, hidden_ND: Tensor) -> None:
        """Score the tokens of a prompt that follow those of this piece."""
        request = self._choices[piece.sequence].request
        count = request.prompt_logprobs
        if count is None:
            return
        last = min(piece.end, len(request.prompt_ids) - 1)
        for begin in range(piece.begin, last, SCORED_ROWS):
            end = min(begin + SCORED_ROWS, last)
            logits_BV = self.model.logits(hidden_ND[begin - piece.begin : end - piece.begin])
            ids = request.prompt_ids[begin + 1 : end + 1]
            request.prompt_scores[begin + 1 : end + 1] = score_tokens(
                logits_BV, ids, [count] * len(ids)
            )


def score_tokens(logits_BV: Tensor, ids: Sequence[int], num_top: Sequence[int]) -> list[Scored]:
    """Of each row's token, with as many likeliest ones as wanted of it."""
    if logits_BV.dtype != torch.float64:
        logits_BV = logits_BV.float()
    logprobs_BV = logits_BV.log_softmax(-1)
    ids_B1 = torch.tensor(list(ids), device=logits_BV.device)[:, None]
    chosen = logprobs_BV.gather(1, ids_B1)[:, 0].tolist()
    top_BK, places_BK = logprobs_BV.topk(max(num_top), dim=-1)
    pairs = [
        tuple(zip(places[:count], values[:count], strict=True))
        for places, values, count in zip(places_BK.tolist(), top_BK.tolist(), num_top, strict=True)
    ]
    return [Scored(logprob, top) for logprob, top in zip(chosen, pairs, strict=True)]


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
    engine = Engine(model, config or _config_for(lengths), eos_ids)
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


def _config_for(lengths: Sequence[int]) -> EngineConfig:
    """Room for as many of the longest as run at once."""
    size = EngineConfig.block_tokens
    most = EngineConfig.max_running
    longest = sorted(lengths, reverse=True)[:most]
    return EngineConfig(cache_tokens=sum(-(-length // size) * size for length in longest))
