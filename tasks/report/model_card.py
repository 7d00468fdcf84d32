"""The model card: what the model is, what it was made of, what it may be used for, and where it
must not be trusted.

After Mitchell et al., Model Cards for Model Reporting (2019). Every statement is made of measured
facts of this run or of what the pipeline does by construction; nothing is claimed that no stage
looked at.
"""

from __future__ import annotations

from tasks.report.data_sections import LARGEST
from tasks.report.markup import Markup, foreign, join, tag
from tasks.report.page import Section, ledger
from tasks.report.quantities import (
    NOT_MEASURED,
    Facts,
    compact,
    count,
    fixed,
    moment,
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
USUAL_TOKENS_PER_PARAMETER = 20


def model_card_section(run: Run) -> Section:
    finding = (
        "What the model is, what it was made of, and where not to trust it, drawn from the facts of"
        " this run."
    )
    use = [
        tag("h3", "Intended use"),
        tag("ul", [tag("li", line) for line in _uses(run)], class_="limits"),
    ]
    limits = [
        tag("h3", "Limits"),
        tag("ul", [tag("li", line) for line in _limits(run)], class_="limits"),
    ]
    return Section("model-card", "Model card", finding, [_identity(run), *use, *limits])


def _identity(run: Run) -> Markup:
    train, documents = run.metrics("train"), run.metrics("documents")
    splits = documents.items("split")
    texts = "; ".join(
        f"{name} {plural(f.number('documents'), 'document')}, {size(f.number('bytes'))}"
        for name, f in splits
    )
    licences = sorted(
        numbers(run.metrics("ingest").group("licenses")).items(),
        key=lambda item: (-item[1], item[0]),
    )
    named = join([foreign(name) for name, _ in licences[:MOST_NAMED]], ", ")
    more = f" and {len(licences) - MOST_NAMED} more" if len(licences) > MOST_NAMED else ""
    tokenizer = run.metrics("tokenizer")
    kind = tokenizer.text("kind") or "kind not recorded"
    finished = run.record("train").text("finished_at")
    return ledger(
        [
            (
                "Model",
                f"{compact(train.number('num_parameters'))} parameters",
                "decoder-only transformer; its sizes stand under Configuration",
            ),
            (
                "Artifact",
                run.artifacts["train"].key or "not published",
                "key of the weights in the store; the lineage below says how they were made",
            ),
            (
                "Trained",
                moment(finished) if finished else NOT_MEASURED,
                f"on {train.text('device') or 'a device that was not recorded'}",
            ),
            ("Text", texts or NOT_MEASURED, "kept documents by split, personal data replaced"),
            (
                "Licences of the data",
                [named, more] if licences else NOT_MEASURED,
                "as declared by the records read, most frequent first",
            ),
            ("Tokenizer", f"{count(tokenizer.number('vocab_size'))} tokens", kind),
            (
                "Quality",
                f"{interval_text(Facts(run.metrics('evaluate').group('val_bpb')))} bits per byte",
                f"on held-out documents, with its {run.interval_name}",
            ),
        ],
    )


def _uses(run: Run) -> list[object]:
    tested = [
        name for name, n in _languages_tested(run) if n >= FEW_LANGUAGE_DOCUMENTS and name != "und"
    ]
    uses: list[object] = [
        "Study of this pipeline, and a starting point for further training on similar text.",
        (
            "It continues text. It was not tuned to follow instructions, to answer questions or to"
            " refuse anything."
        ),
    ]
    if tested:
        names = join([foreign(name) for name in tested[:LARGEST]], ", ")
        uses.insert(
            1,
            [
                "Languages with at least ",
                f"{FEW_LANGUAGE_DOCUMENTS} held-out documents behind their numbers: ",
                names,
                ".",
            ],
        )
    return uses


def _languages_tested(run: Run) -> list[tuple[str, float]]:
    found = [
        (name, f.number("documents") or 0)
        for name, f in run.metrics("evaluate").items("by_language")
    ]
    return sorted(found, key=lambda item: (-item[1], item[0]))


def _limits(run: Run) -> list[object]:
    return [
        line
        for line in (
            _limit_of_scale(run),
            _limit_of_languages(run),
            _limit_of_sources(run),
            _limit_of_validation(run),
            _limit_of_privacy(run),
            _limit_of_duplicates(run),
            (
                "Factual accuracy, bias and harmful content were not measured. What the model"
                " writes can be wrong or offensive."
            ),
        )
        if line
    ]


def _limit_of_scale(run: Run) -> str | None:
    held, seen, parameters = (
        run.shard_tokens,
        run.seen_tokens,
        run.metrics("train").number("num_parameters"),
    )
    if seen is None or not parameters:
        return None
    usual = (
        f"; models of this kind are usually trained on {USUAL_TOKENS_PER_PARAMETER} or more"
        " (Hoffmann et al. 2022)"
    )
    few = seen / parameters < USUAL_TOKENS_PER_PARAMETER
    each, text = (
        significant(seen / parameters, 2),
        f" of a text of {compact(held)}" if held is not None else "",
    )
    return (
        f"Training saw {compact(seen)} tokens{text}, {each} for each"
        f" parameter{usual if few else ''}."
    )


def _limit_of_languages(run: Run) -> object:
    kept = [
        (name, f.number("bytes") or 0) for name, f in run.metrics("documents").items("by_language")
    ]
    total = sum(n for _, n in kept)
    if not total:
        return None
    name, largest = max(kept, key=lambda item: item[1])
    thin = [name for name, n in _languages_tested(run) if 0 < n < FEW_LANGUAGE_DOCUMENTS]
    text: list[object] = [f"{percent(largest / total)} of the kept text is in ", foreign(name), "."]
    if thin:
        names = join([foreign(one) for one in thin[:MOST_NAMED]], ", ")
        more = f" and {len(thin) - MOST_NAMED} more" if len(thin) > MOST_NAMED else ""
        text.append(
            [
                "  Fewer than ",
                f"{FEW_LANGUAGE_DOCUMENTS} held-out documents stand behind the numbers for ",
                names,
                f"{more}: treat them as untested.",
            ]
        )
    return text


def _limit_of_sources(run: Run) -> object:
    kept = [
        (name, f.number("bytes") or 0) for name, f in run.metrics("documents").items("by_source")
    ]
    total = sum(n for _, n in kept)
    if not total:
        return None
    name, largest = max(kept, key=lambda item: item[1])
    return [
        f"{percent(largest / total)} of the kept text comes from the largest source, ",
        foreign(name),
        ".",
    ]


def _limit_of_validation(run: Run) -> str | None:
    evaluate = run.metrics("evaluate")
    held_out = evaluate.number("val_bpb", "num_documents")
    if held_out is None:
        return None
    rough = ", so that even the interval is rough" if held_out < FEW_VALIDATION_DOCUMENTS else ""
    return (
        f"The validation documents ({count(held_out)}{rough}) come from the same sources as the"
        f" training documents: {fixed(evaluate.number('val_bpb', 'value'))} bits per byte says"
        " nothing about other text."
    )


def _limit_of_privacy(run: Run) -> str | None:
    types = run.metrics("pii").items("types")
    if not types:
        return None
    spans = sum(f.number("spans") or 0 for _, f in types)
    return (
        f"{plural(spans, 'passage')} of personal data were replaced, by patterns and checksums. "
        "Names, and whatever no pattern describes, are still there and may be reproduced."
    )


def _limit_of_duplicates(run: Run) -> str | None:
    dedup = run.metrics("dedup")
    threshold = dedup.number("lsh", "threshold")
    if threshold is None:
        return None
    dropped = numbers(run.counters("dedup").group("dropped"))
    removed = sum(n for reason, n in dropped.items() if reason.endswith("_DUPLICATE"))
    of_read = share(removed, run.documents_read)
    return (
        f"Near-duplicates from a similarity of {threshold:g} on were removed ({of_read} of what was"
        " read); shorter shared passages remain, and what repeats can be memorised."
    )
