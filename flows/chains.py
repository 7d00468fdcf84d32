"""Finds the index that a refresh continues from: that of the run before it in its chain, by the
records of runs.

Runs with the same `dedup.chain` in one store are a chain. An input, names and contents of all files
that are read, has a place in it: that of the first run that completed with it. A run compares its
documents with the index of the last completed run at the place before, so a run that is given again
finds what it made while the places before it stay as they are, one with other settings takes its
own place again, and new input comes last. Runs that fail are in no chain. Two runs may not make a
chain longer at once: each would miss what the other brings. They know each other by their
records, so runs of a chain begin one after another, by a lock that dies with its process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from flows.compose import RunConfig
from flows.console import say
from flows.records import RunRecord, chain_places, read_records
from flows.refresh.series import series_of
from llm_core.config import ConfigError
from tasks.ingest.withdrawn import find_named, withdrawn_names
from tasks.runtime.artifact import Artifact, load_artifact
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

    def waiting() -> None:
        say(f"another run of dedup.chain ({name}) is starting; waiting for its plan")

    with config.open_store().alone(f"chain-{digest(name)}", waiting):
        yield


def follow_chain(config: RunConfig) -> tuple[RunConfig, dict[str, str] | None]:
    """The same with the index that the chain says, and the link that this run will be; both
    unchanged and None without a chain.

    Raises ConfigError where another run makes the chain longer, or its last index is gone, and
    where what a run continues from holds a document that is withdrawn.
    """
    name = config.dedup.chain
    _require_none_withdrawn(config, _continued(config))
    if name is None:
        return config, None
    # The name of its series is that of the chain, which is taken out of the configuration here.
    config = replace(config, refresh=replace(config.refresh, series=series_of(config)))
    store = config.open_store()
    try:
        inputs = InputDigests(store.digests_file).of(config.source.data_files())
    except FileNotFoundError as error:
        raise ConfigError(f"{error.filename} disappeared during the scan; run again") from error
    link = {"name": name, "inputs": digest(inputs)}
    earlier = _runs_before(read_records(store), link)
    read = {
        f"run {record.run_id} of dedup.chain ({name})": store.find(
            "ingest", record.stages["ingest"]
        )
        for record in earlier
        if "ingest" in record.stages
    }
    _require_none_withdrawn(config, read)
    dedup = replace(config.dedup, chain=None)
    shards = replace(config.shards, whole_chain=False)
    if earlier:
        dedup = replace(dedup, index=_last_artifact(store, earlier[-1], "dedup", name))
        if config.shards.whole_chain:
            shards = replace(shards, earlier=_last_artifact(store, earlier[-1], "shards", name))
    return replace(config, dedup=dedup, shards=shards), link


def _last_artifact(store: Store, before: RunRecord, stage: str, chain: str) -> Path:
    """What a chain continues from; raises ConfigError where it is gone."""
    key = before.stages.get(stage, "")
    found = store.find(stage, key) if key else None
    if found is None:
        state = store.damage(stage, key) if key else "not made"
        raise ConfigError(
            f"dedup.chain ({chain}) continues from {stage} {key} of run {before.run_id}, which is"
            f" not in the store ({state}); rebuild it with the input of that run and"
            f" only={stage}, or begin a chain of another name"
        )
    return found.path


def _continued(config: RunConfig) -> dict[str, Artifact | None]:
    """{setting: the ingest behind what it continues from}; None where that is gone."""
    given = {"dedup.index": config.dedup.index, "shards.earlier": config.shards.earlier}
    return {
        f"{setting} ({path})": _ingest_behind(path)
        for setting, path in given.items()
        if path is not None
    }


def _ingest_behind(folder: Path) -> Artifact | None:
    """The ingest artifact that one of the same store was made from, as far as it is there."""
    folders = [folder]
    for folder in folders:
        artifact = load_artifact(folder)
        if artifact is None:
            continue
        if artifact.stage == "ingest":
            return artifact
        parents = artifact.record["identity"]["parents"]
        folders += [folder.parent.parent / stage / key for stage, key in parents.items()]
    return None


def _require_none_withdrawn(config: RunConfig, read: Mapping[str, Artifact | None]) -> None:
    """Raise ConfigError where what a run continues from has read a document that is withdrawn now:
    its index and shards would go on holding it.

    read: {who has read: what}; None where it is gone.
    """
    names = withdrawn_names(config.source.remove)
    for who, ingest in read.items() if names else ():
        if ingest is None:
            say(
                f"source.remove: what {who} has read is no longer in the store, so its documents"
                " are not looked through"
            )
        elif held := sorted(find_named(ingest, names)):
            shown = ", ".join(held[:3]) + (" …" if held[3:] else "")
            raise ConfigError(
                f"source.remove names what {who} has read: {shown}; give that input again with"
                " source.remove, and then what was continued from it"
            )


def _runs_before(records: Sequence[RunRecord], link: dict[str, str]) -> list[RunRecord]:
    """The last runs of the places before an input, in order. Raises ConfigError where another run
    is making the chain longer."""
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
    return [places[known] for known in takewhile(lambda known: known != inputs, places)]
