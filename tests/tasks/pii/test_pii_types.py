"""Each type of personal data is found and tagged, and what only looks alike stays."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.corpus.documentset import text_buffers
from tasks.definitions.pii_kinds import FORM_TYPES, TYPE_NAMES
from tasks.pii.config import DEFAULT_TYPES, PiiConfig
from tasks.pii.scrub import apply_spans, scrub
from tasks.pii.spans import find_all_spans, find_spans
from tests.support.data.pii_examples import END, FOUND, KEPT, PEM, PIECES

EVERYTHING = PiiConfig(types=FORM_TYPES, addresses_in_words=True)


@pytest.mark.parametrize(("text", "want"), FOUND)
def test_each_type_is_found_and_tagged(text, want) -> None:
    assert scrub(text) == want


@pytest.mark.parametrize("text", KEPT)
def test_what_only_looks_like_a_type_stays(text) -> None:
    assert scrub(text) == text


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("john dot doe at gmail dot com, please", "<EMAIL>, please"),
        ("john [at] x.org; jane(at)mail(dot)example(dot)net", "<EMAIL>; <EMAIL>"),
        ("look at example.com or meet at the dot", "look at example.com or meet at the dot"),
        (
            "From: Jane Doe <jane@x.org>\nName: Max Müller\n",
            "From: <NAME> <<EMAIL>>\nName: <NAME>\n",
        ),
        (
            "written by Jane van Doe, jane@x.org (Jane Doe)",
            "written by Jane van Doe, <EMAIL> (<NAME>)",
        ),
        (
            "姓名：王小明\nFrom: the beginning\nName: foo",
            "姓名：<NAME>\nFrom: the beginning\nName: foo",
        ),
    ],
)
def test_addresses_in_words_and_names_are_found_where_asked_for(text, want) -> None:
    data = text.encode()
    assert apply_spans(data, find_spans(data, EVERYTHING)).decode() == want
    assert "NAME" not in DEFAULT_TYPES and not PiiConfig().addresses_in_words


def test_types_and_ids_that_are_not_asked_for_stay() -> None:
    text = b"SSN 078-05-1121, DNI 54362315K, bob@x.org"
    only = PiiConfig(types=("NATIONAL_ID",), national_ids=("ES_DNI",))
    assert [(text[s:e], k) for s, e, k in find_spans(text, only)] == [(b"54362315K", "NATIONAL_ID")]


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.lists(PIECES, max_size=8).map("".join), st.text(max_size=80), st.binary(max_size=80)
    )
)
def test_spans_of_anything_are_ordered_disjoint_and_at_character_borders(text) -> None:
    data, end = text if isinstance(text, bytes) else text.encode("utf-8"), 0
    for start, stop, kind in find_spans(
        data, PiiConfig() if isinstance(text, bytes) else EVERYTHING
    ):
        assert end <= start < stop <= len(data) and kind in TYPE_NAMES
        if not isinstance(text, bytes):
            data[:start].decode(), data[start:stop].decode()
        end = stop


def test_slice_of_a_column_has_the_spans_of_its_own_documents_only() -> None:
    texts = pa.array(
        [f"before {PEM}{END}", "jane@example.com", f"mine {PEM}{END}", f"after {PEM}{END}"],
        pa.large_string(),
    )
    part = texts.slice(1, 2)
    spans = find_all_spans(*text_buffers(part), EVERYTHING)
    alone = find_all_spans(*text_buffers(pa.array(part.to_pylist(), pa.large_string())), EVERYTHING)
    before = len(texts[0].as_py().encode())
    assert spans.documents.tolist() == alone.documents.tolist() == [0, 1]
    assert (spans.starts - before).tolist() == alone.starts.tolist()
