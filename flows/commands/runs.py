"""Flows on the command line: one run, a sweep of runs, and what a run would do.

A run is composed, checked and planned before anything slow is imported. Its last line on stdout is
one JSON object. A sweep has the highest exit code of its runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import click

from flows.commands import settings
from flows.commands.command import Command, command
from flows.commands.planning.stages import describe_plan, plain_plan
from flows.commands.table import FLOWS
from flows.compose import RunConfig, compose
from flows.console import say, table
from flows.live.announced import LiveRun, announced
from flows.refresh.series import has_nothing_new
from flows.run import Run, decide, describe, ending, open_run, summarize
from flows.services.dead_runs import Server, settle
from flows.services.local import ensure_server, server_name, use_environment
from flows.services.prefect_api import PrefectApi
from flows.stops import sigterm_raises
from flows.sweeps.launch import split_hydra
from flows.sweeps.sweep import read_sweep, run_sweep
from flows.tracking.described import PointOfSweep
from flows.tracking.runs import TrackingConfig
from llm_core.config import ConfigError, nearest
from llm_core.printing import show
from tasks.report.quantities import plural
from tasks.runtime.estimates import estimate_stages
from tasks.runtime.graph import ancestors
from tasks.runtime.keys import digest

JSON = click.Option(["--json", "as_json"], is_flag=True, help="Answer in JSON.")


def flow_command(name: str) -> Command:
    """The command that runs a flow."""
    options = [settings.MULTIRUN, *settings.PAGES]
    return command(options=options, name=name)(partial(_flow, name))


def _flow(name: str, words: Sequence[str], multirun: bool, **pages: Any) -> int:
    if shown := [name for name, value in pages.items() if value]:
        if multirun:
            option = f"--{shown[0].replace('_', '-')}"
            raise ConfigError(f"-m runs a sweep and {option} shows something; give one of them")
        return settings.show_page(pages, words)
    if multirun:
        return _sweep(name, words)
    run_once(name, words)
    return 0


def _sweep(name: str, words: Sequence[str]) -> int:
    sweep = read_sweep(name, *split_hydra(words))
    result = run_sweep(sweep)
    if name == "tokenizer":
        made = [
            compose([*point.overrides, *sweep.hydra_overrides])
            for point, code in zip(result.points, result.codes, strict=True)
            if code == 0
        ]
        _compare_tokenizers(made)
    return result.exit_code


def _compare_tokenizers(configs: Sequence[RunConfig]) -> None:
    """A page over the tokenizers of a sweep, and which of them suits the model."""
    from tasks.report.tokenizer_sweep import candidates, recommend, write_sweep

    made = []
    for config in configs:
        store, plan = decide(config, "tokenizer")
        if (artifact := store.find("tokenizer", plan["tokenizer"].node.key)) is not None:
            made.append(artifact)
    if lost := len(configs) - len(made):
        say(
            f"tokenizers: {lost} of {len(configs)} are not on the page: code or input changed while"
            " they were made; run it again"
        )
    if not made:
        return
    model, seq_len = configs[0].model, configs[0].train.seq_len
    found = candidates(made, model, seq_len)
    best = recommend(found)
    file = configs[0].state / "sweeps" / f"tokenizers-{digest([c.key for c in found])}.html"
    page = write_sweep(found, model, seq_len, file)
    say(f"tokenizers: {best.name} takes the least compute per byte, or nearly; page {page}")
    recommended = {"name": best.name, "key": best.key, "vocab_size": best.vocab_size}
    show(json.dumps({"recommended": recommended, "page": str(page)}))


def run_once(name: str, overrides: Sequence[str]) -> dict[str, Any]:
    """One run of a flow, under Prefect or in this process alone; what its last line says."""
    config = compose(overrides)
    config.cluster.require_shared(config.store, "store")
    if config.sweep.params and PointOfSweep.of_environment() is None:
        say(f"one run without a sweep over {', '.join(config.sweep.params)}; add -m to sweep")
    # A plan that cannot be is refused before anything slow is done for it.
    store, decided = decide(config, FLOWS[name].target)
    config.require_fit(decided)
    use_environment(config.state)
    all_cached = not any(step.runs for step in decided.steps)
    in_prefect = _record_in_prefect if all_cached else _run_under_prefect
    how = _run_here if config.orchestrator == "none" else in_prefect
    if config.cluster.submits == "flow" and not all_cached:
        how = _run_in_job
    if name == "refresh" and has_nothing_new(config, store, decided):
        # Nothing happens that Prefect or MLflow could show, and each takes seconds to load.
        config, how = replace(config, tracking=TrackingConfig(enabled=False)), _run_here
    with announced(FLOWS[name].flow, overrides, config) as live:
        summary, description = how(name, overrides, config, live)
    show(description)
    show(json.dumps(summary), flush=True)
    return summary


def _run_in_job(
    name: str, overrides: Sequence[str], config: RunConfig, live: LiveRun
) -> tuple[dict[str, Any], str]:
    from flows.cluster_job import run_in_job

    return run_in_job(name, overrides, config)


def _run_here(
    name: str,
    overrides: Sequence[str],
    config: RunConfig,
    live: LiveRun,
    on_end: Callable[[Run], None] = lambda run: None,
) -> tuple[dict[str, Any], str]:
    from flows.stages import stages
    from tasks.runtime.execute import make_artifact

    for line in settle(config.state, None):
        say(line)
    entry = FLOWS[name]
    made = open_run(entry.flow, entry.target, config, overrides, make_artifact, live=live)
    with sigterm_raises(), made as run:
        stages(run)
        on_end(run)
    return summarize(run), describe(run)


def _record_in_prefect(
    name: str, overrides: Sequence[str], config: RunConfig, live: LiveRun
) -> tuple[dict[str, Any], str]:
    """A run that finds every stage in the store: Prefect is told of it, and not loaded."""
    from flows.live.cached_run import recorded

    api = _server(config)
    with recorded(api, server_name(config.state, api.url), live) as page:
        summary, description = _run_here(name, overrides, config, live, page.show)
        page.finish(ending(summary), description)
    return summary, description


def _server(config: RunConfig) -> PrefectApi:
    """The Prefect server in use, after it was told of dead runs."""
    ensure_server(config.state, say)
    api = PrefectApi.configured()
    assert api is not None, "ensure_server puts its address into the environment"
    for line in settle(config.state, Server(api, server_name(config.state, api.url))):
        say(line)
    return api


def _run_under_prefect(
    name: str, overrides: Sequence[str], config: RunConfig, live: LiveRun
) -> tuple[dict[str, Any], str]:
    url = _server(config).url
    # Prefect's own lines go to its UI; here they would bury ours. Before Prefect is imported.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    from flows import pipeline
    from flows.under_prefect import run_in_foreground

    return run_in_foreground(getattr(pipeline, FLOWS[name].flow), overrides, url, live)


def _plan_training(words: Sequence[str], as_json: bool) -> int:
    from flows.commands.planning.training import planned

    text, plain = planned(words)
    if not as_json:
        show(text)
    show(json.dumps(plain))
    return 0


@command(
    "[FLOW] [OVERRIDES]... | hardware=NAME [folder=DIR] [inference_tokens=N] [OVERRIDES]...",
    options=[JSON],
)
def plan(words: Sequence[str], as_json: bool) -> int:
    """What would run, why, and for how long; with hardware=NAME, what a training needs on it, or
    with folder=DIR what inference with that model needs."""
    if any(word.startswith(("hardware=", "hardware.file=", "folder=")) for word in words):
        return _plan_training(words, as_json)
    name = "run"
    if words and "=" not in words[0] and not words[0].startswith("~"):
        name, *words = words
    if name not in FLOWS:
        raise ConfigError(f"{name} is not a flow; {nearest(name, list(FLOWS))}")
    config = compose(words)
    if unfetched := config.source.unfetched():
        # A key needs the contents of all inputs, so none is known before they are here.
        known = [file.size_bytes for file in unfetched if file.size_bytes is not None]
        size = f"{sum(known) / 1e6:,.1f} MB" if len(known) == len(unfetched) else "size not told"
        rows = [
            (stage, "?", "not read" if stage == "ingest" else "follows ingest")
            for stage in ancestors(FLOWS[name].target)
        ]
        if as_json:
            stages = [dict(zip(("stage", "key", "why"), row, strict=True)) for row in rows]
            show(json.dumps({"flow": name, "stages": stages, "not_read": len(unfetched)}))
            return 0
        show(table(("stage", "key", "why"), rows))
        show(
            f"\nnot read: {plural(len(unfetched), 'file')}, {size}, first {unfetched[0].address};"
            f" a run fetches them to {config.source.cache}"
        )
        return 0
    store, decided = decide(config, FLOWS[name].target)
    config.require_fit(decided)
    estimates = estimate_stages(store, decided)
    if as_json:
        show(json.dumps(plain_plan(name, store, decided, estimates)))
    else:
        show(describe_plan(store, decided, estimates))
    return 0
