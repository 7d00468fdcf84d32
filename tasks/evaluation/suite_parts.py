"""Scores suites in parts, ranges of items, and puts their rows and figures together."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tasks.corpus.documentset import read_table, write_table
from tasks.evaluation.config import EvaluateStageConfig
from tasks.evaluation.suite_results import (
    ROWS_FILE,
    describe,
    figures,
    for_tracking,
    over_suites,
)
from tasks.evaluation.suites import Suite, load_suite, suite_folders
from tasks.runtime.artifact import Artifact, digest_file
from tasks.runtime.keys import digest
from tasks.runtime.parts import Part, RunParts

if TYPE_CHECKING:
    from llm_core.model.transformer import Transformer
    from tasks.tokenizer.encoder import Tokenizer

PART_ITEMS = 2000
"""Items of a part: some seconds of work on a GPU, beside the time to load a model."""


def evaluate_suites(
    train: Artifact,
    tokenizer: Artifact,
    window_tokens: int,
    config: EvaluateStageConfig,
    out_dir: Path,
    run_parts: RunParts,
) -> dict[str, Any]:
    """Figures of all suites; their rows are in `ROWS_FILE`. Empty without suites."""
    suites = config.suites.load()
    if not suites:
        return {}
    folders = suite_folders(config.suites.folders)
    model_folder = train.path / "model"
    read = {
        str(file.relative_to(folder)): digest_file(file)
        for folder in (model_folder, tokenizer.path)
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != "artifact.json"
    }
    common = {"model": str(model_folder), "tokenizer": str(tokenizer.path)}
    parts = []
    for suite in suites:
        for begin in range(0, num_scored(suite, config), PART_ITEMS):
            known = {"suite": suite.digest, "begin": begin, "window": window_tokens, **read}
            place = {"name": suite.name, "folder": str(folders[suite.name]), "begin": begin}
            payload = {**common, **place, "window_tokens": window_tokens}
            parts.append(Part(f"{suite.name}-{begin}", digest(known), payload))
    results = run_parts(score_part, parts, config, out_dir)
    table = pa.concat_tables([read_table(result.path / ROWS_FILE) for result in results])
    write_table(table, out_dir / ROWS_FILE)
    rows = table.to_pylist()
    found = {}
    for suite in suites:
        shots = suite.file.shots if config.evaluate.shots is None else config.evaluate.shots
        about = describe(suite, shots, config.evaluate.bootstrap_samples)
        mine = [row for row in rows if row["suite"] == suite.name]
        names = ("kind", "asked", "headline", "language", "bootstrap_samples")
        found[suite.name] = about | figures(mine, *(about[name] for name in names))
        if config.evaluate.backend == "lm_eval" and suite.file.kind == "choices":
            found[suite.name]["lm_eval"] = _harness(
                common, suite, mine, shots, window_tokens, config
            )
    return {"suites": found, "over_suites": over_suites(found), "eval": for_tracking(found)}


def score_part(part: Part, directory: Path, config: EvaluateStageConfig) -> Mapping[str, Any]:
    """The rows of some items of one suite."""
    from tasks.evaluation.suite_scores import score_items, write_rows

    given, scoring = part.payload, config.evaluate
    suite = load_suite(given["name"], Path(given["folder"]))
    model, tokenizer = _loaded(given["model"], given["tokenizer"], scoring.device, scoring.dtype)
    end = min(given["begin"] + PART_ITEMS, num_scored(suite, config))
    items = suite.items[given["begin"] : end]
    rows = score_items(model, tokenizer, suite, items, given["window_tokens"], scoring)
    write_rows(rows, directory / ROWS_FILE)
    return {"items": len(rows)}


def _harness(
    common: Mapping[str, str],
    suite: Suite,
    rows: list[dict[str, Any]],
    shots: int,
    window_tokens: int,
    config: EvaluateStageConfig,
) -> dict[str, Any]:
    """What the evaluation harness says about the same items."""
    from tasks.evaluation.harness import compare_suite, harness_model, own_score

    scoring = config.evaluate
    model, tokenizer = _loaded(common["model"], common["tokenizer"], scoring.device, scoring.dtype)
    score = own_score(model, scoring.batch_tokens)
    lm = harness_model(model, tokenizer, window_tokens, score)
    return compare_suite(lm, suite, rows, shots, scoring.seed)


def num_scored(suite: Suite, config: EvaluateStageConfig) -> int:
    return min(len(suite.items), config.suites.max_items or len(suite.items))


@functools.lru_cache(1)
def _loaded(model: str, tokenizer: str, device: str, dtype: str) -> tuple[Transformer, Tokenizer]:
    """One model per process, in the type that it is scored in."""
    from llm_core.device import choose_device
    from llm_core.huggingface.export import load_model
    from tasks.tokenizer.encoder import load_tokenizer

    place = choose_device(device)
    loaded = load_model(Path(model), device=place)
    if dtype == "bfloat16" or (dtype == "auto" and place.type == "cuda"):
        loaded.bfloat16()
    return loaded, load_tokenizer(Path(tokenizer))
