"""Writes answers about a finished run as pages of text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import indent
from typing import Any

from flows.console import table
from llm_core.printing import percent, printable, printable_line
from tasks.report.quantities import plural

MOST_ROWS = 12
EXCERPT_CHARS = 300
COPIES = {
    "SAME_URL": ", which has the same URL or survives the one that has",
    "EXACT_DUPLICATE": ", which has an equal text or survives the one that has",
}
"""What a removed document has in common with its survivor where no pair of similar documents speaks
for it."""


def describe_document(found: Mapping[str, Any]) -> str:
    """One page of text."""
    document, quality, now = found["document"], found["quality"], found["now"]
    if now["kept"]:
        verdict = (
            f"kept, in {now['split']}, read {plural(now['repeats'], 'time')} per epoch,"
            f" {now['bytes']:,} bytes after edits"
        )
    else:
        verdict = f"dropped by {now['dropped_by']}: {now['reason']}"
    lines = [
        f"document {document['id']}   run {found['run']}",
        f"  {verdict}",
        "",
        _line(
            "source",
            document["source"],
            f"source_id {document['source_id'] or '–'}",
            document["url"] or "",
        ),
        _line(
            "ingest",
            f"{document['bytes']:,} bytes",
            f"{document['file']} row {document['row']}",
            document["added_at"] or "",
        ),
        _line(
            "language",
            found["language"]["language"],
            f"score {_number(found['language']['score'])}",
        ),
        _line(
            "quality",
            "kept" if quality["kept"] else f"dropped: {quality['reason']}",
            f"{plural(len(quality['broken']), 'rule')} broken",
            f"by rules of the run{''.join(f' + {name}' for name in quality['overlays'])}",
        ),
    ]
    for rule in quality["broken"][:MOST_ROWS]:
        measured = f"{rule['feature']} {_number(rule['value'])}, wanted {_wanted(rule)}"
        lines.append(
            f"    {rule['rule']:<26} {measured}{'' if rule['drops'] else '   (recorded only)'}"
        )
    lines += _places("mask ", "type", quality["masks"])
    lines += _places("cut ", "reason", quality["cuts"])
    if found.get("scores"):
        bucket = f"bucket {quality['bucket']}" if quality["bucket"] else ""
        lines.append(
            _line(
                "scores",
                *(f"{name} {_number(value)}" for name, value in found["scores"].items()),
                bucket,
            )
        )
    lines += describe_dedup(found["dedup"], document["id"])
    if "contamination" in found:
        contamination = found["contamination"]
        words = (
            "kept" if contamination.get("kept", True) else f"dropped: {contamination.get('reason')}"
        )
        lines.append(_line("contamination", words, plural(contamination.get("num_hits", 0), "hit")))
        for hit in contamination.get("hits", [])[:MOST_ROWS]:
            lines += [f"    {line}" for line in describe_hit(hit, EXCERPT_CHARS)]
    spans = found["pii"]["spans"]
    lines.append(
        _line("pii", plural(len(spans), "span"), "" if found["pii"]["kept"] else "dropped")
    )
    lines += _places("", "type", spans)
    lines += _other_matches(found)
    lines += ["", "  text begins"]
    return f"{page(lines)}\n{indent(printable(found['excerpt']), ' ' * 4)}"


def describe_record(found: Mapping[str, Any]) -> str:
    """What is known of a record that became no document."""
    record = found["record"]
    lines = [
        f"record {record['id'] or '–'}   run {found['run']}",
        f"  {record['outcome']} by ingest: {record['reason']}",
        "",
        _line("source", record["source"], f"source_id {record['source_id'] or '–'}"),
        _line(
            "place",
            record["file"],
            f"line {_number(record['line'])}",
            f"byte {_number(record['byte_offset'])}",
        ),
        *_withdrawn(found),
        *_other_matches(found),
    ]
    return page(lines)


def describe_file(found: Mapping[str, Any]) -> str:
    """What is known of a file of the source: what of it became no document, and where."""
    file = found["file"]
    rows, name = file["records"], _on_a_line(file["name"])
    lines = [f"file {name}   run {found['run']}"]
    if not file["is_read"]:
        return page([*lines, "  skipped: unsupported format; name it with source.format"])
    if not rows:
        return page([*lines, "  every record of it became a document"])
    lines.append("  of its records these became no document:")
    lines += [_line(outcome, f"{count:,}", reason) for outcome, reason, count in file["reasons"]]
    lines += ["", f"  the first {len(rows)}:"]
    for row in rows:
        place = f"line {_number(row['line'])}, byte {_number(row['byte_offset'])}"
        named = row["source_id"] or row["id"] or ""
        lines.append(_line(row["outcome"], place, _on_a_line(row["reason"]), _on_a_line(named)))
    return page(lines)


def page(lines: Sequence[str]) -> str:
    """A page whose lines are these, whatever the data in them holds."""
    return "\n".join(printable_line(line.rstrip()) for line in lines)


def _places(what: str, name: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each piece of a document, up to MOST_ROWS."""
    return [
        f"    {what}{row[name]} at bytes {row['start']}–{row['end']}" for row in rows[:MOST_ROWS]
    ]


