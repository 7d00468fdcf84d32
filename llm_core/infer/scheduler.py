"""Decides which tokens of which sequences the next pass computes, and in which blocks they go.

A pass has a budget of tokens. Sequences that wait for their next token come first, then pieces of
prompts (chunked prefill: Agrawal et al., 2024), each in the order of arrival, so a long prompt
delays nobody by more than one budget. A sequence that needs a block when none is free sends the
latest arrival back to wait, without its blocks: it will compute its tokens again (preemption by
recomputation: Kwon et al., 2023) and, as the oldest sequence is never sent back, every sequence
ends. New sequences begin behind the blocks that already hold their prefix; at least one token is
computed, as its logits are needed.

Ids and counts only: no model, no clock and no random number, so the same calls give the same plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from llm_core.config import ConfigError
from llm_core.infer.cache.blocks import ROOT, BlockPool

NOBODYS = 0
"""What a dropped block is listed as; any would do, as nobody reads it."""


@dataclass(eq=False)
class Running:
    """One sequence of tokens that grows: a prompt and what was chosen after it."""

    number: int
    """Order of arrival, which is the order of precedence."""
    tokens: list[int]
    max_tokens: int
    """Tokens of prompt and answer at most."""
    reuses: bool = True
    """Whether it may begin behind blocks that others computed."""
    num_computed: int = 0
    """Tokens whose keys and values are in `blocks`."""
    blocks: list[int] = field(default_factory=list)
    chain: int = ROOT
    """That of the full blocks computed so far."""
    num_reused: int = 0
    """Tokens of `num_computed` that were found and not computed, since the last (re)start."""
    num_restarts: int = 0
    num_dropped: int = 0
    """The first of `blocks`, which no later token attends: held no longer, and listed for their
    places alone."""

    @property
    def held(self) -> list[int]:
        return self.blocks[self.num_dropped :]

    @property
    def num_left(self) -> int:
        """Tokens to compute before the next one can be chosen."""
        return len(self.tokens) - self.num_computed


@dataclass(frozen=True)
class Piece:
    """What a pass computes of one sequence: tokens[begin:end], into its blocks."""

    sequence: Running
    begin: int
    end: int

    @property
    def needs_logits(self) -> bool:
        """Whether this is all there is, so that the next token is chosen after its last."""
        return self.end == len(self.sequence.tokens)

    @property
    def is_decode(self) -> bool:
        """Whether this is the last token alone. A sequence that was sent back computes its answer
        so far again first."""
        return self.needs_logits and self.end - self.begin == 1


@dataclass(frozen=True)
class Plan:
    """One pass: first `copies` of blocks (from, to), then `pieces`, decodes before prefills."""

    pieces: list[Piece]
    copies: list[tuple[int, int]]

    @property
    def num_tokens(self) -> int:
        return sum(piece.end - piece.begin for piece in self.pieces)

    @property
    def is_decode(self) -> bool:
        return all(piece.is_decode for piece in self.pieces)


class Scheduler:
    """Sequences that run, those that wait, and the blocks they share."""

    def __init__(
        self, pool: BlockPool, budget_tokens: int, max_running: int, window: int = 0
    ) -> None:
        """window: tokens that a token attends in every layer, itself included; 0: all before it."""
        if budget_tokens <= max_running:
            raise ConfigError(
                f"the budget of a pass ({budget_tokens} tokens) must exceed the sequences that run"
                f" at once ({max_running}), or prompts would wait while answers grow; raise the"
                " budget"
            )
        self.pool, self.budget_tokens, self.max_running = pool, budget_tokens, max_running
        self.window = window
        self.waiting: list[Running] = []
        self.running: list[Running] = []
        self._num_arrived = 0

    def add(self, prompt: Sequence[int], max_new_tokens: int, reuses: bool = True) -> Running:
        """Queue a prompt. Raises ConfigError where it could never run to its end."""
        max_tokens = len(prompt) + max_new_tokens
        # The last token is chosen and never computed.
        needed = self._blocks_for(max(len(prompt), max_tokens - 1))
        if self.window:  # what a pass computes and attends, which may begin within a block
            needed = min(needed, self._blocks_for(self.window + self.budget_tokens) + 1)
        if needed > self.pool.num_blocks:
            room = self.pool.num_blocks * self.pool.block_tokens
            raise ConfigError(
                f"{len(prompt)} prompt tokens and {max_new_tokens} new ones do not fit the cache"
                f" ({room} tokens); ask for fewer or make a larger cache"
            )
        sequence = Running(self._arrive(), list(prompt), max_tokens, reuses)
        self.waiting.append(sequence)
        return sequence

    def fork(self, sequence: Running) -> Running:
        """A second sequence with the same tokens, which holds the same blocks."""
        twin = Running(
            self._arrive(),
            list(sequence.tokens),
            sequence.max_tokens,
            sequence.reuses,
            sequence.num_computed,
            list(sequence.blocks),
            sequence.chain,
            num_dropped=sequence.num_dropped,
        )
        self.pool.hold(twin.held)
        # Without a place among those that run it waits, and begins again from what is listed.
        if len(self.running) < self.max_running and sequence in self.running:
            self._insert(self.running, twin)
        else:
            self._restart(twin)
        return twin

    def plan(self) -> Plan:
        """The next pass; `computed` must be told when it was made, before the next plan."""
        budget = self.budget_tokens
        pieces: list[Piece] = []
        copies: dict[Running, tuple[int, int]] = {}
        restarts = 0
        decoding = [sequence for sequence in self.running if sequence.num_left == 1]
        prefilling = [sequence for sequence in self.running if sequence.num_left > 1]
        for sequence in decoding + prefilling:
            if sequence not in self.running or not budget:
                continue
            count = min(sequence.num_left, budget)
            while not self._extend(sequence, count, copies):
                last = self.running.pop()
                self._restart(last)
                restarts += 1
                copies.pop(last, None)
                dropped = [piece for piece in pieces if piece.sequence is last]
                budget += sum(piece.end - piece.begin for piece in dropped)
                pieces = [piece for piece in pieces if piece.sequence is not last]
                if last is sequence:
                    break
            else:
                begin = sequence.num_computed
                pieces.append(Piece(sequence, begin, begin + count))
                budget -= count
        # Who was just sent back would otherwise take what was taken from it.
        while not restarts and budget and self.waiting and len(self.running) < self.max_running:
            piece = self._admit(self.waiting[0], budget)
            if piece is None:
                break
            self.waiting.pop(0)
            pieces.append(piece)
            budget -= piece.end - piece.begin
        return Plan(pieces, list(copies.values()))

    def computed(self, plan: Plan) -> None:
        """Take note that the pass was made: its tokens are in their blocks."""
        size = self.pool.block_tokens
        for piece in plan.pieces:
            sequence = piece.sequence
            if sequence.num_computed != piece.begin or not sequence.blocks:
                continue  # cancelled in between
            for full in range(piece.begin // size, piece.end // size):
                tokens = sequence.tokens[full * size : (full + 1) * size]
                sequence.chain = self.pool.enter(sequence.blocks[full], sequence.chain, tokens)
            sequence.num_computed = piece.end
            behind = self._num_behind(piece.end)
            if behind > sequence.num_dropped:
                dropped = slice(sequence.num_dropped, behind)
                self.pool.release(sequence.blocks[dropped])
                sequence.blocks[dropped] = [NOBODYS] * (behind - sequence.num_dropped)
                sequence.num_dropped = behind

    def reserve(self, plan: Plan, count: int) -> bool:
        """Take blocks for `count` tokens of each sequence of a plan of decodes, or as many as it
        may still have, so that it need not ask again before; False, and nothing taken, where too
        few are free."""
        sequences = [piece.sequence for piece in plan.pieces]
        missing = [
            # The last token is chosen and never computed.
            max(
                0,
                self._blocks_for(min(each.num_computed + count, each.max_tokens - 1))
                - len(each.blocks),
            )
            for each in sequences
        ]
        if sum(missing) > self.pool.num_free:
            return False
        for sequence, number in zip(sequences, missing, strict=True):
            sequence.blocks.extend(self._take(sequence, number))
        return True

    def append(self, sequence: Running, token: int) -> None:
        """Add the token that was chosen after the last one computed, here or where a sequence that
        waits was forked."""
        done = sequence.num_left == 0 or sequence in self.waiting
        assert done, f"sequence {sequence.number} is not computed to its end"
        sequence.tokens.append(token)

    def advance(self, sequence: Running, tokens: Sequence[int]) -> None:
        """Add tokens that were chosen one after another, each computed but for the last."""
        begin = sequence.num_computed
        sequence.tokens.extend(tokens)
        self.computed(Plan([Piece(sequence, begin, begin + len(tokens))], []))

    def end(self, sequence: Running) -> None:
        """Forget a sequence, finished or cancelled at any time between two calls."""
        (self.running if sequence in self.running else self.waiting).remove(sequence)
        self.pool.release(sequence.held)
        sequence.blocks, sequence.num_dropped = [], 0

    def _arrive(self) -> int:
        self._num_arrived += 1
        return self._num_arrived - 1

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.pool.block_tokens)

    def _num_behind(self, num_computed: int) -> int:
        """Blocks that no token behind these attends."""
        seen = num_computed - self.window + 1 if self.window else 0
        return max(0, seen) // self.pool.block_tokens

    def _extend(
        self, sequence: Running, count: int, copies: dict[Running, tuple[int, int]]
    ) -> bool:
        """Take blocks for `count` more tokens, which nobody else holds; False where too few are
        free."""
        size, pool = self.pool.block_tokens, self.pool
        own = sequence.blocks
        first = sequence.num_computed // size
        # Written into, so no longer shared: only the block that is not full can be.
        shared = first < len(own) and pool.holders(own[first]) > 1
        missing = self._blocks_for(sequence.num_computed + count) - len(own)
        if missing + shared > pool.num_free:
            return False
        if shared:
            copy = pool.take(1)[0]
            copies[sequence] = own[first], copy
            pool.release([own[first]])
            own[first] = copy
        own.extend(self._take(sequence, max(missing, 0)))
        return True

    def _take(self, sequence: Running, count: int) -> list[int]:
        own = sequence.blocks
        after = own[-1] if own else None
        return self.pool.take(count, after, self._blocks_for(sequence.max_tokens) - len(own))

    def _admit(self, sequence: Running, budget: int) -> Piece | None:
        size, pool = self.pool.block_tokens, self.pool
        most = (len(sequence.tokens) - 1) // size if sequence.reuses else 0
        found, chain = pool.find(sequence.tokens, most)
        reused = len(found) * size
        count = min(len(sequence.tokens) - reused, budget)
        dropped = self._num_behind(reused)
        pool.hold(found[dropped:])
        if self._blocks_for(reused + count) - len(found) > pool.num_free:
            pool.release(found[dropped:])
            return None
        sequence.blocks, sequence.chain = [NOBODYS] * dropped + found[dropped:], chain
        sequence.num_dropped = dropped
        sequence.num_computed = sequence.num_reused = reused
        sequence.blocks.extend(self._take(sequence, self._blocks_for(reused + count) - len(found)))
        self._insert(self.running, sequence)
        return Piece(sequence, reused, reused + count)

    def _restart(self, sequence: Running) -> None:
        self.pool.release(sequence.held)
        sequence.blocks, sequence.chain, sequence.num_dropped = [], ROOT, 0
        sequence.num_computed = sequence.num_reused = 0
        sequence.num_restarts += 1
        self._insert(self.waiting, sequence)

    @staticmethod
    def _insert(queue: list[Running], sequence: Running) -> None:
        queue.append(sequence)
        queue.sort(key=lambda each: each.number)
