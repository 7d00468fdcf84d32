"""Fits a scaling law to the runs of a sweep: `textmill fit-scaling SWEEP`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flows.commands.command import command, take_words
from flows.commands.compare import chosen_records
from flows.commands.planning.budget import amount
from flows.compose import compose
from flows.console import say, table
from flows.records import RunRecord
from llm_core.config import ConfigError, local_path, to_plain
from llm_core.printing import show
from tasks.runtime.store import Store

if TYPE_CHECKING:
    from llm_core.planner.scaling_fit import Optimum, Point, ScalingFit

FLOPS = "flops"
FURTHER = (1, 10, 100)
"""Budgets, in times the work of the largest run."""
JSON = click.Option(["--json", "as_json"], is_flag=True, help="Answer in JSON.")
HTML = click.Option(["--html"], metavar="FILE", help="Write a page with curves of equal work.")
RUN_COLUMNS = ("run", "weights", "tokens", "FLOP", "loss", "fitted")
OPTIMUM_COLUMNS = ("FLOP", "weights", "95 %", "tokens", "a weight", "loss", "95 % of loss")


@command("SWEEP | RUN RUN... [flops=N,N] [OVERRIDES]...", options=[JSON, HTML])
def fit_scaling(words: Sequence[str], as_json: bool, html: str | None) -> int:
    """How loss falls with weights and tokens over the runs of a sweep, with intervals, and the best
    model of a budget of operations."""
    given, rest = take_words(words, FLOPS)
    names, asked = [word for word in rest if "=" not in word], _numbers(given.get(FLOPS, ""))
    from llm_core.planner import scaling_fit
    from tasks.report.scaling_page import finding, law_text, write_scaling

    store = compose([word for word in rest if "=" in word]).open_store()
    records = chosen_records(store, names)
    points = points_of(store, records)
    fit = scaling_fit.fit_scaling(points)
    most = max(point.flops for point in points)
    optima = [fit.optimum(flops) for flops in asked or [most * factor for factor in FURTHER]]
    runs = _run_rows(records, fit)
    best = [_optimum_row(each) for each in optima]
    if html:
        say(f"page {write_scaling(fit, runs, best, Path(local_path(html, 'FILE')))}")
    if as_json:
        found = {"law": to_plain(fit.law), "exponent": to_plain(fit.exponent)}
        found |= {"num_draws": len(fit.draws), "largest_error": fit.largest_error}
        found |= {"points": to_plain(fit.points), "optima": to_plain(optima)}
        show(json.dumps(found))
        return 0
    tables = (table(RUN_COLUMNS, runs), table(OPTIMUM_COLUMNS, best))
    show("\n\n".join([tables[0], f"{law_text(fit)}\n{finding(fit)}", tables[1]]))
    return 0


def points_of(store: Store, records: Sequence[RunRecord]) -> list[Point]:
    """Raises ConfigError for runs without a model, and for those that read different tokens."""
    from llm_core.planner.scaling_fit import Point

    points = []
    for record in records:
        made = {
            stage: store.find(stage, record.stages[stage])
            for stage in ("train", "shards")
            if stage in record.stages
        }
        train, shards = made.get("train"), made.get("shards")
        if train is None or shards is None:
            raise ConfigError(
                f"run {record.run_id} has no model in {store.root}; name runs of textmill train"
            )
        metrics, tokens = train.metrics, train.counters["tokens"]
        points.append(Point(metrics["num_parameters"], tokens, metrics["final_val_loss"]))
        epochs = tokens / shards.metrics["splits"]["train"]["tokens"]
        if epochs > 1:
            say(f"run {record.run_id} read its {epochs:.1f} epochs as if all tokens were new")
    if len({record.stages["shards"] for record in records}) > 1:
        raise ConfigError(
            "the runs read different shards, so their losses do not compare; vary the model and"
            " train.num_steps only"
        )
    return points


def _numbers(listed: str) -> list[float]:
    found = []
    for text in listed.split(",") if listed else ():
        try:
            found.append(float(text))
        except ValueError as error:
            raise ConfigError(f"flops ({text}) is not a number; write flops=1e18") from error
        if not 0 < found[-1] < float("inf"):
            raise ConfigError(f"flops ({text}) must be above 0; write flops=1e18")
    return found


def _run_rows(records: Sequence[RunRecord], fit: ScalingFit) -> list[tuple[str, ...]]:
    rows = [
        (
            point.num_weights,
            point.num_tokens,
            record.run_id,
            f"{point.flops:.2e}",
            f"{point.loss:.4f}",
            f"{fit.law.loss(point.num_weights, point.num_tokens):.4f}",
        )
        for record, point in zip(records, fit.points, strict=True)
    ]
    return [
        (run_id, f"{weights:,.0f}", f"{tokens:,.0f}", *rest)
        for weights, tokens, run_id, *rest in sorted(rows)
    ]


def _optimum_row(best: Optimum) -> tuple[str, ...]:
    weights, tokens = best.num_weights, best.num_tokens
    return (
        f"{best.flops:.2e}",
        amount(weights.value),
        f"{amount(weights.low)}…{amount(weights.high)}",
        amount(tokens.value),
        f"{tokens.value / weights.value:,.1f}",
        f"{best.loss.value:.3f}",
        f"{best.loss.low:.3f}…{best.loss.high:.3f}",
    )
