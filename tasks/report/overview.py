"""The page from above: its title, headline cards and warnings, and the order of its sections."""

from __future__ import annotations

from tasks.report.contamination_section import contamination_section
from tasks.report.data_sections import documents_section, languages_section, rules_section
from tasks.report.evaluation_section import evaluation_section, samples_section
from tasks.report.lineage_sections import configuration_section, lineage_section
from tasks.report.markup import foreign, join, tag
from tasks.report.model_card import model_card_section
from tasks.report.page import Card, page
from tasks.report.quantities import (
    NOT_MEASURED,
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
from tasks.report.scores_section import scores_section
from tasks.report.speed_section import headline_cell, speed_section
from tasks.report.text_sections import duplicates_section, privacy_section, tokenizer_section
from tasks.report.training_section import training_section
from tasks.report.variety_section import mixture_section, variety_section


def render(run: Run, title: str) -> str:
    """The whole page as text."""
    sections = (
        documents_section(run),
        scores_section(run),
        rules_section(run),
        languages_section(run),
        duplicates_section(run),
        privacy_section(run),
        contamination_section(run),
        variety_section(run),
        mixture_section(run),
        tokenizer_section(run),
        training_section(run),
        evaluation_section(run),
        speed_section(run),
        samples_section(run),
        model_card_section(run),
        configuration_section(run),
        lineage_section(run),
    )
    return page(
        title,
        _subtitle(run),
        _cards(run),
        run.warnings,
        [section for section in sections if section is not None],
    )


def _subtitle(run: Run) -> object:
    sources = run.metrics("documents").group("by_source") or run.metrics("ingest").group(
        "by_source"
    )
    languages = list(run.metrics("documents").group("by_language"))
    parameters = run.metrics("train").number("num_parameters")
    model = f"A model of {compact(parameters)} parameters" if parameters is not None else "A model"
    kept = plural(run.documents_kept, "document")
    tongues = f" in {plural(len(languages), 'language')}" if languages else ""
    which: list[object] = [": ", foreign(languages[0])] if len(languages) == 1 else []
    return join(
        [f"{model} from {kept} of {plural(len(sources) or None, 'source')}{tongues}", *which, "."]
    )


def _cards(run: Run) -> list[Card]:
    return [
        _bpb_card(run),
        _documents_card(run),
        _tokens_card(run),
        _vocabulary_card(run),
        _speed_card(run),
    ]


def _bpb_card(run: Run) -> Card:
    evaluate = run.metrics("evaluate")
    value, low, high = (evaluate.number("val_bpb", key) for key in ("value", "low", "high"))
    baselines = [
        f"{name} {fixed(evaluate.number(f'{name}_bpb'))}" for name in ("bigram", "unigram")
    ]
    interval = (
        f"{run.interval_name} {span(low, high)}" if low is not None else "interval not measured"
    )
    return Card(
        "Validation bits per byte",
        fixed(value),
        [tag("span", interval), tag("span", " · ".join(baselines))],
        "Bits the model needs for a byte of unseen text; lower is better. The baselines only know"
        " token frequencies.",
    )


def _documents_card(run: Run) -> Card:
    read, kept = run.documents_read, run.documents_kept
    of_read = (
        NOT_MEASURED
        if read is None or kept is None
        else f"{share(kept, read)} of {count(read)} read"
    )
    return Card(
        "Documents kept",
        count(run.documents_kept),
        of_read,
        "Distinct documents that passed every rule.",
    )


def _tokens_card(run: Run) -> Card:
    held, seen = run.shard_tokens, run.seen_tokens
    num_bytes = run.metrics("shards").number("splits", "train", "bytes")
    of_text = f", {size(num_bytes)} of text" if num_bytes is not None else ""
    shards = (
        f"{compact(held)} in training shards{of_text}"
        if held is not None
        else f"shards {NOT_MEASURED}"
    )
    passes = (
        f"as many as {significant(seen / held, 2)} passes over them"
        if held and seen is not None
        else None
    )
    return Card(
        "Tokens seen",
        compact(seen),
        [tag("span", shards), tag("span", passes) if passes else None],
        "Pieces of text read in training; shards hold those it can learn from.",
    )


def _vocabulary_card(run: Run) -> Card:
    tokenizer = run.metrics("tokenizer")
    per_token = tokenizer.number("bytes_per_token", "validation")
    return Card(
        "Vocabulary",
        count(tokenizer.number("vocab_size")),
        NOT_MEASURED if per_token is None else f"{significant(per_token)} bytes per token",
        "Different tokens; bytes per token says how far one reaches in held-out text.",
    )


def _speed_card(run: Run) -> Card:
    meaning = "New tokens per second with the key-value cache, after the prompt was read."
    if run.speed_withheld:
        return Card("Decode speed", "withheld", f"because {run.speed_withheld}", meaning)
    speed = run.metrics("bench").number("decode_tok_s")
    return Card(
        "Decode speed",
        compact(speed),
        f"tokens/s, median{headline_cell(run.metrics('bench'))}",
        meaning,
    )
