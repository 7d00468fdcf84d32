"""Shows what was learnt, step by step: the size of the work, and curves of loss and of bits per
byte."""

from __future__ import annotations

from functools import partial

from tasks.report.charts import Chart, Series, lines
from tasks.report.grid_heat import grid_heat
from tasks.report.page import Section
from tasks.report.quantities import (
    NOT_MEASURED,
    Facts,
    compact,
    count,
    fixed,
    percent,
    plural,
    significant,
)
from tasks.report.run import Run, events_text
from tasks.report.sections.evaluation import reference_legend, references_of

MOST_RANKS, MOST_COLUMNS = 16, 24
"""Of the picture of processes: the slowest, and as many columns as numbers have room for."""
OPTIMIZERS = {
    "adamw": (
        "AdamW",
        "every weight moves by its averaged gradient over the root of its averaged square"
        " (Loshchilov and Hutter, 2019)",
    ),
    "lion": ("Lion", "every weight moves by the sign of its averaged gradient (Chen et al., 2023)"),
    "adafactor": (
        "Adafactor",
        "as Adam, but second moments are kept per row and column only (Shazeer and Stern, 2018)",
    ),
    "muon": (
        "Muon",
        "the averaged gradient of each matrix in a block is orthogonalised, so that rare directions"
        " are learnt as fast as common ones (Jordan et al., 2024); embeddings, head and norms use"
        " AdamW",
    ),
    "sgd": ("SGD", "every weight moves against its gradient"),
    "lamb": (
        "LAMB",
        "as Adam, with the step of each weight scaled to the size of the weight (You et al., 2020)",
    ),
}
"""Name and meaning of each `optim.kind`."""
SCHEDULES = {
    "cosine": "half a cosine down to {end} of the peak",
    "linear": "a straight line down to {end} of the peak",
    "wsd": "constant, then falling to {end} of the peak over the last {decay} of the steps",
    "inverse_sqrt": "falling with the root of the step, to no less than {end} of the peak",
    "constant": "constant",
}
"""Course of the learning rate after its warm-up, by `optim.schedule`."""


def training_section(run: Run) -> Section:
    train = run.metrics("train")
    parameters, steps = train.each("num_parameters", "num_steps")
    train_loss, validation_loss = train.each("final_train_loss", "final_val_loss")
    finding = (
        f"{compact(parameters)} parameters, {plural(steps, 'step')}: the loss ended at"
        f" {fixed(train_loss)} nats per token in training and {fixed(validation_loss)} on"
        " validation text."
    )
    if parameters is None and steps is None:
        finding = "Training was not measured in this run."
    hardware = " · ".join(t for k in ("device", "dtype") if (t := train.text(k)))
    references = references_of(run.metrics("evaluate"))
    val_bpb = Series("validation", _points(train, "val_curve", "val_bpb"), "b", dots=True)
    values = {
        "train": train,
        "optimizer": _optimizer(Facts(run.record("train").group("config", "optim"))),
        "seen_tokens": run.seen_tokens,
        "elapsed_s": run.record("train").number("elapsed_s"),
        "hardware": hardware or NOT_MEASURED,
        "layout": _layout(train),
        "events": events_text(train) or "none",
        "loss": _loss(train),
        "bpb": partial(
            lines, [val_bpb], x_label="step", y_label="bits per byte", references=references
        )
        if val_bpb.points
        else None,
        "references": reference_legend(references),
        "paces": _paces(train),
        "loads": _loads(train),
        "layers_of_experts": _layers_of_experts(train),
    }
    return Section("training", "Training", finding, values)


def _loads(train: Facts) -> Chart | None:
    """The largest load over the mean, in the worst layer; None for a dense model."""
    series = Series("load", _points(Facts(train.group("experts")), "curve", "load"), "a")
    chart = partial(lines, [series], x_label="step", y_label="largest load / mean")
    return chart if series.points else None


def _layers_of_experts(train: Facts) -> list[list[str]]:
    return [
        [count(row.number("layer")), fixed(row.number("load")), fixed(row.number("entropy"))]
        for row in train.rows("experts", "layers")
    ]


def _optimizer(optim: Facts) -> list[tuple[str, str, str]]:
    """What made the steps; nothing where the record of an older run does not say."""
    kind, schedule, lr = optim.text("kind"), optim.text("schedule"), optim.number("lr")
    if kind not in OPTIMIZERS or schedule not in SCHEDULES or lr is None:
        return []
    end, decay = percent(optim.number("min_lr_frac")), percent(optim.number("decay_frac"))
    course = SCHEDULES[schedule].format(end=end, decay=decay)
    warmup = (
        f"peak, after a warm-up of {plural(optim.number('warmup_steps'), 'step')}; then {course}"
    )
    return [("Optimizer", *OPTIMIZERS[kind]), ("Learning rate", significant(lr), warmup)]


def _layout(train: Facts) -> str:
    layout = Facts(train.group("layout"))
    num_processes, num_threads = layout.each("num_processes", "num_threads")
    parts = [
        layout.text("kind"),
        None if num_processes is None else plural(num_processes, "process", "processes"),
        None if num_threads is None else plural(num_threads, "thread"),
    ]
    named = " · ".join(part for part in parts if part)
    return named or ("" if layout.group() else train.text("layout") or "") or NOT_MEASURED


def _points(train: Facts, curve: str, value: str) -> list[tuple[float, float]]:
    return sorted(
        (x, y)
        for row in train.rows(curve)
        if (x := row.number("step")) is not None and (y := row.number(value)) is not None
    )


def _loss(train: Facts) -> Chart | None:
    validation = _points(train, "val_curve", "val_loss")
    series = [
        Series("training loss", _points(train, "curve", "train_loss")),
        Series("validation loss", validation, "b", dots=True),
    ]
    series = [one for one in series if one.points]
    return partial(lines, series, x_label="step", y_label="nats per token") if series else None


def _paces(train: Facts) -> Chart | None:
    """Of the slowest processes, over time; each column has the worst of its intervals."""
    rows = [row for row in train.rows("timing") if row.rows("paces")]
    size = max(1, -(-len(rows) // MOST_COLUMNS))
    columns = [rows[begin : begin + size] for begin in range(0, len(rows), size)]
    worst: list[dict[float, float]] = [{} for _ in columns]
    highest: dict[float, float] = {}
    for column, found in zip(columns, worst, strict=True):
        for rank, pace in (one.each("rank", "pace") for row in column for one in row.rows("paces")):
            if rank is not None and pace is not None:
                found[rank] = max(pace, found.get(rank, 0.0))
                highest[rank] = max(pace, highest.get(rank, 0.0))
    ranks = sorted(highest, key=lambda rank: -highest[rank])[:MOST_RANKS]
    if len(ranks) < 2:
        return None
    names = [f"process {count(rank)}" for rank in ranks]
    steps = [count(column[-1].number("step")) for column in columns]
    values = [[found.get(rank) for found in worst] for rank in ranks]
    return partial(grid_heat, names, steps, values, "times the median")
