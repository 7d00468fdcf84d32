"""Scores suites in parts, ranges of items, and puts their rows and figures together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from llm_core.config import ConfigError
from tasks.corpus.documentset import read_table, write_table
from tasks.evaluation.config import EvaluateConfig, EvaluateStageConfig
from tasks.evaluation.generate import eos_ids
from tasks.evaluation.held_out import wanted_dtype
from tasks.evaluation.seen_items import Seen
from tasks.evaluation.suite_results import ROWS_FILE, describe, figures_of
from tasks.evaluation.suites import Suite, load_suite, suite_folders
from tasks.runtime.artifact import digest_file
from tasks.runtime.keys import digest
from tasks.runtime.parts import Part, RunParts

if TYPE_CHECKING:
    from llm_core.infer.ranks.team import Models
    from llm_core.model.transformer import Transformer
    from tasks.tokenizer.chat_template import ChatTemplate
    from tasks.tokenizer.encoder import Tokenizer

PART_ITEMS = 2000
"""Items of a part: some seconds of work on a GPU, beside the time to load a model."""
COMPARED_ITEMS = 100
"""Items of a suite that are scored in two types of numbers."""
Load = Callable[[Path, Path], "tuple[Transformer, Tokenizer]"]
"""(folder of a model, that of its tokenizer) → both, the model in the type that it is scored in."""
OWN = ""
"""The name of the model that a run has trained, in rows."""


@dataclass(frozen=True)
class Judged:
    """A model whose suites are scored."""

    name: str
    model: Path
    """Its Hugging Face folder."""
    tokenizer: Path
    window_tokens: int
    is_of_run: bool = True
    """Whether the training data of the run is its own."""

    def digests(self) -> dict[str, str]:
        """Of every file that decides a score."""
        return {
            str(file.relative_to(folder)): digest_file(file)
            for folder in (self.model, self.tokenizer)
            for file in sorted(folder.rglob("*"))
            if file.is_file() and file.name != "artifact.json"
        }


def score_suites(
    models: Sequence[Judged],
    seen: Mapping[str, Seen],
    config: EvaluateStageConfig,
    out_dir: Path,
    run_parts: RunParts,
    load: Load | None = None,
) -> dict[str, dict[str, Any]]:
    """{model: {suite: its figures}}; their rows are in `ROWS_FILE`. Empty without suites.

    seen: the items of each suite that are in the training data of the run. load: that of models in
    several processes, which only this one leads; None: whoever works on a part loads them whole.
    """
    suites = config.suites.load()
    if not suites:
        return {judged.name: {} for judged in models}
    folders = suite_folders(config.suites.folders)
    parts, owners = [], []
    for judged in models:
        read, window = judged.digests(), judged.window_tokens
        common = {"model": str(judged.model), "tokenizer": str(judged.tokenizer)}
        for suite in suites:
            for begin in range(0, num_scored(suite, config), PART_ITEMS):
                known = {"suite": suite.digest, "begin": begin, "window": window, **read}
                place = {"name": suite.name, "folder": str(folders[suite.name]), "begin": begin}
                payload = {**common, **place, "window_tokens": window}
                parts.append(Part(f"{judged.name}{suite.name}-{begin}", digest(known), payload))
                places = seen[suite.name].places if suite.name in seen else frozenset()
                owners.append((judged.name, begin, places if judged.is_of_run else frozenset()))
    if load is None:
        results = run_parts(score_part, parts, config, out_dir)
    else:
        results = run_parts.here()(partial(score_part, load=load), parts, config, out_dir)
    tables = []
    for result, (model, begin, places) in zip(results, owners, strict=True):
        table = read_table(result.path / ROWS_FILE)
        is_seen = [begin + n in places for n in range(table.num_rows)]
        table = table.append_column("model", pa.array([model] * table.num_rows))
        tables.append(table.append_column("is_in_training", pa.array(is_seen)))
    rows = pa.concat_tables(tables)
    write_table(rows, out_dir / ROWS_FILE)
    by_place: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows.to_pylist():
        by_place.setdefault((row["model"], row["suite"]), []).append(row)
    about = {suite.name: _about(suite, config, seen) for suite in suites}
    return {
        judged.name: {
            name: said | figures_of(by_place[judged.name, name], said)
            for name, said in about.items()
        }
        for judged in models
    }


def _about(suite: Suite, config: EvaluateStageConfig, seen: Mapping[str, Seen]) -> dict[str, Any]:
    shots = suite.file.shots if config.evaluate.shots is None else config.evaluate.shots
    found = describe(suite, shots, config.evaluate.bootstrap_samples)
    if suite.name in seen:
        found["searched_in_training"] = seen[suite.name].searched
    return found


def score_part(
    part: Part, directory: Path, config: EvaluateStageConfig, load: Load | None = None
) -> Mapping[str, Any]:
    """The rows of some items of one suite. load: as in `score_suites`."""
    from tasks.evaluation.suite_scores import score_items, write_rows

    given, scoring = part.payload, config.evaluate
    suite = load_suite(given["name"], Path(given["folder"]))
    load = load or whole_loader(scoring)
    model, tokenizer = load(Path(given["model"]), Path(given["tokenizer"]))
    end = min(given["begin"] + PART_ITEMS, num_scored(suite, config))
    items = suite.items[given["begin"] : end]
    template = chat_template(Path(given["tokenizer"]), tokenizer) if scoring.chat else None
    ends = eos_ids(Path(given["model"]), model, tokenizer)
    window = given["window_tokens"]
    rows = score_items(model, tokenizer, suite, items, window, scoring, ends, template)
    write_rows(rows, directory / ROWS_FILE)
    return {"items": len(rows)}


def first_answers(
    judged: Judged, model: Transformer, tokenizer: Tokenizer, config: EvaluateStageConfig
) -> list[int]:
    """The choices that a model takes in the first items of each suite of choices."""
    from tasks.evaluation.suite_scores import score_items

    scoring, found = config.evaluate, []
    template = chat_template(judged.tokenizer, tokenizer) if scoring.chat else None
    for suite in config.suites.load():
        if suite.file.kind == "choices":
            items = suite.items[: min(COMPARED_ITEMS, num_scored(suite, config))]
            about = items, judged.window_tokens, scoring, (), template
            found += score_items(model, tokenizer, suite, *about)
    logprobs = [[choice["logprob"] for choice in row["choices"]] for row in found]
    return [each.index(max(each)) for each in logprobs]


def chat_template(folder: Path, tokenizer: Tokenizer) -> ChatTemplate:
    """That of a tokenizer. Raises ConfigError where it has none."""
    from tasks.tokenizer.chat_template import load_chat_template
    from tasks.tokenizer.template_files import NoTemplate

    try:
        return load_chat_template(folder, tokenizer, None)
    except NoTemplate as error:
        raise ConfigError(
            f"evaluate.chat (true) needs a chat template, and {folder} has none; set"
            " tokenizer.chat_template, as tokenizer=chat does, or evaluate.chat=false"
        ) from error


def check_templates(models: Sequence[Judged]) -> None:
    """Raise ConfigError unless all of them can be asked in a chat."""
    from tasks.tokenizer.encoder import load_tokenizer

    for folder in {judged.tokenizer for judged in models}:
        chat_template(folder, load_tokenizer(folder))


def num_scored(suite: Suite, config: EvaluateStageConfig) -> int:
    return min(len(suite.items), config.suites.max_items or len(suite.items))


def loader(models: Models, config: EvaluateConfig) -> Load:
    """Loads models where `models` are open, one at a time."""
    import torch

    from tasks.tokenizer.encoder import load_tokenizer

    dtype = getattr(torch, wanted_dtype(config, models.device.type))

    @lru_cache(1)
    def load(model: Path, tokenizer: Path) -> tuple[Transformer, Tokenizer]:
        return models.load(model, dtype), load_tokenizer(tokenizer)

    return load


@lru_cache(1)
def whole_loader(config: EvaluateConfig) -> Load:
    """Loads whole models into this process; every part of a suite takes the same one."""
    from llm_core.device import choose_device
    from llm_core.infer.ranks.team import OneProcess

    return loader(OneProcess(choose_device(config.device)), config)
