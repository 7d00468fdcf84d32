"""Questions to a finished run, answered from its artifacts: `textmill explain ID`, `textmill hits`,
`textmill replay quality.…`.

The run is the newest one whose data is in the store, or the one that `run=ID` names. A replay lays
the given overrides over those of that run. Answers are text for people, or JSON with `--json`: one
object, of hits one a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import click

from flows.commands.answers import (
    describe_document,
    describe_file,
    describe_hit,
    describe_record,
    describe_replay,
    page,
)
from flows.commands.command import command
from flows.compose import RunConfig, compose
from flows.conf_files import PLACES, choices
from flows.records import RunRecord, read_records
from llm_core.config import ConfigError
from llm_core.printing import show
from tasks.ingest.withdrawn import WITHDRAWN
from tasks.report.quantities import plural
from tasks.runtime.artifact import Artifact

JSON = click.Option(["--json", "as_json"], is_flag=True, help="Answer in JSON.")
RUN_ID = re.compile(r"run=(\d{8}-\d{6}-\w+)")


@dataclass(frozen=True)
class PastRun:
    """A run on record, and those of its artifacts that are in the store."""

    record: RunRecord
    artifacts: Mapping[str, Artifact]


@dataclass(frozen=True)
class Question:
    """What was asked: the words, the overrides, of which run."""

    words: Sequence[str]
    overrides: Sequence[str]
    run_id: str | None


@command("ID [OVERRIDES]...", options=[JSON])
def explain(words: Sequence[str], as_json: bool) -> int:
    """What every stage found in one document, and where it is now."""
    from tasks.explain.explain import (
        NEEDED,
        explain_document,
        find_documents,
        find_file,
        find_records,
    )

    question = _parse(words, ids=True)
    if len(question.words) != 1:
        raise ConfigError(
            "explain needs one id, of textmill or of its source, a URL or a file of the source;"
            " write textmill explain ID [run=RUN] [store=DIR], and an id that begins with - after"
            " --"
        )
    run = _past_run(question, NEEDED, ("scores", "contamination"))
    ingest, asked = run.artifacts["ingest"], question.words[0]
    places, records = find_documents(ingest, asked), find_records(ingest, asked)
    if not places and not records:
        if file := find_file(ingest, asked):
            answer = {"run": run.record.run_id, "file": file}
            show(json.dumps(answer, ensure_ascii=False) if as_json else describe_file(answer))
            return 0
        earlier = _last_run_with(asked, question)
        way_out = (
            f"run {earlier} is the last that had it: textmill explain {asked} run={earlier}"
            if earlier
            else "name its id, its source_id, its url or its file, or another run with run=ID"
        )
        raise ConfigError(
            f"{asked} is not found in run {run.record.run_id}, neither as a document nor as a"
            f" dropped record; {way_out}"
        )
    others = len(places) + len(records) - 1
    found: dict[str, Any] = {"run": run.record.run_id, "other_matches": others}
    found |= explain_document(run.artifacts, places[0]) if places else {"record": records[0]}
    if not places and records[0]["reason"] == WITHDRAWN:
        found["withdrawn"] = _withdrawn_by(asked, question)
    if as_json:
        show(json.dumps(found, ensure_ascii=False, default=bytes.hex))
    else:
        show(describe_document(found) if places else describe_record(found))
    return 0


@command("[OVERRIDES]...", options=[JSON])
def hits(words: Sequence[str], as_json: bool) -> int:
    """Every evaluation item that occurs in a document, with the text of both."""
    from tasks.contamination.hits import list_hits

    question = _parse(words)
    if question.words:
        raise ConfigError(
            f"hits takes no {question.words[0]}; write textmill hits [run=RUN] [store=DIR] [--json]"
        )
    run = _past_run(question, ("ingest", "contamination"))
    num_hits = 0
    for hit in list_hits(run.artifacts["ingest"], run.artifacts["contamination"]):
        num_hits += 1
        show(
            json.dumps(hit, ensure_ascii=False) if as_json else page(describe_hit(hit, None)) + "\n"
        )
    if not as_json:
        counted = plural(num_hits, "hit")
        show(f"{counted} of evaluation items in documents of run {run.record.run_id}")
    return 0


@command("[OVERRIDES]...", options=[JSON])
def replay(words: Sequence[str], as_json: bool) -> int:
    """What other quality rules would have kept of a run's documents."""
    from tasks.explain.replay import replay_quality

    question = _parse(words)
    if question.words or not any(o.lstrip("+~").startswith("quality") for o in question.overrides):
        raise ConfigError(
            "replay needs settings of quality to try; write textmill replay"
            " quality.thresholds.TOO_FEW_WORDS=30 [run=RUN]"
        )
    stages = ("ingest", "language", "scores", "quality")
    run = _past_run(question, stages)
    given = {override.split("=")[0].lstrip("+~") for override in question.overrides}
    kept = [o for o in run.record.overrides if o.split("=")[0].lstrip("+~") not in given]
    ingest, language, scores, quality = (run.artifacts[name] for name in stages)
    config = compose([*kept, *question.overrides]).quality
    answer = replay_quality(ingest, language, scores, quality, config)
    found = {"run": run.record.run_id} | asdict(answer)
    show(json.dumps(found, ensure_ascii=False) if as_json else describe_replay(found))
    return 0


