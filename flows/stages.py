"""Lists the order of stages: the whole pipeline on one page. It needs no orchestrator."""

from __future__ import annotations

from flows.run import Run


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
