"""Writes the model card: what the model is, what it was made of, what it may be used for, and where
it must not be trusted.

After Mitchell et al., Model Cards for Model Reporting (2019). Every statement is made of measured
facts of this run or of what the pipeline does by construction; nothing is claimed that no stage
looked at.
"""

from __future__ import annotations

from markupsafe import Markup

from tasks.report.markup import foreign, listed
from tasks.report.page import Section
from tasks.report.quantities import (
    NOT_MEASURED,
    Facts,
    compact,
    count,
    fixed,
    moment,
    most_first,
    numbers,
    percent,
    plural,
    share,
    significant,
    size,
)
from tasks.report.run import FEW_VALIDATION_DOCUMENTS, Run, interval_text

FEW_LANGUAGE_DOCUMENTS = 20
"""A language with fewer held-out documents than this counts as not tested."""
MOST_NAMED = 8
MOST_LANGUAGES = 15
USUAL_TOKENS_PER_PARAMETER = 20


def model_card_section(run: Run) -> Section:
    finding = (
        "What the model is, what it was made of, and where not to trust it, drawn from the facts of"
        " this run."
    )
    train, evaluate = run.metrics("train"), run.metrics("evaluate")
    by_language = evaluate.largest_first("by_language")
    tested = [(name, facts.number("documents") or 0) for name, facts in by_language]
    well = [name for name, n in tested if n >= FEW_LANGUAGE_DOCUMENTS and name != "und"]
    thin = [name for name, n in tested if 0 < n < FEW_LANGUAGE_DOCUMENTS]
    finished = run.record("train").text("finished_at")
    splits = run.metrics("documents").items("split")
    texts = "; ".join(
        f"{name} {plural(f.number('documents'), 'document')}, {size(f.number('bytes'))}"
        for name, f in splits
    )
    licences = [name for name, _ in most_first(run.metrics("ingest").group("licenses"))]
    limits = (
        _limit_of_scale(run),
        _limit_of_languages(run, thin),
        _limit_of_sources(run),
        _limit_of_validation(run),
        _limit_of_privacy(run),
        _limit_of_duplicates(run),
    )
    values = {
        "num_parameters": train.number("num_parameters"),
        "key": run.artifacts["train"].key or "not published",
        "trained": moment(finished) if finished else NOT_MEASURED,
        "device": train.text("device") or "a device that was not recorded",
        "texts": texts or NOT_MEASURED,
        "licences": _some(licences) if licences else NOT_MEASURED,
        "tokenizer": run.metrics("tokenizer"),
        "val_bpb": interval_text(Facts(evaluate.group("val_bpb"))),
        "interval": run.interval_name,
        "few": FEW_LANGUAGE_DOCUMENTS,
        "well_tested": listed(well[:MOST_LANGUAGES]),
        "limits": list(filter(None, limits)),
    }
    return Section("model-card", "Model card", finding, values)


def _some(names: list[str]) -> Markup:
    more = len(names) - MOST_NAMED
    return listed(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _limit_of_scale(run: Run) -> str | None:
    held, seen = run.shard_tokens, run.seen_tokens
    parameters = run.metrics("train").number("num_parameters")
    if seen is None or not parameters:
        return None
    text = f" of a text of {compact(held)}" if held is not None else ""
    usual = ""
    if seen / parameters < USUAL_TOKENS_PER_PARAMETER:
        usual = (
            f"; models of this kind are usually trained on {USUAL_TOKENS_PER_PARAMETER} or more"
            " (Hoffmann et al. 2022)"
        )
    each = significant(seen / parameters, 2)
    return f"Training saw {compact(seen)} tokens{text}, {each} for each parameter{usual}."


def _largest(run: Run, group: str) -> tuple[str, str] | None:
    """The share of the kept text that the largest of a group has, and its name."""
    found = run.metrics("documents").largest_first(group, by=["bytes"])
    kept = [(name, facts.number("bytes") or 0) for name, facts in found]
    total = sum(n for _, n in kept)
    return (percent(kept[0][1] / total), kept[0][0]) if total else None


def _limit_of_languages(run: Run, thin: list[str]) -> str | None:
    if (largest := _largest(run, "by_language")) is None:
        return None
    text = Markup("{} of the kept text is in {}.").format(largest[0], foreign(largest[1]))
    if thin:
        text += Markup(
            " Fewer than {} held-out documents stand behind the numbers for {}: treat them as"
            " untested."
        ).format(FEW_LANGUAGE_DOCUMENTS, _some(thin))
    return text


def _limit_of_sources(run: Run) -> str | None:
    if (largest := _largest(run, "by_source")) is None:
        return None
    text = Markup("{} of the kept text comes from the largest source, {}.")
    return text.format(largest[0], foreign(largest[1]))


def _limit_of_validation(run: Run) -> str | None:
    whole = Facts(run.metrics("evaluate").group("val_bpb"))
    held_out = whole.number("num_documents")
    if held_out is None:
        return None
    rough = ", so that even the interval is rough" if held_out < FEW_VALIDATION_DOCUMENTS else ""
    return (
        f"The validation documents ({count(held_out)}{rough}) come from the same sources as the"
        f" training documents: {fixed(whole.number('value'))} bits per byte says nothing about"
        " other text."
    )


def _limit_of_privacy(run: Run) -> str | None:
    types = run.metrics("pii").items("types")
    if not types:
        return None
    spans = sum(facts.number("spans") or 0 for _, facts in types)
    replaced = f"{plural(spans, 'passage')} of personal data were replaced, by patterns"
    if by_model := run.metrics("pii").sequence("ner_types"):
        return (
            f"{replaced}, checksums and a given model ({', '.join(map(str, by_model))}). What the"
            " model missed, and whatever else no pattern describes, may be reproduced."
        )
    return (
        f"{replaced} and checksums."
        " Names, and whatever no pattern describes, are still there and may be reproduced."
    )


def _limit_of_duplicates(run: Run) -> str | None:
    threshold = run.metrics("dedup").number("lsh", "threshold")
    if threshold is None:
        return None
    dropped = numbers(run.counters("dedup").group("dropped"))
    removed = sum(n for reason, n in dropped.items() if reason.endswith("_DUPLICATE"))
    return (
        f"Near-duplicates from a similarity of {threshold:g} on were removed"
        f" ({share(removed, run.documents_read)} of what was read); shorter shared passages remain,"
        " and what repeats can be memorised."
    )
