"""Finds the index that a refresh continues from: that of the run before it in its chain, by the
records of runs.

Runs with the same `dedup.chain` in one store are a chain. An input, names and contents of all files
that are read, has a place in it: that of the first run that completed with it. A run compares its
documents with the index of the last completed run at the place before, so a run that is given again
finds what it made while the places before it stay as they are, one with other settings takes its
own place again, and new input comes last. Runs that fail are in no chain. Two runs may not make a
chain longer at once: each would miss what the other brings. They are told by their records, so runs
of a chain begin one after another, by a lock that dies with its process.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile

from flows.compose import RunConfig
from flows.console import say
from flows.records import RunRecord, chain_places, read_records, runs_dir
from llm_core.config import ConfigError
from llm_core.locks import open_lock
from tasks.runtime.inputs import InputDigests
from tasks.runtime.keys import digest
from tasks.runtime.store import Store


@contextmanager
def alone_in_chain(config: RunConfig) -> Iterator[None]:
    """No other run of the chain begins while the block looks at the records and writes its own.
    Waits for one that does."""
    name = config.dedup.chain
    if name is None:
        yield
        return
    runs = runs_dir(Store(config.store))
    runs.mkdir(parents=True, exist_ok=True)
    with open_lock(runs / f"chain-{digest(name)}.lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another run of dedup.chain ({name}) is starting; waiting for its plan")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def follow_chain(config: RunConfig) -> tuple[RunConfig, dict[str, str] | None]:
    """The same with the index that the chain says, and the link that this run will be; both
    unchanged and None without a chain.

    Raises ConfigError where another run makes the chain longer, or its last index is gone.
    """
    name = config.dedup.chain
    if name is None:
        return config, None
    store = Store(config.store)
    try:
        inputs = InputDigests(store.digests_file).of(config.source.input_files())
    except FileNotFoundError as error:
        raise ConfigError(f"{error.filename} disappeared during the scan; run again") from error
    link = {"name": name, "inputs": digest(inputs)}
    before = _run_before(read_records(store), link)
    dedup = replace(config.dedup, chain=None)
    if before is not None:
        key = before.stages["dedup"]
        if state := store.damage("dedup", key):
            raise ConfigError(
                f"dedup.chain ({name}) continues from dedup {key} of run {before.run_id}, which is"
                f" not in the store ({state}); rebuild it with the input of that run and"
                " only=dedup, or begin a chain of another name"
            )
        dedup = replace(dedup, index=store.root / "dedup" / key)
    return replace(config, dedup=dedup), link


def _run_before(records: Sequence[RunRecord], link: dict[str, str]) -> RunRecord | None:
    name, inputs = link["name"], link["inputs"]
    places = chain_places(records, name)
    for record in records if inputs not in places else ():
        if (
            record.chain
            and record.chain["name"] == name
            and record.chain["inputs"] != inputs
            and record.is_alive()
        ):
            raise ConfigError(
                f"dedup.chain ({name}) is being extended by run {record.run_id} on"
                f" {record.process.get('host')}; run again when that run has ended, or, if it died"
                f" on another machine, delete its record .runs/{record.run_id}.json in the store"
            )
    earlier = list(takewhile(lambda known: known != inputs, places))
    return places[earlier[-1]] if earlier else None
