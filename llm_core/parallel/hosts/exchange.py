"""Lets all processes of a run agree through its store of addresses.

No process connects to another, only to the store, as it did to find the others: a mesh of gloo
connections needs as many sockets per process as there are processes, and fails above a thousand.

| exchange | requests of a process | bytes of a process |
|---|---|---|
| `Question`: what do some say, to all? | 2, of one that speaks 4 | what it says, and an answer of at most `MOST_TEXTS` texts |
| `Hosts.collect`: what do a few have, to all? | 1 for each of the few, and 1 | what the few have |

Neither grows with the number of processes. The store serves all of them: 2 requests of each a turn.
Who comes last to a turn writes its answer and removes what the turn before left, which all have
read by then, so that the store does not grow.
"""  # noqa: E501

from __future__ import annotations

import functools
import json
import time
from dataclasses import dataclass, field
from datetime import timedelta

import torch.distributed as dist

from llm_core.compat import default_store

TIMEOUT = timedelta(minutes=30)
MOST_TEXTS = 8
"""Of what processes say in one turn: enough to see what they have in common."""
PAUSES_S = (0.0005, 0.2)
"""First and longest pause between two looks for an answer. `Store.wait` would look once, but it
keeps the connection to itself, and TCPStore prints a warning for each time it gives up."""


@dataclass(frozen=True)
class Said:
    """What all processes learn of one turn of a question."""

    count: int
    """Processes that said something."""
    texts: tuple[str, ...]
    """Of those that spoke first, in order of ranks, at most `MOST_TEXTS`."""


@dataclass
class Hosts:
    """This process among all of the run. Every process has one and makes the same calls in the same
    order."""

    store: dist.Store
    rank: int
    world: int
    is_watched: bool = False
    """Whether somebody sets `fault` where processes are lost; else waits end after `TIMEOUT`."""
    fault: str | None = None
    """Why no other process should be waited for."""
    _turn: int = 0
    _questions: int = 0

    def question(self) -> Question:
        """A new one, of turns of its own."""
        self._questions += 1
        return Question(self, f"question-{self._questions}")

    def ask(self, mine: str | None) -> Said:
        """What all say, once all have been asked. None: this process says nothing."""
        self._asked.put(mine)
        return self._asked.answer()

    @functools.cached_property
    def _asked(self) -> Question:
        return Question(self, "ask")

    def collect(self, slot: int | None, mine: str, num_slots: int) -> list[str]:
        """What the processes that have a slot say, in order of slots, to every process."""
        self._turn += 1
        name = f"collect-{self._turn}"
        if slot is not None:
            self.store.set(f"{name}/{slot}", mine)
        slots = [f"{name}/{number}" for number in range(num_slots)]
        found = [self.read(key) for key in slots]
        if self.store.add(f"{name}/read", 1) == self.world:
            for key in (*slots, f"{name}/read"):
                self.store.delete_key(key)
        return found

    def read(self, key: str) -> str:
        """A value, once it is there. Raises RuntimeError when it will not come."""
        began, (pause_s, longest_s) = time.monotonic(), PAUSES_S
        while not self.store.check([key]):
            if self.fault is not None:
                raise RuntimeError(self.fault)
            if not self.is_watched and time.monotonic() - began > TIMEOUT.total_seconds():
                raise RuntimeError(f"other processes did not answer ({key} is missing)")
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, longest_s)
        return str(self.store.get(key).decode())


@dataclass
class Question:
    """One that is put again and again: a turn is put, goes on while processes work, and is
    answered."""

    hosts: Hosts
    name: str
    _turn: int = field(default=0, repr=False)
    _num_texts: int = field(default=0, repr=False)

    def put(self, mine: str | None) -> None:
        """Begin a turn, the last one answered. None: this process says nothing."""
        self._turn += 1
        store, name = self.hosts.store, f"{self.name}/{self._turn}"
        if mine is not None:
            number = store.add(f"{name}/said", 1)
            if number <= MOST_TEXTS:
                store.set(f"{name}/text-{number}", json.dumps([self.hosts.rank, mine]))
        if store.add(f"{name}/came", 1) == self.hosts.world:
            count = store.add(f"{name}/said", 0)
            numbers = range(1, min(count, MOST_TEXTS) + 1)
            texts = sorted(json.loads(store.get(f"{name}/text-{number}")) for number in numbers)
            store.set(f"{name}/answer", json.dumps([count, [text for _, text in texts]]))
            self._forget(self._turn - 1)

    def answer(self) -> Said:
        """What the turn found, once all processes have come to it."""
        count, texts = json.loads(self.hosts.read(f"{self.name}/{self._turn}/answer"))
        self._num_texts = len(texts)
        return Said(count, tuple(texts))

    def _forget(self, turn: int) -> None:
        texts = (f"text-{number}" for number in range(1, self._num_texts + 1))
        for name in ("came", "said", "answer", *texts):
            self.hosts.store.delete_key(f"{self.name}/{turn}/{name}")


def hosts_of_group() -> Hosts:
    """Of the default process group, one as long as that lasts: its turns must not begin anew."""
    return _hosts_of(default_store())


@functools.lru_cache(maxsize=1)
def _hosts_of(store: dist.Store) -> Hosts:
    own = dist.PrefixStore("hosts", store)
    return Hosts(own, dist.get_rank(), dist.get_world_size())
