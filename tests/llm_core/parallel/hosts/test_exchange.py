"""All processes learn the same of what some say, at a cost that does not grow with their number."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from llm_core.parallel.hosts import exchange
from llm_core.parallel.hosts.exchange import MOST_TEXTS, Hosts, Said


@given(st.integers(2, 40), st.data())
def test_all_learn_how_many_spoke_and_what_the_first_of_them_said(
    world: int, data: st.DataObject
) -> None:
    store = HashStore()
    questions = [Hosts(store, rank, world).question() for rank in range(world)]
    for _ in range(3):
        speaks = data.draw(st.sets(st.integers(0, world - 1)))
        for rank in data.draw(st.permutations(range(world))):
            questions[rank].put(f"rank {rank}" if rank in speaks else None)
        answers = {question.answer() for question in questions}
        assert len(answers) == 1
        (said,) = answers
        assert said.count == len(speaks) and len(said.texts) == min(len(speaks), MOST_TEXTS)
        numbers = [int(text.split()[1]) for text in said.texts]
        assert numbers == sorted(numbers) and speaks.issuperset(numbers)


@given(st.lists(st.integers(0, 12), min_size=2, max_size=20))
def test_the_store_keeps_no_more_than_one_turn(speakers: list[int]) -> None:
    store, world = HashStore(), 12
    questions = [Hosts(store, rank, world).question() for rank in range(world)]
    for count in speakers:
        for rank, question in enumerate(questions):
            question.put("yes" if rank < count else None)
        for question in questions:
            question.answer()
    assert store.num_keys() <= 3 + min(speakers[-1], MOST_TEXTS)


@pytest.mark.parametrize("world", [1, 2, 5])
def test_what_some_have_reaches_all_and_is_then_forgotten(world: int) -> None:
    store = HashStore()

    def take_part(rank: int) -> list[object]:
        hosts, slots = Hosts(store, rank, world), min(2, world)
        return [
            hosts.collect(rank if rank < slots else None, f"from {rank}", slots),
            hosts.ask(f"rank {rank}" if rank else None),
            hosts.collect(0 if rank == world - 1 else None, "the last", 1),
        ]

    with ThreadPoolExecutor(world) as threads:
        found = list(threads.map(take_part, range(world)))
    others = tuple(f"rank {rank}" for rank in range(1, world))
    expected = [[f"from {n}" for n in range(min(2, world))], Said(world - 1, others), ["the last"]]
    assert found == [expected] * world
    # Of the turn of the question, which ends when the next begins.
    assert store.num_keys() <= 3 + len(others)


def test_an_answer_that_does_not_come_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "TIMEOUT", exchange.timedelta(seconds=0.05))
    question = Hosts(HashStore(), 0, 2).question()
    question.put(None)
    with pytest.raises(RuntimeError, match="other processes did not answer"):
        question.answer()
