"""Shows what texts are made of: personal data that was found, and how they fall into tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from llm_core.printing import percent
from tasks.corpus.statistics import wilson_interval
from tasks.definitions.pii_kinds import LABELLED
from tasks.report.charts import Mark, bars
from tasks.report.markup import amount, code
from tasks.report.page import Section
from tasks.report.quantities import Facts, count, plural, share, significant, size
from tasks.report.run import Run

MOST_LANGUAGES = 20


def privacy_section(run: Run) -> Section:
    types = run.metrics("pii").largest_first("types", by=["spans"])
    if not types:
        finding = "No counts of personal data were measured in this run."
        return Section("privacy", "Personal data", finding)
    found = [n for _, facts in types if (n := facts.number("spans"))]
    finding = (
        f"{plural(sum(found), 'passage')} of {count(len(found))} of {plural(len(types), 'type')}"
        " looked for were found; kept documents have them replaced."
    )
    rows = []
    for name, facts in types:
        documents = facts.number("documents")
        bar = amount(facts.number("spans"), max(found, default=0))
        rows.append((code(name), bar, count(documents), share(documents, run.documents_read)))
    by_model = run.metrics("pii").sequence("ner_types")
    values = {"types": rows, "precision": _precision([name for name, _ in types], by_model)}
    return Section("privacy", "Personal data", finding, values)


def _precision(types: Sequence[str], by_model: Sequence[str]) -> str:
    """How far a find is to be trusted, a sentence for each type. What a given model found has not
    been judged here."""
    sentences = []
    for name in types:
        if name not in LABELLED or name in by_model:
            sentences.append(f"{name}: no find has been judged.")
            continue
        right, judged = LABELLED[name]
        low, high = wilson_interval(right, judged) or (0.0, 1.0)
        sentences.append(
            f"{name}: {right} of {judged} finds were right ({percent(right / judged, '.1')}, 95 %"
            f" interval {percent(low, '.1')} to {percent(high, '.1')})."
        )
    return " ".join(sentences)


def tokenizer_section(run: Run) -> Section:
    tokenizer, shards = run.metrics("tokenizer"), run.metrics("shards")
    held_out = tokenizer.number("bytes_per_token", "validation")
    kind = tokenizer.text("kind")
    finding = (
        f"A vocabulary of {count(tokenizer.number('vocab_size'))} tokens"
        f"{f' ({kind})' if kind else ''} cuts held-out text into tokens of"
        f" {significant(held_out)} bytes on average."
    )
    if held_out is None:
        finding = "How text falls into tokens was not measured in this run."
    splits = []
    for split, facts in shards.items("splits"):
        families = run.metrics("documents").number("split", split, "families")
        counts = (facts.number("tokens"), facts.number("documents"), families)
        num_bytes, num_shards = size(facts.number("bytes")), count(facts.number("shards"))
        splits.append((split, *map(count, counts), num_bytes, num_shards))
    tokens = tokenizer.sequence("sample_tokens")
    values = {
        "tokenizer": tokenizer,
        **_bytes_by_language(tokenizer),
        "tokens": [legible_token(str(token)) for token in tokens],
        "splits": splits,
        "dtype": shards.text("dtype") or "a type that was not recorded",
    }
    return Section("tokenizer", "Tokens", finding, values)


def _bytes_by_language(tokenizer: Facts) -> dict[str, object]:
    marks = []
    for name, facts in tokenizer.largest_first("by_language"):
        if (value := facts.number("bytes_per_token")) is not None:
            documents = plural(facts.number("documents"), "document")
            title = f"{name}: {value:.3f} bytes per token, over {documents}"
            marks.append(Mark(name, value, significant(value), title))
    more = ""
    if len(marks) > MOST_LANGUAGES:
        more = f" The {MOST_LANGUAGES} languages with most documents of {len(marks)}."
    chart = partial(bars, marks[:MOST_LANGUAGES]) if marks else None
    return {"by_language": chart, "by_language_more": more}


def legible_token(token: str) -> str:
    """A token as a reader can tell it apart: white space by the marks editors use, counted where it
    is all there is."""
    marks = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
    if not token or token.strip():
        return token
    if len(token) > 3 and len(set(token)) == 1:
        return f"{marks.get(token[0], token[0])} ×{len(token)}"
    return "".join(marks.get(letter, letter) for letter in token)
