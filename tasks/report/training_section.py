"""What was learnt, step by step: the size of the work, and curves of loss and of bits per byte."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.report.charts import Series, lines
from tasks.report.evaluation_section import reference_legend, references_of
from tasks.report.markup import Markup
from tasks.report.page import Section, absent, facts, figure, legend
from tasks.report.quantities import (
    NOT_MEASURED,
    Facts,
    compact,
    count,
    duration,
    fixed,
    percent,
    plural,
    significant,
)
from tasks.report.run import Run, events_text

OPTIMIZERS = {
    "adamw": (
        "AdamW",
        (
            "every weight moves by its averaged gradient over the root of its averaged square"
            " (Loshchilov and Hutter, 2019)"
        ),
    ),
    "lion": ("Lion", "every weight moves by the sign of its averaged gradient (Chen et al., 2023)"),
    "adafactor": (
        "Adafactor",
        "as Adam, but second moments are kept per row and column only (Shazeer and Stern, 2018)",
    ),
    "muon": (
        "Muon",
        (
            "the averaged gradient of each matrix in a block is orthogonalised, so that rare"
            " directions are learnt as fast as common ones (Jordan et al., 2024); embeddings, head"
            " and norms use AdamW"
        ),
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
    parameters, steps = train.number("num_parameters"), train.number("num_steps")
    train_loss, validation_loss = (
        fixed(train.number("final_train_loss")),
        fixed(train.number("final_val_loss")),
    )
    finding = (
        f"{compact(parameters)} parameters, {plural(steps, 'step')}: the loss ended at {train_loss}"
        f" nats per token in training and {validation_loss} on validation text."
    )
    if parameters is None and steps is None:
        finding = "Training was not measured in this run."
    return Section(
        "training",
        "Training",
        finding,
        [_train_facts(run, train), _loss_curve(train), _bpb_curve(run, train)],
    )


def _train_facts(run: Run, train: Facts) -> Markup:
    hardware = " · ".join(t for k in ("device", "dtype") if (t := train.text(k)))
    flops = train.number("training_flops_per_token")
    entries = [
        ("Parameters", count(train.number("num_parameters")), "trained weights, each counted once"),
        ("Steps", count(train.number("num_steps")), "optimizer updates"),
        *_optimizer_facts(Facts(run.record("train").group("config", "optim"))),
        (
            "Tokens seen",
            compact(run.seen_tokens),
            "over all steps, without padding; text may be seen more than once",
        ),
        (
            "Throughput",
            f"{compact(train.number('tokens_per_s'))} tokens/s",
            "training tokens per second, validation left out",
        ),
        (
            "Compute",
            f"{compact(flops)} FLOPs/token",
            "forward and backward, attention within documents; a multiply-add counts as two",
        ),
        (
            "Wall time",
            duration(run.record("train").number("elapsed_s")),
            "of the whole stage, with start-up and validation",
        ),
        ("Hardware", hardware or NOT_MEASURED, "device and type of the arithmetic"),
        ("Layout", _layout(train), "how the work was divided; other layouts agree within rounding"),
        (
            "Events",
            events_text(train) or "none",
            "rows of metrics.jsonl beside steps and validations",
        ),
    ]
    return facts(None, entries)


def _optimizer_facts(optim: Facts) -> list[tuple[str, str, str]]:
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
    parts = [
        layout.text("kind"),
        (
            plural(n, "process", "processes")
            if (n := layout.number("num_processes")) is not None
            else None
        ),
        plural(n, "thread") if (n := layout.number("num_threads")) is not None else None,
    ]
    named = " · ".join(part for part in parts if part)
    return named or ("" if train.group("layout") else train.text("layout") or "") or NOT_MEASURED


def _points(rows: Sequence[Facts], value: str) -> list[tuple[float, float]]:
    return sorted(
        (x, y)
        for row in rows
        if (x := row.number("step")) is not None and (y := row.number(value)) is not None
    )


def _loss_curve(train: Facts) -> Markup:
    curve, validation = (
        _points(train.rows("curve"), "train_loss"),
        _points(train.rows("val_curve"), "val_loss"),
    )
    if not curve and not validation:
        return absent("Loss", "The loss curve")
    series = [Series("training loss", curve), Series("validation loss", validation, "b", dots=True)]
    series = [one for one in series if one.points]
    note = (
        "Cross-entropy in nats per token; lower is better. A validation loss that rises while"
        " training falls means memorising. Losses of different tokenizers cannot be compared; bits"
        " per byte can."
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
    references = references_of(run.metrics("evaluate"))
    note = (
        "Bits per byte of the validation set during training, against baselines that know only how"
        " often each token (unigram) or each pair of tokens (bigram) occurs. The evaluation scores"
        " whole documents and can differ."
    )
    return figure(
        "Validation bits per byte",
        lambda width: lines(
            [Series("validation", points, "b", dots=True)],
            width,
            x_label="step",
            y_label="bits per byte",
            references=references,
        ),
        note,
        reference_legend(references, ("dot", "model")),
    )
