"""How fast the model writes, with and without the key-value cache; nothing is shown unless both
give the same answer."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.report.charts import Bar, bars
from tasks.report.markup import Markup, foreign
from tasks.report.page import Section, absent, facts, figure, folded, ledger, legend, table
from tasks.report.quantities import (
    NOT_MEASURED,
    Facts,
    compact,
    count,
    percent,
    plural,
    significant,
)
from tasks.report.run import Run


def speed_section(run: Run) -> Section:
    bench = run.metrics("bench")
    correctness = _correctness(run, bench)
    if run.speed_withheld:
        finding = f"Speed is withheld: {run.speed_withheld}. A fast wrong answer is not a result."
        return Section("speed", "Decode speed", finding, [correctness])
    pairs = _paired_cells(bench)
    gains = [cached / uncached for _, cached, uncached in pairs]
    headline = f"{compact(bench.number('decode_tok_s'))} tokens per second"
    finding = f"{headline} with the key-value cache"
    finding += f", {_times(min(gains), max(gains))} as fast as without it." if gains else "."
    details = [*_cell_table(bench), *_definitions(bench)]
    return Section("speed", "Decode speed", finding, [correctness, _speed_chart(bench), *details])


def _correctness(run: Run, bench: Facts) -> Markup:
    passed, difference = (
        bench.value("correctness", "passed"),
        bench.number("correctness", "fp64_max_abs_diff"),
    )
    verdict = NOT_MEASURED if not isinstance(passed, bool) else "passed" if passed else "failed"
    tolerance = bench.number("correctness", "tolerance")
    at_most = f"; {significant(tolerance)} is allowed" if tolerance is not None else ""
    entries = [
        (
            "Correctness check",
            verdict,
            "cached decoding must give the logits of the full forward pass, or no speed is shown",
        ),
        (
            "Largest difference",
            significant(difference),
            f"of any logit, both computed in float64{at_most}",
        ),
    ]
    if run.speed_withheld:
        return facts(None, entries)
    environment = Facts(bench.group("environment"))
    threads = environment.number("threads")
    arithmetic = [
        environment.text("dtype"),
        plural(threads, "thread") if threads is not None else None,
    ]
    entries += [
        (
            "Decode",
            f"{compact(bench.number('decode_tok_s'))} tokens/s",
            f"with the cache, median{headline_cell(bench)}",
        ),
        (
            "Prefill",
            f"{compact(bench.number('prefill_tok_s'))} tokens/s",
            f"prompt tokens read, median{headline_cell(bench)}",
        ),
        (
            "Arithmetic",
            " · ".join(a for a in arithmetic if a) or NOT_MEASURED,
            "type of weights and cache; processor threads",
        ),
        (
            "Device",
            environment.text("device")
            or run.record("bench").text("identity", "device")
            or NOT_MEASURED,
            "what ran it",
        ),
    ]
    return facts(None, entries)


def headline_cell(bench: Facts) -> str:
    """Where the headline speed was measured, as far as the stage says so."""
    batch, prompt = bench.number("headline", "batch"), bench.number("headline", "prompt_tokens")
    return (
        ""
        if batch is None or prompt is None
        else f"; batch {count(batch)}, {count(prompt)} prompt tokens"
    )


def _cell_name(cell: Facts) -> str:
    return (
        f"batch {count(cell.number('batch'))}, {count(cell.number('prompt_tokens'))} +"
        f" {count(cell.number('new_tokens'))}"
    )


def _paired_cells(bench: Facts) -> list[tuple[str, float, float]]:
    """(cell, cached, uncached decode tokens/s) of the cells measured both ways."""
    medians: dict[str, dict[str, float]] = {}
    for cell in bench.rows("cells"):
        median = cell.number("decode_tok_s", "median")
        if median:
            medians.setdefault(_cell_name(cell), {})[cell.text("mode") or ""] = median
    return [
        (name, m["cached"], m["uncached"])
        for name, m in medians.items()
        if "cached" in m and "uncached" in m
    ]


def _times(low: float, high: float) -> str:
    low_text, high_text = significant(low, 2), significant(high, 2)
    return f"{low_text} times" if low_text == high_text else f"{low_text} to {high_text} times"


def _speed_chart(bench: Facts) -> Markup:
    marks = []
    for cell in bench.rows("cells"):
        speed = Facts(cell.group("decode_tok_s"))
        median, (low, high) = speed.number("median"), _ends(speed)
        if median is None:
            continue
        mode = cell.text("mode") or "?"
        title = (
            f"{mode}, {_cell_name(cell)} tokens: {significant(median)} tokens/s,"
            f" {_spread_name([cell])} {_spread(speed)}"
        )
        tone = "a" if mode == "cached" else "b"
        marks.append(
            Bar(
                f"{_cell_name(cell)} · {mode}",
                median,
                significant(median),
                title,
                low=low,
                high=high,
                tone=tone,
            )
        )
    if not marks:
        return absent("Decode speed, cached against uncached", "Decode speed")
    note = (
        "Bar: median new tokens per second, all sequences of the batch together. Whisker:"
        f" {_spread_name(bench.rows('cells'))} of the repeats. Names: sequences at once, prompt"
        " tokens + new tokens of each. Uncached runs the whole sequence again for every token."
    )
    return figure(
        "Decode speed, cached against uncached",
        lambda width: bars(marks, width),
        note,
        legend(("a", "cached"), ("b", "uncached")),
    )


def _cell_table(bench: Facts) -> list[Markup]:
    cells = bench.rows("cells")
    if not cells:
        return []
    rows = [
        (
            cell.text("mode") or "–",
            count(cell.number("batch")),
            count(cell.number("prompt_tokens")),
            count(cell.number("new_tokens")),
            significant(cell.number("decode_tok_s", "median")),
            _spread(Facts(cell.group("decode_tok_s"))),
            _milliseconds(cell.number("prefill_s", "median")),
            percent(cell.number("mbu")),
            percent(cell.number("mfu")),
            count(cell.number("decode_tok_s", "repeats")),
        )
        for cell in cells
    ]
    columns = (
        "mode",
        "batch",
        "prompt",
        "new",
        "decode tokens/s",
        _spread_name(cells),
        "prefill",
        "MBU",
        "MFU",
        "repeats",
    )
    note = (
        "Medians; warm-up is in no figure. MBU and MFU: memory traffic and arithmetic that decoding"
        " cannot avoid, per second, as shares of the bandwidth and arithmetic peaks measured on"
        " this device."
    )
    skipped = len(bench.sequence("skipped"))
    if skipped:
        note += f" {plural(skipped, 'cell')} did not fit the model's context and were left out."
    return [folded(plural(len(rows), "measurement"), table(None, columns, rows, note))]


def _spread(timing: Facts) -> str:
    low, high = _ends(timing)
    return (
        NOT_MEASURED if low is None or high is None else f"{significant(low)}–{significant(high)}"
    )


def _ends(timing: Facts) -> tuple[float | None, float | None]:
    """What a whisker spans: percentiles where there are enough repeats for them, else the
    extremes."""
    names = ("p05", "p95") if timing.number("p05") is not None else ("min", "max")
    return timing.number(names[0]), timing.number(names[1])


def _spread_name(cells: Sequence[Facts]) -> str:
    are_percentiles = [cell.number("decode_tok_s", "p05") is not None for cell in cells]
    return "5th to 95th percentile" if all(are_percentiles) else "smallest to largest"


def _milliseconds(seconds: float | None) -> str:
    return NOT_MEASURED if seconds is None else f"{significant(1000 * seconds)} ms"


def _definitions(bench: Facts) -> list[Markup]:
    entries = [
        (name, foreign(text), "") for name, text in sorted(bench.group("definitions").items())
    ]
    return [folded("Definitions of the speed figures", ledger(entries))] if entries else []
