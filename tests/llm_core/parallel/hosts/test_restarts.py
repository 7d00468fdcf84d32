"""All processes of a start agree on a part of the launcher's store in which nothing of an earlier
start stands."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.parallel.hosts.restarts import store_of_this_start

MINUTE = timedelta(minutes=1)


def start(port: int, delays_ms: list[int], number: int) -> None:
    """As many processes as delays join and leave something; each must find what all others of its
    start left, nothing older."""
    world, found = len(delays_ms), {}

    def join(rank: int) -> None:
        time.sleep(delays_ms[rank] / 1000)
        # Each with a connection of its own: one that waits for an answer lets nobody else ask.
        own = store_of_this_start(
            dist.TCPStore("127.0.0.1", port, is_master=False), rank, world, MINUTE
        )
        assert not own.check([f"address-{rank}"])
        own.set(f"address-{rank}", f"{rank} of start {number}")
        found[rank] = [own.get(f"address-{other}").decode() for other in range(world)]

    threads = [threading.Thread(target=join, args=(rank,), daemon=True) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == {
        rank: [f"{other} of start {number}" for other in range(world)] for rank in range(world)
    }


@settings(deadline=None, max_examples=10)
@given(st.lists(st.lists(st.integers(0, 60), min_size=3, max_size=3), min_size=2, max_size=3))
def test_processes_that_come_in_any_order_find_those_of_their_own_start(
    starts: list[list[int]],
) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for number, delays_ms in enumerate(starts):
        start(store.port, delays_ms, number)


def test_a_start_after_one_that_died_half_way_is_not_held_up() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set("came-1", "of a process that is gone")
    store.set("start", '["old", ["of another one", "of a third"]]')
    start(store.port, [0, 30, 60], 0)


def test_a_process_that_never_comes_is_an_error_in_time() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set("came-1", "of a process that is gone")
    with pytest.raises(RuntimeError, match="the others of the run did not join this start in time"):
        store_of_this_start(store, 0, 2, timedelta(milliseconds=100))
    with pytest.raises(RuntimeError, match="the first of the run did not join"):
        store_of_this_start(store, 1, 2, timedelta(milliseconds=100))
