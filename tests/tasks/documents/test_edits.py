"""Edits of texts: the kernel against a slow reading of the same rules, and what it refuses."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.documents.edits import collect_edits, edit_texts, move_spans
from tasks.documents.verdicts import EDIT, edits_column
from tasks.runtime.artifact import ArtifactMismatch

Edit = dict[str, object]
CUT, SPAN, MASK = range(3)


def apply(
    texts: list[str], cuts: list[list[Edit]], spans: list[list[Edit]], masks: list[list[Edit]]
) -> tuple[list[str], list[bool]]:
    columns = [pa.chunked_array([pa.array(rows, EDIT)]) for rows in (cuts, spans, masks)]
    edited, emptied = edit_texts(
        pa.chunked_array([pa.array(texts, pa.large_string())]), collect_edits(*columns), "the test"
    )
    edited.validate(full=True)
    return edited.to_pylist(), emptied.tolist()


def slowly(text: str, cuts: list[Edit], spans: list[Edit], masks: list[Edit]) -> str:
    """Byte by byte, from sets: what is cut, and connected ranges of replaced bytes."""
    data = text.encode()
    cut = {i for edit in cuts for i in range(edit["start"], edit["end"])}
    replacing = sorted(
        (
            e["start"],
            e["end"],
            kind,
            e["replacement"] if kind == SPAN and e["replacement"] is not None else f"<{e['type']}>",
            n,
        )
        for kind, edits in ((SPAN, spans), (MASK, masks))
        for n, e in enumerate(edits)
    )
    ranges: list[list[tuple]] = []
    for edit in replacing:
        if ranges and edit[0] < max(e[1] for e in ranges[-1]):
            ranges[-1].append(edit)
        else:
            ranges.append([edit])
    tags, replaced = {}, set()
    for members in ranges:
        covered = set(range(members[0][0], max(e[1] for e in members)))
        replaced |= covered
        if not covered <= cut:
            tags[members[0][0]] = min(members, key=lambda e: (e[2], e[0]))[3]
    out = b""
    for i in range(len(data)):
        out += tags.get(i, "").encode()
        if i not in cut | replaced:
            out += data[i : i + 1]
    return out.decode()


@st.composite
def edited_text(draw: st.DrawFn) -> tuple[str, list[Edit], list[Edit], list[Edit]]:
    text = draw(st.text("ab é漢😀\n", max_size=14))
    borders = [len(text[:i].encode()) for i in range(len(text) + 1)]

    def edits(named: bool, most: int) -> list[Edit]:
        found: dict[int, Edit] = {}
        for _ in range(draw(st.integers(0, most)) if len(text) else 0):
            low = draw(st.integers(0, len(text) - 1))
            high = draw(st.integers(low + 1, len(text)))
            # One edit per start and kind: which of two is the first is then a matter of their
            # places alone.
            found[low] = {
                "start": borders[low],
                "end": borders[high],
                "type": draw(st.sampled_from("XY")),
                "replacement": None,
                "reason": None,
            }
            if named:
                found[low]["replacement"] = draw(st.sampled_from([None, "", "#é"]))
        return list(found.values())

    return text, edits(False, 4), edits(True, 3), edits(False, 3)


@settings(max_examples=300, deadline=None)
@given(st.lists(edited_text(), min_size=1, max_size=4), st.integers(0, 9))
def test_edits_are_those_of_a_slow_reading_of_the_rules_in_any_order(documents, seed) -> None:
    shuffled = [[list(edits) for edits in document[1:]] for document in documents]
    for document in shuffled:
        for edits in document:
            random.Random(seed).shuffle(edits)
    texts = [document[0] for document in documents]
    edited, emptied = apply(texts, *map(list, zip(*shuffled, strict=True)))
    assert edited == [slowly(*document) for document in documents]
    for text, document, empty in zip(edited, documents, emptied, strict=True):
        assert empty == (bool(document[1]) and not text.strip())


def test_cuts_win_and_no_rest_of_a_span_stays() -> None:
    def edit(start: int, end: int, replacement: str | None = None) -> Edit:
        return {"start": start, "end": end, "type": "T", "replacement": replacement, "reason": None}

    text = "0123456789"
    inside, reaching, around = edit(3, 5, "S"), edit(3, 7, "S"), edit(1, 9, "S")
    for span, expected in ((inside, "0167" + "89"), (reaching, "01S789"), (around, "0S9")):
        assert apply([text], [[edit(2, 6)]], [[span]], [[]])[0] == [expected]
    # A mask and a span that overlap leave one replacement, that of the span.
    assert apply([text], [[]], [[edit(4, 6, "S")]], [[edit(2, 5)]])[0] == ["01S6789"]
    # Neighbours that only touch stay two.
    assert apply([text], [[]], [[edit(2, 4, "S"), edit(4, 6, "R")]], [[]])[0] == ["01SR6789"]


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (2, 2), (0, 99), (1, 3), (0, 2)])
def test_an_edit_that_the_text_cannot_have_is_refused(start: int, end: int) -> None:
    bad = {"start": start, "end": end, "type": "T", "replacement": None, "reason": None}
    with pytest.raises(ArtifactMismatch, match="document 1"):
        apply(["plain", "漢字"], [[], [bad]], [[], []], [[], []])


def test_columns_without_some_fields_or_with_null_lists_are_read_as_edits() -> None:
    kind = pa.list_(pa.struct([("start", pa.int64()), ("end", pa.int64()), ("type", pa.string())]))
    column = pa.array(
        [[{"start": 0, "end": 1, "type": "T"}], None, [], [{"start": 1, "end": 2, "type": "U"}]],
        kind,
    )
    table = pa.table({"spans": column}).slice(1)
    assert edits_column(table, "spans").to_pylist() == [
        [], [], [{"start": 1, "end": 2, "type": "U", "replacement": None, "reason": None}],
    ]  # fmt: skip
    assert edits_column(table, "cuts").null_count == 3


@settings(max_examples=300, deadline=None)
@given(st.lists(edited_text(), min_size=1, max_size=4), st.data())
def test_turns_move_with_the_edits_around_them(
    documents: list[tuple[str, list[Edit], list[Edit], list[Edit]]], data: st.DataObject
) -> None:
    columns = [pa.chunked_array([pa.array([d[k] for d in documents], EDIT)]) for k in (1, 2, 3)]
    edits, texts = collect_edits(*columns), [text for text, *_ in documents]
    edited, _ = edit_texts(pa.chunked_array([pa.array(texts, pa.large_string())]), edits, "x")
    of, spans = [], []
    for number, text in enumerate(texts):
        cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=3).map(sorted))
        places = [len(text[:i].encode()) for i in (0, *cuts, len(text))]
        of += [number] * (len(places) - 1)
        spans += list(pairwise(places))
    sizes = np.array([len(text.encode()) for text in texts], np.int64)
    moved = move_spans(sizes, edits, np.array(of), np.array(spans), "x")
    for number, (text, *kinds) in enumerate(documents):
        rows = np.flatnonzero(np.array(of) == number)
        whole = edited[number].as_py().encode()
        pieces = [whole[a:b].decode() for a, b in moved[rows].tolist()]
        # Turns that fill the text still do.
        assert "".join(pieces) == whole.decode()
        assert (moved[rows[1:], 0] == moved[rows[:-1], 1]).all()
        for row, piece in zip(rows.tolist(), pieces, strict=True):
            start, end = spans[row]
            if all(e["end"] <= start or e["start"] >= end for some in kinds for e in some):
                assert piece == text.encode()[start:end].decode()
