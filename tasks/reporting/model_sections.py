"""What was learnt: training curves, evaluation with intervals, decode speed, and what the model writes."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.reporting.charts import Bar, Estimate, Reference, Series, bars, forest, lines
from tasks.reporting.markup import Markup, foreign, join, tag
from tasks.reporting.page import Section, absent, facts, figure, folded, legend, table
from tasks.reporting.quantities import NOT_MEASURED, Facts, compact, count, duration, fixed, plural, significant, size, span
from tasks.reporting.run import Run, interval_text

LARGEST = 20
BASELINES = (("bigram", "r1"), ("unigram", "r2"))


def training_section(run: Run) -> Section:
    train = run.metrics("train")
    parameters, steps = train.number("num_parameters"), train.number("num_steps")
    last = train.number("final_val_loss")
    finding = (
        f"{compact(parameters)} parameters, {plural(steps, 'step')}: the validation loss ended at {fixed(last)} nats per token."
    )
    return Section("training", "Training", finding, [_train_facts(run, train), _loss_curve(train), _bpb_curve(run, train)])


def evaluation_section(run: Run) -> Section:
    evaluate = run.metrics("evaluate")
    documents = evaluate.number("val_bpb", "num_documents")
    finding: list[object] = [
        f"{fixed(evaluate.number('val_bpb', 'value'))} bits per byte on {plural(documents, 'held-out document')}"
    ]
    verdicts = [verdict for name, _ in BASELINES if (verdict := run.against_baseline(name))]
    finding.append(f": {'; '.join(verdicts)}." if verdicts else ".")
    rows = _headline_rows(evaluate)
    pieces: list[Markup | None] = [_eval_table(run, evaluate) if rows else absent("Bits per byte", "The evaluation")]
    pieces.extend(_by_name(run, evaluate, "by_source", "source"))
    pieces.extend(_by_name(run, evaluate, "by_language", "language"))
    return Section("evaluation", "Evaluation", finding, pieces)


def speed_section(run: Run) -> Section:
    bench = run.metrics("bench")
    correctness = _correctness(bench)
    if run.speed_withheld:
        finding = f"Speed is withheld: {run.speed_withheld}. A fast wrong answer is not a result."
        return Section("speed", "Decode speed", finding, [correctness])
    pairs = _paired_cells(bench)
    gains = [cached / uncached for _, cached, uncached in pairs]
    headline = f"{compact(bench.number('decode_tok_s'))} tokens per second"
    finding = f"{headline} with the key-value cache"
    finding += f", {_times(min(gains), max(gains))} as fast as without it." if gains else "."
    return Section("speed", "Decode speed", finding, [correctness, _speed_chart(bench), _cell_table(bench), _definitions(bench)])


def samples_section(run: Run) -> Section:
    samples = [s for s in run.metrics("evaluate").rows("samples") if s.text("text") is not None]
    if not samples:
        return Section("samples", "Samples", "No sample generations were recorded in this run.", [])
    finding = f"{plural(len(samples), 'continuation')} as the model wrote them, personal data replaced, not selected for quality."
    shown = []
    for sample in samples:
        prompt, text = sample.text("prompt") or "", sample.text("text") or ""
        rest = text[len(prompt) :] if prompt and text.startswith(prompt) else text
        shown.append(tag("div", tag("p", tag("b", prompt), rest, dir="auto"), class_="sample"))
    note = tag("p", "Bold: the prompt. What follows was generated; whatever it claims is made up.", class_="note")
    return Section("samples", "Samples", finding, [*shown, note])


def _train_facts(run: Run, train: Facts) -> Markup:
    tokens_seen = [row.number("tokens") for row in train.rows("curve")]
    return facts(
        None,
        [
            ("Parameters", count(train.number("num_parameters")), "trained weights, each counted once"),
            ("Steps", count(train.number("num_steps")), "optimizer updates"),
            ("Throughput", f"{compact(train.number('tokens_per_s'))} tokens/s", "training tokens per second of wall time"),
            ("Wall time", duration(run.record("train").number("elapsed_s")), "of the whole training stage"),
            (
                "Hardware",
                " · ".join(t for k in ("device", "dtype") if (t := train.text(k))) or NOT_MEASURED,
                "device and type of the arithmetic",
            ),
            (
                "Layout",
                train.text("layout") or NOT_MEASURED,
                "how the work was divided; it does not change the result beyond rounding",
            ),
            *(
                [("Tokens seen", compact(max(t for t in tokens_seen if t is not None)), "over all steps")]
                if any(tokens_seen)
                else []
            ),
        ],
    )


def _points(rows: Sequence[Facts], value: str) -> list[tuple[float, float]]:
    return sorted((x, y) for row in rows if (x := row.number("step")) is not None and (y := row.number(value)) is not None)


def _loss_curve(train: Facts) -> Markup:
    curve, validation = _points(train.rows("curve"), "train_loss"), _points(train.rows("val_curve"), "val_loss")
    if not curve and not validation:
        return absent("Loss", "The loss curve")
    series = [Series("training loss", curve), Series("validation loss", validation, "b", dots=True)]
    series = [one for one in series if one.points]
    note = (
        "Cross-entropy in nats per token; lower is better. A validation loss that rises while training falls means memorising. "
        "Losses of different tokenizers cannot be compared; bits per byte can."
    )
    return figure(
        "Loss",
        lambda width: lines(series, width, x_label="step", y_label="nats per token"),
        note,
        legend(("line", "training"), ("dot", "validation")),
    )


def _bpb_curve(run: Run, train: Facts) -> Markup | None:
    points = _points(train.rows("val_curve"), "val_bpb")
    if not points:
        return None
    references = _references(run.metrics("evaluate"))
    note = (
        "Bits per byte of the validation set during training, against baselines that know only how often "
        "each token (unigram) or each pair of tokens (bigram) occurs."
    )
    return figure(
        "Validation bits per byte",
        lambda width: lines(
            [Series("validation", points, "b", dots=True)], width, x_label="step", y_label="bits per byte", references=references
        ),
        note,
        _reference_legend(references, ("dot", "model")),
    )


def _references(evaluate: Facts) -> list[Reference]:
    found = [(name, evaluate.number(f"{name}_bpb"), tone) for name, tone in BASELINES]
    return [Reference(f"{name} baseline", value, tone) for name, value, tone in found if value is not None]


def _reference_legend(references: Sequence[Reference], *first: tuple[str, str]) -> Markup:
    return legend(*first, *((r.tone, f"{r.name} {fixed(r.value)}") for r in references))


def _headline_rows(evaluate: Facts) -> list[tuple[str, Facts]]:
    return [("model", Facts(evaluate.group("val_bpb")))] if evaluate.number("val_bpb", "value") is not None else []


def _eval_table(run: Run, evaluate: Facts) -> Markup:
    whole = Facts(evaluate.group("val_bpb"))
    rows: list[tuple[object, ...]] = [
        ("model", fixed(whole.number("value")), span(whole.number("low"), whole.number("high")), "1"),
    ]
    value = whole.number("value") or 0.0
    for name, _ in BASELINES:
        baseline = evaluate.number(f"{name}_bpb")
        ratio = f"{baseline / value:.2f}" if baseline is not None and value else NOT_MEASURED
        rows.append((f"{name} baseline", fixed(baseline), "–", ratio))
    note = (
        f"Bits per byte over {plural(whole.number('num_documents'), 'validation document')} "
        f"({size(whole.number('num_bytes'))}): the negative log₂ likelihoods of all tokens, summed, per UTF-8 byte of text. "
        f"Comparable between tokenizers. The {run.interval_name} says how far it would move with other documents of the same kind. "
        "Baselines are fitted to the training tokens: unigram knows how often each token occurs, bigram which follows which."
    )
    return table("Bits per byte", ("", "bits per byte", run.interval_name, "times the model"), rows, note)


def _by_name(run: Run, evaluate: Facts, group: str, what: str) -> list[Markup]:
    found = [(name, f) for name, f in evaluate.items(group) if f.number("value") is not None]
    if not found:
        return [absent(f"Bits per byte by {what}", f"The evaluation by {what}")]
    ordered = sorted(found, key=lambda item: (-(item[1].number("bytes") or 0), item[0]))
    marks, rows = [], []
    for name, f in ordered:
        value, low, high = f.number("value") or 0.0, f.number("low"), f.number("high")
        over = f"{plural(f.number('documents'), 'document')}, {size(f.number('bytes'))}"
        title = f"{name}: {interval_text(f)} bits per byte over {over}"
        marks.append(Estimate(name, value, low, high, interval_text(f), title))
        rows.append((foreign(name), fixed(value), span(low, high), count(f.number("documents")), size(f.number("bytes"))))
    references = _references(evaluate)
    more = f" The {LARGEST} largest of {len(marks)}; the table has all." if len(marks) > LARGEST else ""
    note = (
        f"Point: bits per byte on held-out documents of one {what}. Whisker: {run.interval_name}, where there are enough for one. "
        f"Largest first. The baselines are those of the whole validation set.{more}"
    )
    chart = figure(
        f"Bits per byte by {what}",
        lambda width: forest(marks[:LARGEST], references, "bits per byte", width),
        note,
        _reference_legend(references, ("point", "model")),
    )
    columns = (what, "bits per byte", run.interval_name, "documents", "bytes")
    return [chart, folded(f"All {len(rows)} rows by {what}", table(None, columns, rows))]


def _correctness(bench: Facts) -> Markup:
    passed, difference = bench.value("correctness", "passed"), bench.number("correctness", "fp64_max_abs_diff")
    verdict = {True: "passed", False: "failed"}.get(passed, NOT_MEASURED) if isinstance(passed, bool) else NOT_MEASURED
    return facts(
        None,
        [
            (
                "Correctness check",
                verdict,
                "cached decoding gives the logits of the full forward pass; speed is shown only if so",
            ),
            ("Largest difference", significant(difference), "of any logit, both computed in float64"),
            ("Prompt reading", f"{compact(bench.number('prefill_tok_s'))} tokens/s", "prefill: prompt tokens per second, median"),
        ]
        if passed is True
        else [
            ("Correctness check", verdict, "cached decoding must give the logits of the full forward pass before speed is shown"),
            ("Largest difference", significant(difference), "of any logit, both computed in float64"),
        ],
    )


def _cell_name(cell: Facts) -> str:
    return f"batch {count(cell.number('batch'))}, {count(cell.number('prompt_tokens'))} + {count(cell.number('new_tokens'))}"


def _paired_cells(bench: Facts) -> list[tuple[str, float, float]]:
    """(cell, cached, uncached decode tokens/s) of the cells measured both ways."""
    medians: dict[str, dict[str, float]] = {}
    for cell in bench.rows("cells"):
        median = cell.number("decode_tok_s", "median")
        if median:
            medians.setdefault(_cell_name(cell), {})[cell.text("mode") or ""] = median
    return [(name, m["cached"], m["uncached"]) for name, m in medians.items() if "cached" in m and "uncached" in m]


def _times(low: float, high: float) -> str:
    low_text, high_text = significant(low, 2), significant(high, 2)
    return f"{low_text} times" if low_text == high_text else f"{low_text} to {high_text} times"


def _speed_chart(bench: Facts) -> Markup:
    marks = []
    for cell in bench.rows("cells"):
        speed = Facts(cell.group("decode_tok_s"))
        median, low, high = speed.number("median"), speed.number("p05"), speed.number("p95")
        if median is None:
            continue
        mode = cell.text("mode") or "?"
        title = f"{mode}, {_cell_name(cell)} tokens: {significant(median)} tokens/s, 5th to 95th percentile {span(low, high, 1)}"
        tone = "a" if mode == "cached" else "b"
        marks.append(Bar(f"{_cell_name(cell)} · {mode}", median, significant(median), title, low=low, high=high, tone=tone))
    if not marks:
        return absent("Decode speed, cached against uncached", "Decode speed")
    note = (
        "Bar: median new tokens per second, all sequences of the batch together. Whisker: 5th to 95th percentile of the repeats. "
        "Names: sequences at once, prompt tokens + new tokens of each. Uncached runs the whole sequence again for every token."
    )
    return figure(
        "Decode speed, cached against uncached",
        lambda width: bars(marks, width),
        note,
        legend(("a", "cached"), ("b", "uncached")),
    )


def _cell_table(bench: Facts) -> Markup | None:
    cells = bench.rows("cells")
    if not cells:
        return None
    rows = []
    for cell in cells:
        decode, prefill = Facts(cell.group("decode_tok_s")), Facts(cell.group("prefill_s"))
        rows.append(
            (
                cell.text("mode") or "–",
                count(cell.number("batch")),
                count(cell.number("prompt_tokens")),
                count(cell.number("new_tokens")),
                significant(decode.number("median")),
                f"{significant(decode.number('p05'))}–{significant(decode.number('p95'))}",
                _milliseconds(prefill.number("median")),
                count(decode.number("repeats") or prefill.number("repeats")),
            )
        )
    columns = ("mode", "batch", "prompt", "new", "decode tokens/s", "5th–95th percentile", "prefill", "repeats")
    return folded(f"All {len(rows)} measurements", table(None, columns, rows, "Medians; warm-up runs are not counted."))


def _milliseconds(seconds: float | None) -> str:
    return NOT_MEASURED if seconds is None else f"{significant(1000 * seconds)} ms"


def _definitions(bench: Facts) -> Markup | None:
    definitions = bench.group("definitions")
    if not definitions:
        return None
    entries = [[tag("dt", tag("code", name)), tag("dd", str(text))] for name, text in sorted(definitions.items())]
    return folded("Definitions of the speed figures", tag("dl", join(entries), class_="definitions"))
