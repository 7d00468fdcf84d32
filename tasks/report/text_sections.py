"""What was found in the texts: near-duplicates, personal data, and how they fall into tokens."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.corpus.statistics import wilson_interval
from tasks.definitions.pii_kinds import LABELLED
from tasks.report.charts import Bar, Series, bars, lines
from tasks.report.differences import mark_differences
from tasks.report.markup import Markup, tag
from tasks.report.page import Section, absent, amount, code, facts, figure, folded, pair, table
from tasks.report.quantities import (
    NOT_MEASURED,
    Facts,
    count,
    numbers,
    percent,
    plural,
    share,
    significant,
    size,
)
from tasks.report.run import Run

LARGEST = 20
CURVE_POINTS = 41
_DUPLICATE_KINDS = {
    "EXACT_DUPLICATE": "exact",
    "NEAR_DUPLICATE": "near",
    "SAME_URL": "by URL",
    "NOTHING_LEFT": "in every paragraph",
}


def duplicates_section(run: Run) -> Section:
    dedup, dropped = run.metrics("dedup"), numbers(run.counters("dedup").group("dropped"))
    removed = sum(dropped.values())
    kinds = ", ".join(
        f"{count(n)} {_DUPLICATE_KINDS.get(reason, reason)}"
        for reason, n in sorted(dropped.items())
    )
    judged = run.counters("quality").number("kept")
    finding = (
        f"{plural(removed, 'document')} ({share(removed, judged)} of those that passed the quality"
        " rules) repeat another one"
    )
    finding += f": {kinds}." if kinds else "."
    if run.counters("dedup").number("kept") is None:
        finding = "How many documents repeat another one was not measured in this run."
    cut_documents = run.counters("dedup").number("cut_documents")
    if cut_documents:
        cut_bytes = run.counters("dedup").number("cut_bytes")
        finding += (
            f" {count(cut_bytes)} bytes that occurred before were cut out of"
            f" {plural(cut_documents, 'document')}."
        )
    pieces = [
        _dedup_facts(dedup),
        pair(_cluster_sizes(dedup), _candidate_curve(dedup)),
        _largest_clusters(dedup),
        *_examples(run.metrics("documents")),
    ]
    return Section("duplicates", "Duplicates", finding, pieces)


def privacy_section(run: Run) -> Section:
    types = run.metrics("pii").items("types")
    if not types:
        return Section(
            "privacy", "Personal data", "No counts of personal data were measured in this run.", []
        )
    ordered = sorted(types, key=lambda item: (-(item[1].number("spans") or 0), item[0]))
    spans = sum(f.number("spans") or 0 for _, f in ordered)
    num_found = sum(bool(f.number("spans")) for _, f in ordered)
    of_types = f"{count(num_found)} of {plural(len(ordered), 'type')}"
    finding = (
        f"{plural(spans, 'passage')} of {of_types} looked for were found; kept documents have them"
        " replaced."
    )
    largest = max((f.number("spans") or 0 for _, f in ordered), default=0) or 1
    read = run.documents_read
    rows = [
        (
            code(name),
            amount(f.number("spans"), largest),
            count(f.number("documents")),
            share(f.number("documents"), read),
        )
        for name, f in ordered
    ]
    note = (
        "Passages: stretches of text that match a pattern and pass its check (a checksum, a number"
        " plan). Documents may hold several. Counted in all documents read. Names of people are not"
        " looked for."
    )
    found = table("Found by type", ("type", "passages", "documents", "of read"), rows, note)
    return Section(
        "privacy", "Personal data", finding, [found, _precision([name for name, _ in ordered])]
    )


def _precision(types: Sequence[str]) -> Markup:
    """How far a find is to be trusted, a sentence for each type."""
    sentences = []
    for name in types:
        if name not in LABELLED:
            sentences.append(f"{name}: no find has been judged.")
            continue
        right, judged = LABELLED[name]
        low, high = wilson_interval(right, judged) or (0.0, 1.0)
        sentences.append(
            f"{name}: {right} of {judged} finds were right ({right / judged:.1%}, 95 % interval"
            f" {low:.1%} to {high:.1%})."
        )
    about = (
        "Precision was not measured in this run but on the embedded corpus, where finds were judged"
        " by eye. "
    )
    return tag("p", about + " ".join(sentences), class_="note")


def tokenizer_section(run: Run) -> Section:
    tokenizer = run.metrics("tokenizer")
    held_out = tokenizer.number("bytes_per_token", "validation")
    kind = tokenizer.text("kind")
    finding = [
        f"A vocabulary of {count(tokenizer.number('vocab_size'))} tokens",
        f" ({kind})" if kind else None,
        f" cuts held-out text into tokens of {significant(held_out)} bytes on average.",
    ]
    if held_out is None:
        finding = ["How text falls into tokens was not measured in this run."]
    pieces = [
        _tokenizer_facts(tokenizer),
        _bytes_by_language(tokenizer),
        _longest_tokens(tokenizer),
        _shard_table(run),
    ]
    return Section("tokenizer", "Tokens", finding, pieces)


def _dedup_facts(dedup: Facts) -> Markup:
    candidates, verified = dedup.number("candidate_pairs"), dedup.number("verified_pairs")
    bands, rows = dedup.number("lsh", "num_bands"), dedup.number("lsh", "rows_per_band")
    banding = NOT_MEASURED if bands is None or rows is None else f"{count(bands)} × {count(rows)}"
    return facts(
        None,
        [
            ("Candidate pairs", count(candidates), "pairs that share a bucket and were compared"),
            (
                "Verified pairs",
                count(verified),
                f"similar enough when compared: {share(verified, candidates)} of the candidates",
            ),
            (
                "Families",
                count(dedup.number("families")),
                "groups of related documents, never split between training and validation",
            ),
            (
                "Similarity threshold",
                significant(dedup.number("lsh", "threshold")),
                "Jaccard similarity of word shingles from which two are one",
            ),
            (
                "Bands × rows",
                banding,
                f"of a signature with {count(dedup.number('lsh', 'num_perms'))} min-hashes",
            ),
        ],
    )


def _cluster_sizes(dedup: Facts) -> Markup:
    sizes = {
        int(k): n for k, n in numbers(dedup.group("cluster_size_histogram")).items() if k.isdigit()
    }
    sizes = {k: n for k, n in sizes.items() if n and k > 1}
    if not sizes:
        return absent("Cluster sizes", "The number of clusters by size")
    binned: dict[tuple[int, int], float] = {}
    for members, n in sorted(sizes.items()):
        low = members if members < 6 else 1 << (members.bit_length() - 1)
        high = members if members < 6 else (1 << members.bit_length()) - 1
        binned[max(low, 6) if members >= 6 else low, high] = (
            binned.get((max(low, 6) if members >= 6 else low, high), 0) + n
        )
    marks = []
    for (low, high), n in binned.items():
        name = f"{low} documents" if low == high else f"{low} to {high} documents"
        marks.append(Bar(name, n, plural(n, "cluster"), f"{plural(n, 'cluster')} of {name}"))
    note = (
        "Clusters of near-duplicates by how many documents they hold; one of each is kept. Sizes"
        " from 6 on are grouped."
    )
    return figure("Cluster sizes", lambda width: bars(marks, width), note, half=True)


def _candidate_curve(dedup: Facts) -> Markup | None:
    """How likely banding finds a pair: a property of the settings, 1 − (1 − sʳ)ᵇ (MMDS ch. 3)."""
    bands, rows, threshold = (
        dedup.number("lsh", "num_bands"),
        dedup.number("lsh", "rows_per_band"),
        dedup.number("lsh", "threshold"),
    )
    if bands is None or rows is None or bands < 1 or rows < 1:
        return None
    similarity = [i / (CURVE_POINTS - 1) for i in range(CURVE_POINTS)]
    curve = Series("probability", [(s, 1 - (1 - s**rows) ** bands) for s in similarity])
    at = (
        f" At the threshold of {threshold:g} it is {percent(1 - (1 - threshold**rows) ** bands)}."
        if threshold is not None and 0 <= threshold <= 1
        else ""
    )
    note = (
        f"Probability that a pair is compared, by its true similarity, for {count(bands)} bands of"
        f" {count(rows)} rows.{at}"
    )
    return figure(
        "What banding finds",
        lambda width: lines(
            [curve], width, x_label="Jaccard similarity", y_label="probability", from_zero=True
        ),
        note,
        half=True,
    )


def _largest_clusters(dedup: Facts) -> Markup | None:
    clusters = sorted(dedup.rows("clusters"), key=lambda c: -(c.number("size") or 0))
    if not clusters:
        return None
    rows = [
        (
            tag("code", cluster.text("survivor_id") or "–", class_="hash"),
            [
                [tag("code", str(member), class_="hash"), " "]
                for member in cluster.sequence("member_ids")
            ],
            count(cluster.number("size")),
        )
        for cluster in clusters
    ]
    note = (
        "Identifiers of documents. `textmill explain ID` shows a document, locally, with all that"
        " was measured on it."
    )
    return folded(
        f"The {len(rows)} largest clusters",
        table(None, ("kept", "some of the members", "size"), rows, note, left=2),
    )


def _examples(documents: Facts) -> list[Markup]:
    examples = [
        e for e in documents.rows("duplicate_examples") if e.text("survivor") and e.text("member")
    ]
    if not examples:
        return [absent("An example", "A pair of near-duplicates")]
    pairs = []
    for example in examples:
        survivor, member = mark_differences(
            example.text("survivor") or "", example.text("member") or ""
        )
        kept = tag("div", tag("h4", "kept"), tag("p", survivor, dir="auto"))
        pairs.append(
            tag(
                "div",
                kept,
                tag("div", tag("h4", "dropped as its duplicate"), tag("p", member, dir="auto")),
                class_="excerpts",
            )
        )
    note = (
        "Beginnings of near-duplicates, personal data replaced. Marked: words only one of the two"
        " has."
    )
    shown = [tag("h3", "Near-duplicates side by side"), pairs[0], tag("p", note, class_="note")]
    rest = folded(f"{plural(len(pairs) - 1, 'more pair')}", pairs[1:]) if pairs[1:] else None
    return [tag("div", shown, class_="tabled"), *([rest] if rest else [])]


def _tokenizer_facts(tokenizer: Facts) -> Markup:
    return facts(
        None,
        [
            (
                "Bytes per token, training",
                significant(tokenizer.number("bytes_per_token", "train")),
                "UTF-8 bytes of text per token; more is denser",
            ),
            (
                "Bytes per token, validation",
                significant(tokenizer.number("bytes_per_token", "validation")),
                "the same on text the vocabulary was not made from",
            ),
            (
                "Fertility",
                significant(tokenizer.number("fertility")),
                "tokens per word; 1 would be whole words",
            ),
            (
                "Unknown tokens",
                percent(tokenizer.number("unknown_frac")),
                "share of tokens outside the vocabulary",
            ),
            (
                "Round trip",
                percent(tokenizer.number("round_trip_frac")),
                "share of documents equal to themselves after encoding and decoding",
            ),
        ],
    )


def _bytes_by_language(tokenizer: Facts) -> Markup:
    found = [
        (name, f)
        for name, f in tokenizer.items("by_language")
        if f.number("bytes_per_token") is not None
    ]
    if not found:
        return absent("Bytes per token by language", "The density by language")
    ordered = sorted(found, key=lambda item: (-(item[1].number("documents") or 0), item[0]))
    marks = []
    for name, f in ordered[:LARGEST]:
        value, documents = (
            f.number("bytes_per_token") or 0.0,
            plural(f.number("documents"), "document"),
        )
        marks.append(
            Bar(
                name,
                value,
                significant(value),
                f"{name}: {value:.3f} bytes per token, over {documents}",
            )
        )
    more = (
        f" The {LARGEST} languages with most documents of {len(ordered)}."
        if len(ordered) > LARGEST
        else ""
    )
    note = (
        "UTF-8 bytes per token by language, most documents first. A letter takes 1 byte in"
        f" English, 2 in Greek or Russian, 3 in Chinese: compare languages of one script.{more}"
    )
    return figure("Bytes per token by language", lambda width: bars(marks, width), note)


def _longest_tokens(tokenizer: Facts) -> Markup | None:
    tokens: Sequence[object] = tokenizer.sequence("sample_tokens")
    if not tokens:
        return None
    chips = tag(
        "ul",
        [tag("li", tag("code", tag("bdi", legible_token(str(token))))) for token in tokens],
        class_="chips",
    )
    note = (
        "The longest entries of the vocabulary. Long strings that are no words hint at boilerplate"
        " that escaped the rules."
    )
    return tag(
        "div", tag("h3", "Longest tokens"), chips, tag("p", note, class_="note"), class_="tabled"
    )


def legible_token(token: str) -> str:
    """A token as a reader can tell it apart: white space by the marks editors use, counted where it
    is all there is."""
    marks = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
    if not token or token.strip():
        return token
    if len(token) > 3 and len(set(token)) == 1:
        return f"{marks.get(token[0], token[0])} ×{len(token)}"
    return "".join(marks.get(letter, letter) for letter in token)


def _shard_table(run: Run) -> Markup:
    shards = run.metrics("shards")
    splits = shards.items("splits")
    if not splits:
        return absent("Token shards", "The token counts")
    families = run.metrics("documents")
    rows = [
        (
            split,
            count(f.number("tokens")),
            count(f.number("documents")),
            count(families.number("split", split, "families")),
            size(f.number("bytes")),
            count(f.number("shards")),
        )
        for split, f in splits
    ]
    dtype = shards.text("dtype")
    note = (
        "Documents of one family (near-duplicates and their relatives) are in one split:"
        " validation text is not in training. Token ids are stored as"
        f" {dtype or 'a type that was not recorded'}."
    )
    return table(
        "Training and validation",
        ("split", "tokens", "documents", "families", "bytes of text", "shards"),
        rows,
        note,
    )
