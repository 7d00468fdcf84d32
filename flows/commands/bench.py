"""Measures the speed of any model folder, and compares two measurements: `textmill bench
bench.folder=DIR` and `textmill bench compare A B`. Without either, `bench` is a flow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from flows.commands.command import command, take_words
from flows.compose import compose
from flows.console import say, table
from flows.records import read_records
from llm_core.config import ConfigError, local_path
from llm_core.json_files import UnreadableJson, read_json
from llm_core.printing import show
from tasks.runtime.artifact import write_json
from tasks.runtime.store import Store

FOLDER = "bench.folder"
FILE = "bench.json"
COMPARE = "compare"

_JSON = click.Option(["--json", "as_json"], is_flag=True, help="Answer in JSON.")
_OUT = click.Option(["--out"], metavar="FILE", help="Write all that was measured, as bench.json.")


@command("compare A B [OVERRIDES]... | bench.folder=DIR [OVERRIDES]...", options=[_JSON, _OUT])
def bench(words: Sequence[str], as_json: bool, out: str | None) -> int:
    """Speed of the Hugging Face model in bench.folder=DIR, without a run; or two measurements
    compared. A and B are runs, or files bench.json or their folders."""
    if words[:1] == (COMPARE,):
        if out is not None:
            raise ConfigError("--out writes what was measured, not a comparison; use --json > FILE")
        return _compare(words[1:], as_json)
    return _measure(words, as_json, out)


def _measure(words: Sequence[str], as_json: bool, out: str | None) -> int:
    given, overrides = take_words(words, FOLDER)
    folder = local_path(given[FOLDER], FOLDER)
    if not folder.is_dir():
        raise ConfigError(f"bench.folder ({folder}) is not a folder; name that of a model")
    config = compose(overrides).bench
    file = None if out is None else local_path(out, "--out")
    if file is not None:
        # Before minutes of measuring, so that a place that cannot be written is named at once.
        file.parent.mkdir(parents=True, exist_ok=True)
    from tasks.bench.stage import measure

    result = measure(folder, config)
    if file is not None:
        write_json(file, result)
    if as_json:
        show(json.dumps(result))
    else:
        show(describe(result))
    return 0 if result["withheld"] is None else 1


def describe(result: Mapping[str, Any]) -> str:
    """The grid and the loads as text."""
    if result["withheld"] is not None:
        return f"speed is withheld: {result['withheld']}"
    from tasks.bench.compare import cell_name, load_name

    cells = [
        [
            cell_name(row),
            *(_shown(row[name]["median"]) for name in ("decode_tok_s", "prefill_tok_s")),
            *(_shown(row[name]) for name in ("mbu", "mfu")),
            row["bound"],
        ]
        for row in result["cells"]
    ]
    loads = [
        [load_name(row), _shown(row["tok_s"])]
        + [_shown(row[name]["p50"]) for name in ("ttft_s", "tpot_s", "e2e_s")]
        for row in result["loads"]
    ]
    pieces = [table(("cell", "tok/s", "prefill tok/s", "MBU", "MFU", "bound by"), cells)]
    if loads:
        pieces.append(table(("load", "tok/s", "TTFT p50, s", "TPOT p50, s", "all p50, s"), loads))
    return "\n\n".join(pieces)


def _compare(words: Sequence[str], as_json: bool) -> int:
    names = [word for word in words if "=" not in word]
    if len(names) != 2:
        raise ConfigError(
            f"bench compare needs two measurements (found {len(names)}); write textmill bench"
            " compare A B, with runs, or files bench.json or their folders"
        )
    from tasks.bench.compare import compare_speeds

    store = compose([word for word in words if "=" in word]).open_store()
    found = compare_speeds(*(_read(store, name) for name in names))
    show(json.dumps(found) if as_json else describe_comparison(found))
    return 0


def _read(store: Store, name: str) -> Mapping[str, Any]:
    """The measurement that a file, a folder or a run has. Raises ConfigError."""
    path = Path(name)
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        runs = [record for record in read_records(store) if record.run_id.startswith(name)]
        if len(runs) != 1:
            raise ConfigError(
                f"{name} is not a file, a folder with {FILE}, or one run of {store.root}"
                f" ({len(runs)} begin so); textmill status lists runs"
            )
        key = runs[0].stages.get("bench")
        made = store.find("bench", key) if key else None
        if made is None:
            raise ConfigError(f"run {name} has no bench in {store.root}; run textmill bench")
        file = made.path / FILE
    try:
        content = read_json(file)
    except UnreadableJson as error:
        raise ConfigError(f"{file} is not JSON ({error}); name a {FILE}") from error
    if not isinstance(content, Mapping) or not {"cells", "correctness"} <= content.keys():
        raise ConfigError(f"{file} is not a measurement of bench; name its {FILE}")
    return content


def describe_comparison(found: Mapping[str, Any]) -> str:
    """Ratios of the second to the first; a star marks intervals that leave out 1."""
    devices = [(one or {}).get("device") for one in found["environments"]]
    if devices[0] != devices[1]:
        say(f"measured on different devices: {devices[0]}, {devices[1]}")
    pieces = [
        table((what, "A", "B", "B/A", "95 %"), [_row(row) for row in rows])
        for what, rows in (
            ("decode tok/s", found["cells"]),
            ("TTFT p50, s", found["loads"]),
        )
        if rows
    ]
    if overall := found["overall"]:
        interval = "" if overall["low"] is None else f" ({_interval(overall)})"
        pieces.append(
            f"decode B/A over {overall['cells']} cells: {overall['ratio']:.3f}{interval},"
            " geometric mean"
        )
    return "\n\n".join(pieces)


def _row(row: Mapping[str, Any]) -> list[str]:
    ratio = "–" if row["ratio"] is None else f"{row['ratio']:.3f}{'*' if row['is_clear'] else ''}"
    return [row["name"], _shown(row["first"]), _shown(row["second"]), ratio, _interval(row)]


def _interval(row: Mapping[str, Any]) -> str:
    return "" if row["low"] is None else f"{row['low']:.3f}…{row['high']:.3f}"


def _shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