def _ingests(question: Question) -> Iterator[tuple[RunRecord, Artifact]]:
    """Runs with an ingest artifact that no newer run has, newest first."""
    store = compose(_places(question)).open_store()
    seen = set()
    for record in read_records(store):
        key = record.stages.get("ingest")
        if key and key not in seen and (artifact := store.find("ingest", key)):
            seen.add(key)
            yield record, artifact


def _last_run_with(asked: str, question: Question) -> str | None:
    """The newest run that read a document or record of this name, if any is in the store."""
    from tasks.explain.explain import find_documents, find_records

    for record, ingest in _ingests(question) if question.run_id is None else ():
        if find_documents(ingest, asked) or find_records(ingest, asked):
            return record.run_id
    return None


def _withdrawn_by(asked: str, question: Question) -> dict[str, Any]:
    """The first run of which the store knows that it left a document out as withdrawn.

    or_earlier: no run before it is in the store that had the document.
    """
    from tasks.explain.explain import find_documents, find_records

    first: RunRecord | None = None
    for record, ingest in _ingests(question):
        if any(r["reason"] == WITHDRAWN for r in find_records(ingest, asked)):
            first = record
        elif first and find_documents(ingest, asked):
            return {"run": first.run_id, "at": first.started_at, "or_earlier": False}
    assert first is not None, "the run that was asked has it"
    return {"run": first.run_id, "at": first.started_at, "or_earlier": True}


def _places(question: Question) -> list[str]:
    return [o for o in question.overrides if o.partition("=")[0] in PLACES]


def _parse(arguments: Sequence[str], ids: bool = False) -> Question:
    """ids: one of the words is an id, which may have any sign in it: `https://x.org/?page=2`."""
    run_id = None
    words: list[str] = []
    overrides: list[str] = []
    settings = {"run", *(field.name for field in fields(RunConfig))}
    for i, argument in enumerate(arguments):
        if argument == "--":
            words += arguments[i + 1 :]
            break
        if match := RUN_ID.fullmatch(argument):
            run_id = match[1]
        elif argument.startswith("run=") and argument[4:] not in choices("run"):
            raise ConfigError(
                f"{argument} is not a run; write it as run=20261128-160000-abcdef, as the files in"
                " .runs of the store are named"
            )
        elif ids and re.split("[.=]", argument.lstrip("+~"))[0] not in settings:
            words.append(argument)
        else:
            (overrides if "=" in argument or argument.startswith("~") else words).append(argument)
    return Question(words, overrides, run_id)


def _past_run(question: Question, needed: Sequence[str], also: Sequence[str] = ()) -> PastRun:
    """The run asked for, with the stages that are needed, and `also` some where it has them.

    Raises ConfigError where there is none, or its data is gone or damaged.
    """
    store = compose(_places(question)).open_store()
    records = [r for r in read_records(store) if question.run_id in (None, r.run_id)]
    for record in records:
        artifacts = {}
        for stage in (stage for stage in (*needed, *also) if stage in record.stages):
            key = record.stages[stage]
            if found := store.find(stage, key):
                artifacts[stage] = found
            elif (state := store.damage(stage, key)) != "missing":
                raise ConfigError(
                    f"{stage} {key} of run {record.run_id} is {state}; run it again, which rebuilds"
                    " that, or name another run with run=ID"
                )
        if set(needed) <= set(artifacts):
            return PastRun(record, artifacts)
    if not records:
        named = f"run {question.run_id}" if question.run_id else "a run"
        raise ConfigError(
            f"{store.root} has no record of {named}; run `textmill run` first, or name its store"
            " with store=DIR"
        )
    newest = records[0]
    if unmade := [stage for stage in needed if stage not in newest.stages]:
        raise ConfigError(
            f"run {newest.run_id} has no {', '.join(unmade)}, which this command needs; run"
            " `textmill refresh`, which makes all data stages, or name another run with run=ID"
        )
    raise ConfigError(
        f"some of what run {newest.run_id} made ({', '.join(needed)}) is no longer in"
        f" {store.root}; run it again, or name another run with run=ID"
    )
