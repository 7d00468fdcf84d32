"""The page from above: its title, headline cards and warnings, and the order of its sections."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from tasks.report.markup import foreign
from tasks.report.page import Card, Section, page
from tasks.report.quantities import (
    NOT_MEASURED,
    Facts,
    compact,
    count,
    fixed,
    plural,
    share,
    significant,
    size,
    span,
)
from tasks.report.run import Run
from tasks.report.sections.contamination import contamination_section
from tasks.report.sections.documents import documents_section, languages_section
from tasks.report.sections.duplicates import duplicates_section
from tasks.report.sections.evaluation import evaluation_section, samples_section
from tasks.report.sections.lineage import configuration_section, lineage_section
from tasks.report.sections.mixture import mixture_section
from tasks.report.sections.model_card import model_card_section
from tasks.report.sections.planning import planning_section
from tasks.report.sections.quality import quality_section
from tasks.report.sections.scores import scores_section
from tasks.report.sections.speed import headline_cell, speed_section
from tasks.report.sections.texts import privacy_section, tokenizer_section
from tasks.report.sections.training import training_section
from tasks.report.sections.variety import variety_section


def render(run: Run, title: str, compared: Sequence[Section] = ()) -> str:
    """The page of a run. compared: what changed since the run before."""
    sections = (
        *compared,
        documents_section(run),
        scores_section(run),
        quality_section(run),
        languages_section(run),
        duplicates_section(run),
        privacy_section(run),
        contamination_section(run),
        variety_section(run),
        mixture_section(run),
        tokenizer_section(run),
        training_section(run),
        planning_section(run),
        evaluation_section(run),
        speed_section(run),
        samples_section(run),
        model_card_section(run),
        configuration_section(run),
        lineage_section(run),
    )
    cards = (
        _bpb_card(run),
        _documents_card(run),
        _tokens_card(run),
        _vocabulary_card(run),
        _speed_card(run),
    )
    shown = filter(None, sections)
    return page(title, _subtitle(run), cards, run.warnings, list(shown))


def _subtitle(run: Run) -> str:
    documents = run.metrics("documents")
    sources = documents.group("by_source") or run.metrics("ingest").group("by_source")
    languages = list(documents.group("by_language"))
    parameters = run.metrics("train").number("num_parameters")
    model = f"A model of {compact(parameters)} parameters" if parameters is not None else "A model"
    kept = plural(run.documents_kept, "document")
    subtitle = f"{model} from {kept} of {plural(len(sources) or None, 'source')}"
    if languages:
        subtitle += f" in {plural(len(languages), 'language')}"
    if len(languages) == 1:
        subtitle += Markup(": {}").format(foreign(languages[0]))
    return subtitle + "."


def _bpb_card(run: Run) -> Card:
    evaluate = run.metrics("evaluate")
    value, low, high = Facts(evaluate.group("val_bpb")).each("value", "low", "high")
    names = ("bigram", "unigram")
    baselines = [f"{name} {fixed(evaluate.number(f'{name}_bpb'))}" for name in names]
    interval = f"{run.interval_name} {span(low, high)}"
    return Card(
        "Validation bits per byte",
        fixed(value),
        ["interval not measured" if low is None else interval, " · ".join(baselines)],
        "Bits the model needs for a byte of unseen text; lower is better. The baselines only know"
        " token frequencies.",
    )


def _documents_card(run: Run) -> Card:
    read, kept = run.documents_read, run.documents_kept
    known = read is not None and kept is not None
    return Card(
        "Documents kept",
        count(kept),
        [f"{share(kept, read)} of {count(read)} read" if known else NOT_MEASURED],
        "Distinct documents that passed every rule.",
    )


def _tokens_card(run: Run) -> Card:
    held, seen = run.shard_tokens, run.seen_tokens
    num_bytes = run.metrics("shards").number("splits", "train", "bytes")
    details = [f"shards {NOT_MEASURED}"]
    if held is not None:
        of_text = f", {size(num_bytes)} of text" if num_bytes is not None else ""
        details = [f"{compact(held)} in training shards{of_text}"]
    if held and seen is not None:
        details.append(f"as many as {significant(seen / held, 2)} passes over them")
    return Card(
        "Tokens seen",
        compact(seen),
        details,
        "Pieces of text read in training; shards hold those it can learn from.",
    )


def _vocabulary_card(run: Run) -> Card:
    tokenizer = run.metrics("tokenizer")
    per_token = tokenizer.number("bytes_per_token", "validation")
    return Card(
        "Vocabulary",
        count(tokenizer.number("vocab_size")),
        [NOT_MEASURED if per_token is None else f"{significant(per_token)} bytes per token"],
        "Different tokens; bytes per token says how far one reaches in held-out text.",
    )


def _speed_card(run: Run) -> Card:
    bench, value = run.metrics("bench"), "withheld"
    detail = f"because {run.speed_withheld}"
    if not run.speed_withheld:
        value = compact(bench.number("decode_tok_s"))
        detail = f"tokens/s, median{headline_cell(bench)}"
    meaning = "New tokens per second with the key-value cache, after the prompt was read."
    return Card("Decode speed", value, [detail], meaning)
