"""Generates for many requests at once: each `step` is one pass through the model, which gives every
running answer its next token and goes on with the prompts that wait.

What a pass computes is decided by `llm_core.infer.scheduler` (token budget, chunked prefill,
preemption, shared prefixes), keys and values are in `llm_core.infer.cache.paged`, and tokens are
chosen by `llm_core.infer.choice.choosing`. An answer depends on its prompt, its parameters and its
number, not on its neighbours, on how its prompt is cut, or on whether it was interrupted: exactly
so in float64. In shorter numbers sums round by their order, which shapes decide, so two near-equal
logits may change places.

Ids in, ids out. One thread at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from llm_core.infer.answers import Choice, counted_rows, edited, score_prompt
from llm_core.infer.bursts import Bursts, Start
from llm_core.infer.cache.attention import any_length
from llm_core.infer.cache.blocks import BlockPool
from llm_core.infer.cache.paged import PagedCache, Pass
from llm_core.infer.cache.rows import MakesCaches, make_cache, place_of
from llm_core.infer.choice.choosing import Choosers, check_chosen, check_id, choose
from llm_core.infer.choice.edits import logit_edits
from llm_core.infer.choice.sampling import SamplingParams
from llm_core.infer.choice.scores import Scored, score_rows
from llm_core.infer.config import EngineConfig
from llm_core.infer.cpu.products import speed_up
from llm_core.infer.few_tokens import FewTokens, Part
from llm_core.infer.one_row import OneRow
from llm_core.infer.requests import Allowed, Finish, NewToken, Request
from llm_core.infer.scheduler import Piece, Plan, Running, Scheduler
from llm_core.model.transformer import Transformer

# N tokens of a pass · B rows that get a token · V vocabulary · D width of the model


class Engine:
    """A model, its cache and the requests that share them."""

    def __init__(self, model: Transformer, config: EngineConfig, eos_ids: Sequence[int]) -> None:
        """eos_ids: ids that end every answer and are not part of it; may be empty."""
        self.model, self.config = model, config
        self.eos_ids = frozenset(id for id in eos_ids if 0 <= id < model.config.vocab_size)
        speed_up(model, config.copy_weights)
        self.device = place_of(model)[1]
        num_blocks = config.cache_tokens // config.block_tokens
        self.pool = BlockPool(num_blocks, config.block_tokens)
        # Blocks hold all layers, so one layer without a window keeps them all.
        window = model.config.common_window
        self.scheduler = Scheduler(self.pool, config.budget_tokens, config.max_running, window)
        is_int8 = config.cache == "int8"
        # One block more, for what a burst computes of nobody.
        self.cache = make_cache(model, PagedCache, num_blocks + 1, config.block_tokens, is_int8)
        self.one_row = OneRow.of(model, self.cache, config.copy_weights)
        self.burst_tokens = config.burst_tokens or (32 if self.device.type == "cuda" else 1)
        self.bursts = Bursts(model, self.cache, num_blocks, self.burst_tokens)
        # Tokens are chosen here, and other processes wait for them.
        self._is_alone = not isinstance(model, MakesCaches)
        self.few_tokens = FewTokens(self.bursts)
        self.captures = self.device.type == "cuda"
        """Whether passes of few tokens, and decodes beside many, are captured and not computed one
        operation after another."""
        self.edits = logit_edits(model.config.vocab_size, self.device)
        self.num_prefix_tokens = self.num_preemptions = self.num_computed_tokens = 0
        self._choices: dict[Running, Choice] = {}
        self._choosers: tuple[list[Choice], Choosers] | None = None

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
        if (count := self._burst_tokens(plan)) > 0:
            return self._burst(plan, count)
        if not (self.captures and self._is_alone):
            return self._pass(plan)
        if self._is_few(plan):
            return self._few(plan)
        decodes, rest = self._apart(plan)
        told = self._burst(decodes, 1) if decodes.pieces else []
        if not rest.pieces:
            return told
        return told + (self._few(rest) if self._is_few(rest) else self._pass(rest))

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Capture on a GPU what would be captured when first needed."""
        if self.captures and self._is_alone:
            self.bursts.warm_up(self.config.max_running)
            self.few_tokens.warm_up()

    def _apart(self, plan: Plan) -> tuple[Plan, Plan]:
        """Decodes that a burst can compute, and the rest."""
        decodes: list[Piece] = []
        rest: list[Piece] = []
        for piece in plan.pieces:
            (decodes if self._may_burst(piece) else rest).append(piece)
        return Plan(decodes, []), Plan(rest, [])

    def _may_burst(self, piece: Piece) -> bool:
        choice = self._choices[piece.sequence]
        return piece.is_decode and bool(choice.answer) and choice.is_plain

    def _is_few(self, plan: Plan) -> bool:
        """Whether a captured pass serves: it gives each sequence one token and no logits."""
        if not self.few_tokens.serves(plan.num_tokens, len(plan.pieces)):
            return False
        return all(choice.takes_one for choice in self._choices_of(plan))

    def _few(self, plan: Plan) -> list[NewToken]:
        choices = self._choices_of(plan)
        ids = self.few_tokens.run(
            [
                Part(
                    piece.sequence.tokens[piece.begin : piece.end], piece.begin,
                    piece.sequence.blocks, len(choice.answer), choice.stream,
                )
                for piece, choice in zip(plan.pieces, choices, strict=True)
            ]
        )  # fmt: skip
        self.scheduler.computed(plan)
        told = []
        for row, (piece, choice) in enumerate(zip(plan.pieces, choices, strict=True)):
            check_id(ids[row], row)
            if piece.needs_logits:
                told.append(self._take(choice, ids[row], None))
        return told

    def _pass(self, plan: Plan) -> list[NewToken]:
        asked = [(p.sequence, p.sequence.tokens[p.begin : p.end], p.end) for p in plan.pieces]
        hidden_ND = self._hidden(asked)
        self.scheduler.computed(plan)
        place = 0
        ready: list[tuple[Choice, int]] = []
        for piece in plan.pieces:
            size = piece.end - piece.begin
            request = self._choices[piece.sequence].request
            score_prompt(request, piece.begin, hidden_ND[place : place + size], self.model.logits)
            place += size
            if piece.needs_logits:
                ready += [(choice, place - 1) for choice in self._begin_answers(piece.sequence)]
        return self._next_tokens(ready, hidden_ND)

    def _hidden(self, asked: Sequence[tuple[Running, Sequence[int], int]]) -> Tensor:
        """hidden_ND of (sequence, its new tokens, its tokens with them)."""
        size = self.config.block_tokens
        skipped = [sequence.num_dropped * size for sequence, _, _ in asked]
        lengths = [length - gone for (_, _, length), gone in zip(asked, skipped, strict=True)]
        new, tables = [new for _, new, _ in asked], [sequence.held for sequence, _, _ in asked]
        coming = Pass.of(new, lengths, tables, size, self.device, skipped)
        if self.one_row is not None and self.one_row.serves(coming):
            return self.one_row.hidden(coming)
        self.cache.begin(coming)
        with any_length():
            return self.model.hidden(coming.ids_N[None], coming.positions_N[None], self.cache)[0]

    def _burst_tokens(self, plan: Plan) -> int:
        """Steps that may follow one another on the device; 0 where this pass is none of them."""
        if not (self._is_alone and all(map(self._may_burst, plan.pieces))):
            return 0
        count = 1
        if not self.scheduler.waiting:
            choices = self._choices_of(plan)
            # Steps behind the end of an answer cost its batch nothing; a burst that ended with the
            # first of many answers would be short.
            left = max(choice.num_left for choice in choices)
            room = min(self.bursts.room(choice.sequence.num_computed) for choice in choices)
            count = min(self.burst_tokens, left, room)
        if count > 1 and not self.scheduler.reserve(plan, count):
            count = 1
        return count if count > 1 or self.captures else 0

    def _burst(self, plan: Plan, count: int) -> list[NewToken]:
        choices = self._choices_of(plan)
        starts = [
            Start(c.answer[-1], c.sequence.num_computed, c.sequence.blocks, len(c.answer), c.stream)
            for c in choices
        ]
        return self._advance(choices, self.bursts.run(starts, count))

    def _choices_of(self, plan: Plan) -> list[Choice]:
        return [self._choices[piece.sequence] for piece in plan.pieces]

    def _advance(self, choices: list[Choice], ids: Sequence[Sequence[int]]) -> list[NewToken]:
        """Take several tokens of each answer, all computed but the last."""
        told: list[list[NewToken]] = []
        for row, choice in enumerate(choices):
            # What follows a stop id or the last token was computed for nothing.
            wanted = ids[row][: choice.num_left]
            stops = (at for at, id in enumerate(wanted) if id in choice.stop_ids)
            last = next(stops, len(wanted))
            ids_told = wanted[:last]
            check_id(min(wanted[: last + 1]), row)
            self.scheduler.advance(choice.sequence, ids_told)
            self.num_computed_tokens += max(last - 1, 0)
            choice.answer.extend(ids_told)
            new = [NewToken(choice.request, choice.number, id) for id in ids_told]
            if last < len(wanted):
                new.append(self._finished(choice, "stop"))
            elif not choice.num_left:
                self._finished(choice, "length")
                new[-1] = new[-1]._replace(finish="length")
            told.append(new)
        return [new for step in itertools.zip_longest(*told) for new in step if new is not None]

    def _count(self, plan: Plan, waited: Sequence[Running]) -> None:
        self.num_computed_tokens += plan.num_tokens
        self.num_preemptions += sum(each not in waited for each in self.scheduler.waiting)
        for piece in plan.pieces:
            if piece.sequence in waited:
                self.num_prefix_tokens += piece.sequence.num_reused

    def _write(self, request: Request, number: int, sequence: Running) -> Choice:
        params = request.params
        slot = self.edits.take(params, request.prompt_ids) if params.counts_tokens else None
        stops = self.eos_ids.union(params.stop_ids)
        self._choices[sequence] = Choice(request, number, sequence, slot, stops)
        return self._choices[sequence]

    def _begin_answers(self, sequence: Running) -> list[Choice]:
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
        self, ready: Sequence[tuple[Choice, int]], hidden_ND: Tensor
    ) -> list[NewToken]:
        new = [self._finished(c, "length") for c, _ in ready if not c.request.max_new_tokens]
        ready = [(choice, place) for choice, place in ready if choice.request.max_new_tokens]
        if not ready:
            return new
        choices = [choice for choice, _ in ready]
        places_B = torch.tensor([place for _, place in ready], device=self.device)
        raw_BV = (self.one_row or self.model).logits(hidden_ND[places_B])
        logits_BV = edited(raw_BV, choices, self.edits)
        steps_B = torch.tensor([len(choice.answer) for choice in choices], device=self.device)
        ids = choose(logits_BV, self._choosers_of(choices), steps_B).tolist()
        check_chosen(ids, logits_BV)
        scores = score_rows(raw_BV, ids, [choice.request.logprobs for choice in choices])
        if counted := counted_rows(choices):
            self.edits.count(list(counted.values()), [ids[row] for row in counted])
        return new + [self._take(*each) for each in zip(choices, ids, scores, strict=True)]

    def _choosers_of(self, choices: list[Choice]) -> Choosers:
        if self._choosers is None or self._choosers[0] != choices:
            params, numbers = zip(*(choice.stream for choice in choices), strict=True)
            self._choosers = choices, Choosers.of(params, numbers, self.device)
        return self._choosers[1]

    def _take(self, choice: Choice, token: int, score: Scored | None) -> NewToken:
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

    def _finished(self, choice: Choice, finish: Finish) -> NewToken:
        choice.request.finishes[choice.number] = finish
        self._end(choice.sequence)
        return NewToken(choice.request, choice.number, None, finish=finish)

    def _end(self, sequence: Running) -> None:
        choice = self._choices.pop(sequence)
        self.scheduler.end(sequence)
        if choice.slot is not None:
            self.edits.release(choice.slot)