def _withdrawn(found: Mapping[str, Any]) -> list[str]:
    if not (when := found.get("withdrawn")):
        return []
    by = f"by run {when['run']}" + " or an earlier one" * when["or_earlier"]
    return [_line("withdrawn", by, when["at"])]


def _other_matches(found: Mapping[str, Any]) -> list[str]:
    others = found["other_matches"]
    more = f"  found {others} more with this source_id; name one by its own id"
    return ["", more] if others else []


def describe_dedup(dedup: Mapping[str, Any], document_id: str) -> list[str]:
    """Who the document went to, and what speaks for it."""
    if dedup["cluster_size"] is None:
        return [_line("dedup", "took no part")]
    role = "kept" if dedup["kept"] else f"dropped: {dedup['reason']}"
    lines = [
        _line("dedup", role, f"cluster of {dedup['cluster_size']}", f"family {dedup['family']}")
    ]
    if dedup["survivor"] != document_id:
        lines.append(f"    survivor {dedup['survivor']}{COPIES.get(dedup['reason'], '')}")
    for pair in dedup["evidence"][:MOST_ROWS]:
        other = pair["other"] if pair["preferred"] == document_id else pair["preferred"]
        whom = "it" if pair["other"] == document_id else "this"
        what = f"removed for {whom}" if pair["removed"] else "alike"
        when = ", of an earlier run" if pair["earlier"] else ""
        lines.append(f"    {other}   Jaccard {pair['jaccard']:.3f}   {what}{when}")
    return lines + _places("cut ", "reason", dedup["cuts"])


def describe_hit(hit: Mapping[str, Any], max_chars: int | None) -> list[str]:
    """An item and what the document has of it; of which document, where texts are whole."""
    answered = ", with the answer" if hit["with_answer"] else ""
    lines = [
        f"{_on_a_line(hit['suite'])}, item {_on_a_line(hit['item'])} (number {hit['number']}):"
        f" {percent(hit['item_frac'])} of its n-grams{answered}"
    ]
    if max_chars is None:
        source_id = f"   source_id {hit['source_id']}" if hit["source_id"] else ""
        lines.append(f"  document  {hit['document']}{source_id}")
    lines.append(f"  asks      {_on_a_line(hit['question'], max_chars)}")
    lines += [f"  answer    {_on_a_line(answer, max_chars)}" for answer in hit["answers"]]
    for (start, stop), text in zip(hit["spans"], hit["texts"], strict=True):
        lines.append(f"  has       {_on_a_line(text, max_chars)}   (bytes {start}–{stop})")
    return lines


def _on_a_line(text: str, max_chars: int | None = None) -> str:
    """Text of the data as a terminal may show it."""
    line = printable_line(" ".join(text.split()))
    return line if max_chars is None or len(line) <= max_chars else line[:max_chars] + " …"


def describe_replay(found: Mapping[str, Any]) -> str:
    """Tables of what changes."""
    total = found["total"]
    pieces = [
        f"replay of run {found['run']}, from stored features",
        f"{total['newly_dropped']:,} documents would go, {total['newly_kept']:,} would come back",
        table(
            ("", "now", "then", "change"),
            [_change("documents kept", total, "kept"), _change("bytes kept", total, "bytes")],
        ),
    ]
    reasons = [
        [name, f"{b:,}", f"{a:,}", f"{a - b:+,}"]
        for name, (b, a) in found["reasons"].items()
        if a or b
    ]
    if reasons:
        pieces.append(table(("first rule broken", "now", "then", "change"), reasons))
    for axis in ("source", "language"):
        counts = sorted(
            found[f"by_{axis}"].items(),
            key=lambda item: (-item[1]["newly_dropped"] - item[1]["newly_kept"], item[0]),
        )
        rows = [
            [*_change(label, c, "kept"), _change(label, c, "bytes")[-1]]
            for label, c in counts[:MOST_ROWS]
            if c["newly_dropped"] or c["newly_kept"]
        ]
        if rows:
            pieces.append(table((axis, "now", "then", "change", "bytes"), rows))
    for name, words in (("newly_dropped", "would go"), ("newly_kept", "would come back")):
        if found[name]:
            columns = (words, "source_id", "source", "language", "rule", "measured")
            pieces.append(table(columns, [_sample(row) for row in found[name]]))
    return "\n\n".join(pieces)


def _sample(row: Mapping[str, Any]) -> list[str]:
    measured = f"{row['feature']} {_number(row['value'])}, wanted {_wanted(row)}"
    known = [row[name] for name in ("source", "language", "rule")]
    return [row["id"], row["source_id"] or "–", *known, measured]


def _wanted(rule: Mapping[str, Any]) -> str:
    return f"{'≥' if rule['side'] == 'min' else '≤'} {_number(rule['threshold'])}"


def _change(what: str, total: Mapping[str, int], name: str) -> list[str]:
    before, after = total[f"{name}_before"], total[f"{name}_after"]
    return [what, f"{before:,}", f"{after:,}", f"{after - before:+,}"]


def _line(stage: str, *facts: str) -> str:
    return f"  {stage:<14}" + "   ".join(str(fact) for fact in facts if fact)


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
