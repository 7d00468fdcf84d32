"""Compares finished runs: `textmill compare RUN RUN…`, or the points of one sweep by its id.

Text for a terminal of 80 columns, JSON with `--json`, a page with `--html=FILE`. Runs are shown as
letters; all are compared with the first.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from flows.commands.command import command
from flows.compose import compose
from flows.console import say, table
from flows.records import RunRecord, read_records
from flows.tracking.described import name_of_run
from flows.tracking.headline import OBJECTIVE, headline
from llm_core.config import ConfigError, local_path, nearest
from llm_core.printing import printable_line, shortened, show
from tasks.runtime.artifact import Artifact
from tasks.runtime.store import Store

COLUMNS = 80
LETTERS_BESIDE = 4
"""Runs side by side in a table; further ones follow in another."""
MAX_SETTINGS = 40

JSON = click.Option(["--json", "as_json"], is_flag=True, help="Answer in JSON.")
HTML = click.Option(["--html"], metavar="FILE", help="Write a page.")


@command("RUN RUN... | SWEEP [OVERRIDES]...", options=[JSON, HTML])
def compare(words: Sequence[str], as_json: bool, html: str | None) -> int:
    """Settings that differ, results with intervals, paired differences, curves over tokens."""
    from tasks.explain.compare import compare_runs

    names = [word for word in words if "=" not in word]
    store = compose([word for word in words if "=" in word]).open_store()
    records = chosen_records(store, names)
    if len(records) < 2:
        raise ConfigError(
            f"compare needs two runs, or a sweep of several (found {len(records)}); write textmill"
            " compare RUN RUN [store=DIR], with ids as the files in .runs of the store are named"
        )
    artifacts = [_artifacts(store, record) for record in records]
    found = compare_runs(artifacts)
    letters = [_letter(number) for number in range(len(records))]
    found["runs"] = {
        letter: {
            "run_id": record.run_id,
            "name": name_of_run(record.flow, record.run_id, record.overrides),
            "results": headline(made),
            "interval": _interval(made),
        }
        for letter, record, made in zip(letters, records, artifacts, strict=True)
    }
    if html:
        from tasks.report.runs_compared import write_comparison

        cells = {"settings": _settings(found), "results": _results(found)}
        cells["suites"], cells["refused"] = _suites(found)
        say(f"page {write_comparison(found, cells, Path(local_path(html, 'FILE')))}")
    show(json.dumps(found, ensure_ascii=False) if as_json else describe(found))
    return 0


def chosen_records(store: Store, names: Sequence[str]) -> list[RunRecord]:
    """The runs that are named by their ids, their beginnings, or, completed, the id of their sweep.
    Raises ConfigError for names that no run or several have."""
    records = read_records(store)
    found: list[RunRecord] = []
    for name in names:
        of_sweep = [
            record
            for record in reversed(records)
            if record.sweep == name and record.outcome == "completed"
        ]
        named = of_sweep or [record for record in records if record.run_id.startswith(name)]
        if not named:
            if not records:
                raise ConfigError(f"{store.root} has no run; name the store of {name} by store=DIR")
            known = [*(record.run_id for record in records), *(r.sweep for r in records if r.sweep)]
            raise ConfigError(
                f"{name} is not a run or sweep of {store.root}; {nearest(name, known[:50])}"
            )
        if len(named) > 1 and not of_sweep:
            raise ConfigError(
                f"{name} begins the ids of {len(named)} runs ({named[-1].run_id}, …); write more"
            )
        found += [record for record in named if record not in found]
    return found


def _artifacts(store: Store, record: RunRecord) -> dict[str, Artifact]:
    """What a run made or found and is still in the store."""
    made = {stage: store.find(stage, key) for stage, key in record.stages.items()}
    return {stage: artifact for stage, artifact in made.items() if artifact is not None}


def _letter(number: int) -> str:
    letters = string.ascii_uppercase
    more, last = divmod(number, len(letters))
    return (letters[more - 1] if more else "") + letters[last]


def _interval(made: Mapping[str, Artifact]) -> list[float | None] | None:
    if "evaluate" not in made:
        return None
    known = made["evaluate"].metrics[OBJECTIVE]
    return [known.get("low"), known.get("high")]


def describe(found: Mapping[str, Any]) -> str:
    """The comparison as text of at most 80 columns."""
    runs = found["runs"]
    pieces = [
        "\n".join(
            shortened(f"{letter:<3}{run['run_id']}  {run['name']}", COLUMNS)
            for letter, run in runs.items()
        )
    ]
    settings, letters = _settings(found), list(runs)
    for first in range(0, len(letters), LETTERS_BESIDE):
        shown = letters[first : first + LETTERS_BESIDE]
        longest = max((len(row[0]) for row in settings), default=0)
        name_chars = min(longest, COLUMNS // 2)
        value_chars = (COLUMNS - name_chars - 2 * len(shown)) // len(shown)
        rows = [
            [_ending(row[0], name_chars)]
            + [shortened(value, value_chars) for value in row[1 + first :][: len(shown)]]
            for row in settings[:MAX_SETTINGS]
        ]
        if rows:
            pieces.append(table(("setting", *shown), rows))
    if len(settings) > MAX_SETTINGS:
        pieces.append(f"{len(settings) - MAX_SETTINGS} more settings differ; --json has them all")
    if not settings:
        pieces.append("no setting differs")
    pieces.append(
        table(
            ("", OBJECTIVE, "95 %", f"to {letters[0]}", "95 % of that", "loss", "tok/s"),
            _quality(found),
        )
    )
    groups = [slice(n, n + LETTERS_BESIDE) for n in range(0, len(letters), LETTERS_BESIDE)]
    results = _results(found)
    pieces += [
        table(("result", *letters[group]), [[name, *cells[group]] for name, *cells in results])
        for group in groups
    ]
    pieces.append(_suite_table(found))
    pieces += [_curve_table(found, group) for group in groups]
    return "\n\n".join(filter(None, pieces))


def _settings(found: Mapping[str, Any]) -> list[list[str]]:
    return [
        [name, *("–" if value is None else printable_line(str(value)) for value in values)]
        for name, values in found["settings"].items()
    ]


def _results(found: Mapping[str, Any]) -> list[list[str]]:
    """A row for each number that some run has."""
    runs = list(found["runs"].values())
    rows = []
    for name in runs[0]["results"]:
        values = [run["results"][name] for run in runs]
        if any(value is not None for value in values):
            rows.append([name, *map(_shown, values)])
    return rows


def _quality(found: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for (letter, run), one in zip(found["runs"].items(), found["differences"], strict=True):
        numbers = run["results"]
        difference = ["", ""]
        if one:
            difference = [f"{one['value']:+.4f}{'*' if one['is_clear'] else ''}", _pair(one)]
        low, high = run["interval"] or (None, None)
        own = [letter, _shown(numbers[OBJECTIVE]), _pair({"low": low, "high": high})]
        others = [_shown(numbers[name]) for name in ("val_loss", "train_tokens_per_s")]
        rows.append([*own, *difference, *others])
    return rows


def _suite_table(found: Mapping[str, Any]) -> str:
    rows, refused = _suites(found)
    columns = ("", "suite", "metric", f"to {next(iter(found['runs']))}", "95 %", "p (Holm)")
    lines = [shortened(f"{row[0]:<3}{row[1]} {row[2]}", COLUMNS) for row in refused]
    return "\n".join([*([table(columns, rows)] if rows else []), *lines])


def _suites(found: Mapping[str, Any]) -> tuple[list[list[str]], list[list[str]]]:
    """Differences to the first run, those marked that hold for all suites together; and suites that
    are not compared, with the reason."""
    rows, refused = [], []
    for letter, suites in zip(found["runs"], found["suites"], strict=True):
        for name, one in (suites or {}).items():
            if "refused" in one:
                refused.append([letter, printable_line(name), one["refused"]])
                continue
            value = f"{one['value']:+.4f}{'*' if one['verdict'] == 'differs' else ''}"
            shown = [one["metric"], value, _pair(one), f"{one['p_value_of_all']:.3f}"]
            rows.append([letter, printable_line(name), *shown])
    return rows, refused


def _curve_table(found: Mapping[str, Any], chosen: slice) -> str:
    """Validation losses at a few of the token counts at which some of the runs were validated."""
    letters = list(found["runs"])[chosen]
    measured = [dict(map(tuple, curve["val_loss"])) for curve in found["curves"][chosen]]
    counts = sorted({tokens for curve in measured for tokens in curve})
    some = counts[:: -(-len(counts) // 8) or 1]
    rows = [
        [f"{tokens:,}", *(_shown(curve.get(tokens)) for curve in measured)]
        for tokens in dict.fromkeys([*some, *counts[-1:]])
    ]
    return table(("val_loss after tokens", *letters), rows) if rows else ""


def _pair(interval: Mapping[str, float | None]) -> str:
    low, high = interval["low"], interval["high"]
    return "" if low is None or high is None else f"{low:.4f}…{high:.4f}"


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _ending(text: str, max_chars: int) -> str:
    """The end of a long name, where names differ."""
    return text if len(text) <= max_chars else f"…{text[1 - max_chars :]}"
