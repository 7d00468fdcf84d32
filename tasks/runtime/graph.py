"""The graph of stages: what takes what. Everything else about a stage lives in its own module."""

from __future__ import annotations

from tasks.runtime.stage import Stage

_REPORTED = (
    Stage(
        "ingest",
        "tasks.ingest.stage",
        "ingest",
        libraries=(
            "pyarrow",
            "fastwarc",
            "resiliparse",
            "pypdfium2",
            "mwparserfromhell",
            "pylatexenc",
        ),
        entry_points=("tasks.ingest.pagetext",),
        accept="require_budget",
    ),
    Stage(
        "language", "tasks.language.stage", "identify_languages", ("ingest",), ("fasttext", "numba")
    ),
    Stage(
        "scores",
        "tasks.scores.stage",
        "score_documents",
        ("ingest", "language"),
        ("numba", "fasttext", "duckdb", "safetensors"),
    ),
    Stage(
        "quality",
        "tasks.quality.stage",
        "filter_quality",
        ("ingest", "language", "scores"),
        ("numba", "publicsuffixlist"),
    ),
    Stage(
        "dedup", "tasks.dedup.stage", "deduplicate", ("ingest", "quality"), ("numba", "datasketch")
    ),
    Stage(
        "pii",
        "tasks.pii.stage",
        "find_pii",
        ("ingest",),
        ("numba", "phonenumbers", "python-stdnum"),
    ),
    Stage(
        "contamination",
        "tasks.contamination.stage",
        "find_contamination",
        ("ingest",),
        ("numba", "phonenumbers"),
    ),
    Stage(
        "documents",
        "tasks.documents.stage",
        "write_documents",
        ("ingest", "language", "quality", "dedup", "pii", "contamination"),
        ("pyarrow",),
    ),
    Stage(
        "analysis",
        "tasks.analysis.stage",
        "analyse",
        ("ingest", "language", "quality", "dedup", "documents"),
        ("numba", "publicsuffixlist"),
    ),
    Stage(
        "tokenizer",
        "tasks.tokenizer.stage",
        "train_tokenizer",
        ("documents",),
        ("tokenizers", "sentencepiece", "numba"),
    ),
    Stage(
        "shards",
        "tasks.shards.stage",
        "write_shards",
        ("documents", "tokenizer"),
        ("tokenizers", "sentencepiece", "pyarrow", "numba"),
    ),
    Stage(
        "train",
        "tasks.training.stage",
        "train_model",
        ("tokenizer", "shards"),
        ("torch",),
        entry_points=("llm_core.training.launch", "llm_core.training.train"),
        shows_progress=True,
    ),
    Stage(
        "evaluate",
        "tasks.evaluation.stage",
        "evaluate_model",
        ("documents", "tokenizer", "shards", "train"),
        ("torch", "sacrebleu", "rouge-score"),
    ),
    Stage("bench", "tasks.bench.stage", "benchmark_model", ("train",), ("torch",), measured=True),
)
_REPORT = Stage(
    "report",
    "tasks.report.stage",
    "write_report",
    tuple(stage.name for stage in _REPORTED),
    libraries=("jinja2",),
    data_files=("tasks/report/templates", "tasks/report/style.css"),
    reads_records=True,
)
STAGES = {stage.name: stage for stage in (*_REPORTED, _REPORT)}


def ancestors(target: str) -> list[str]:
    """`target` and everything it needs, in an order that can be run."""
    order: list[str] = []

    def visit(name: str) -> None:
        if name not in order:
            for parent in STAGES[name].parents:
                visit(parent)
            order.append(name)

    visit(target)
    return order


def descendants(name: str) -> set[str]:
    """`name` and every stage that uses it, directly or not."""
    return {other for other in STAGES if name in ancestors(other)}
