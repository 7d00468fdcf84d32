"""Lists the order of stages: the whole pipeline on one page, and the Prefect flows that run it or a
part of it.

A flow is given overrides and nothing else. Its plan decides which of the stages below run, which
are in the store already, and which nothing asks for.
"""

from __future__ import annotations

from prefect import flow
from prefect.states import State

from flows.run import Run
from flows.under_prefect import run_flow


@flow(name="pipeline")
def pipeline(overrides: list[str] = []) -> State:  # noqa: B006 - Prefect shows the default in its forms
    """From raw text to a trained, evaluated, measured model and its report."""
    return run_flow("pipeline", "report", overrides, stages)


def stages(run: Run) -> None:
    """Every stage, in order, with what it takes. The nouns say what state the data is in."""
    raw = run.stage("ingest")
    labelled = run.stage("language", raw)
    scored = run.stage("scores", raw, labelled)
    judged = run.stage("quality", raw, labelled, scored)
    unique = run.stage("dedup", raw, judged)
    private = run.stage("pii", raw)
    clean = run.stage("contamination", raw)
    documents = run.stage("documents", raw, labelled, judged, unique, private, clean)
    analysis = run.stage("analysis", raw, labelled, judged, unique, documents)

    tokenizer = run.stage("tokenizer", documents)
    shards = run.stage("shards", documents, tokenizer)
    model = run.stage("train", tokenizer, shards)

    quality = run.stage("evaluate", documents, tokenizer, shards, model)
    speed = run.stage("bench", model)
    judges = (raw, labelled, scored, judged, unique, private, clean)
    run.stage("report", *judges, documents, analysis, tokenizer, shards, model, quality, speed)
