"""The scheduler shares, moves and takes back blocks as if each sequence had a cache of its own.

`Memory` stands for the keys and values: what a pass would write in each block. All is read back in
every pass, so a block that is shared wrongly, overwritten too early or copied too late shows.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_core.config import ConfigError
from llm_core.infer.cache.blocks import BlockPool, OutOfBlocks
from llm_core.infer.scheduler import Plan, Running, Scheduler


@dataclass
class Memory:
    """The tokens that stand where their keys and values would, by block and place."""

    block_tokens: int
    window: int = 0
    held: dict[tuple[int, int], int] = field(default_factory=dict)

    def make(self, plan: Plan) -> None:
        for old, new in plan.copies:
            for place in range(self.block_tokens):
                if (old, place) in self.held:
                    self.held[new, place] = self.held[old, place]
        for piece in plan.pieces:
            for position in range(piece.begin, piece.end):
                self.held[self._place(piece.sequence, position)] = piece.sequence.tokens[position]
        for piece in plan.pieces:
            first = max(0, piece.begin + 1 - self.window) if self.window else 0
            read = [self.held[self._place(piece.sequence, at)] for at in range(first, piece.end)]
            assert read == piece.sequence.tokens[first : piece.end]

    def _place(self, sequence: Running, position: int) -> tuple[int, int]:
        block, place = divmod(position, self.block_tokens)
        return sequence.blocks[block], place


def check_pool(scheduler: Scheduler) -> None:
    pool = scheduler.pool
    held = [block for each in scheduler.running for block in each.held]
    assert all(pool.holders(block) == held.count(block) for block in range(pool.num_blocks))
    assert pool.num_free == pool.num_blocks - len(set(held))
    assert all(not each.blocks for each in scheduler.waiting)


def finish(scheduler: Scheduler, memory: Memory, choose: random.Random) -> list[Running]:
    """All sequences to their ends, which come within a bounded number of passes."""
    ended: list[Running] = []
    while scheduler.running or scheduler.waiting:
        # A fork runs beside its original, also before an earlier arrival that waits for blocks.
        ahead = scheduler.running or scheduler.waiting
        oldest = min(ahead, key=lambda each: each.number)
        left = oldest.max_tokens - len(oldest.tokens) + oldest.num_left
        step(scheduler, memory, choose, ended)
        done = oldest in ended
        assert done or oldest.max_tokens - len(oldest.tokens) + oldest.num_left < left
    return ended


def step(scheduler: Scheduler, memory: Memory, choose: random.Random, ended: list[Running]) -> Plan:
    plan = scheduler.plan()
    assert plan.num_tokens <= scheduler.budget_tokens
    assert len(scheduler.running) <= scheduler.max_running
    check_pool(scheduler)
    memory.make(plan)
    scheduler.computed(plan)
    for piece in plan.pieces:
        if piece.needs_logits:
            # Two kinds of tokens: answers of equal prompts often stay equal for a while.
            scheduler.append(piece.sequence, choose.randrange(2))
            if len(piece.sequence.tokens) == piece.sequence.max_tokens:
                scheduler.end(piece.sequence)
                ended.append(piece.sequence)
    return plan


@given(st.data())
def test_every_sequence_reads_its_own_tokens_whatever_the_others_do(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 4), "block_tokens")
    max_running = data.draw(st.integers(1, 4), "max_running")
    pool = BlockPool(data.draw(st.integers(4, 12), "num_blocks"), size)
    budget = max_running + data.draw(st.integers(1, 9), "budget over running")
    window = data.draw(st.sampled_from([0, 0, 1, 2, 5]), "window")
    scheduler, memory = Scheduler(pool, budget, max_running, window), Memory(size, window)
    choose = random.Random(data.draw(st.integers(0, 99), "choices"))
    ended: list[Running] = []
    prompts: dict[Running, tuple[int, ...]] = {}
    for _ in range(data.draw(st.integers(1, 25), "events")):
        event = data.draw(st.sampled_from(["add", "step", "step", "fork", "end"]))
        alive = [*scheduler.running, *scheduler.waiting]
        if event == "add":
            prompt = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=3 * size))
            sequence = scheduler.add(prompt, data.draw(st.integers(1, size)))
            prompts[sequence] = tuple(prompt)
        elif event == "fork" and alive:
            sequence = data.draw(st.sampled_from(alive))
            prompts[scheduler.fork(sequence)] = prompts[sequence]
        elif event == "end" and alive:
            scheduler.end(data.draw(st.sampled_from(alive)))
        else:
            step(scheduler, memory, choose, ended)
        check_pool(scheduler)
    ended += finish(scheduler, memory, choose)
    assert pool.num_free == pool.num_blocks
    for sequence in ended:
        assert tuple(sequence.tokens[: len(prompts[sequence])]) == prompts[sequence]


def run_alone(scheduler: Scheduler, memory: Memory, prompt: list[int]) -> Running:
    sequence = scheduler.add(prompt, 1)
    step(scheduler, memory, random.Random(0), [])
    return sequence


def test_a_prompt_of_whole_blocks_asked_twice_still_computes_one_block() -> None:
    scheduler, memory = Scheduler(BlockPool(8, 4), 64, 2), Memory(4)
    assert run_alone(scheduler, memory, [7] * 8).num_reused == 0
    assert run_alone(scheduler, memory, [7] * 8).num_reused == 4


def test_a_longer_prompt_begins_behind_the_blocks_of_a_shorter_one() -> None:
    scheduler, memory = Scheduler(BlockPool(8, 4), 64, 2), Memory(4)
    run_alone(scheduler, memory, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert run_alone(scheduler, memory, [1, 2, 3, 4, 5, 6, 7, 8, 10, 11]).num_reused == 8
    assert run_alone(scheduler, memory, [1, 2, 3, 4, 5, 6, 7, 9, 9, 9]).num_reused == 4


def test_equal_blocks_behind_different_prefixes_are_not_shared() -> None:
    scheduler, memory = Scheduler(BlockPool(8, 2), 64, 2), Memory(2)
    run_alone(scheduler, memory, [1, 1, 5, 5, 0])
    assert run_alone(scheduler, memory, [2, 2, 5, 5, 0]).num_reused == 0


def test_a_long_prompt_leaves_every_pass_room_for_the_answers_that_grow() -> None:
    scheduler, memory = Scheduler(BlockPool(64, 4), 8, 2), Memory(4)
    short = scheduler.add([1], 12)
    step(scheduler, memory, random.Random(0), [])
    scheduler.add([2] * 40, 4)
    for _ in range(5):
        before = len(short.tokens)
        plan = step(scheduler, memory, random.Random(0), [])
        assert len(short.tokens) == before + 1
        assert plan.num_tokens == 8


def test_the_latest_arrival_waits_when_blocks_run_out() -> None:
    scheduler, memory = Scheduler(BlockPool(4, 2), 16, 2), Memory(2)
    first, second = scheduler.add([1, 1, 1], 5), scheduler.add([2, 2, 2], 5)
    ended = finish(scheduler, memory, random.Random(0))
    assert ended == [first, second]
    assert first.num_restarts == 0
    assert second.num_restarts > 0


def test_a_prompt_that_never_fits_is_refused_at_once() -> None:
    scheduler = Scheduler(BlockPool(2, 4), 16, 2)
    scheduler.add([0] * 5, 4)
    with pytest.raises(ConfigError, match="6 prompt tokens and 4 new ones do not fit"):
        scheduler.add([0] * 6, 4)


def test_a_sequence_with_a_window_holds_that_and_a_pass_however_long_it_is() -> None:
    scheduler, memory = Scheduler(BlockPool(5, 4), 6, 2, window=7), Memory(4, 7)
    sequence = scheduler.add([1] * 50, 50)
    choose, most = random.Random(0), 0
    ended: list[Running] = []
    for _ in range(100):
        if not ended:
            step(scheduler, memory, choose, ended)
            most = max(most, len(sequence.held))
    assert ended == [sequence]
    assert most <= 4  # 7 + 6 tokens
    assert scheduler.pool.num_free == 5


def test_what_a_window_has_left_is_found_by_later_prompts_while_its_room_is_not_needed() -> None:
    scheduler, memory = Scheduler(BlockPool(8, 2), 64, 2, window=3), Memory(2, 3)
    assert run_alone(scheduler, memory, [1, 2, 3, 4, 5, 6, 7]).num_reused == 0
    assert run_alone(scheduler, memory, [1, 2, 3, 4, 5, 6, 8]).num_reused == 6


def test_a_budget_without_room_for_prompts_is_refused() -> None:
    with pytest.raises(ConfigError, match="must exceed the sequences"):
        Scheduler(BlockPool(2, 4), 4, 4)


def test_a_pool_gives_nothing_when_it_cannot_give_all() -> None:
    pool = BlockPool(3, 4)
    pool.take(2)
    with pytest.raises(OutOfBlocks):
        pool.take(2)
    assert pool.num_free == 1


def test_the_end_of_a_released_chain_is_overwritten_before_its_beginning() -> None:
    pool = BlockPool(3, 1)
    blocks = pool.take(3)
    chain = 0
    for place, block in enumerate(blocks):
        chain = pool.enter(block, chain, [place])
    pool.release(blocks)
    pool.take(1)
    assert pool.find([0, 1, 2], 3)[0] == blocks[:2]
