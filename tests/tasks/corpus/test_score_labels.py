"""Registers of documents are looked up once for equal metadata."""

from __future__ import annotations

import pyarrow as pa

from tasks.corpus.score_labels import NONE, label_table


def test_registers_of_equal_metadata_are_looked_up_once_and_given_to_all() -> None:
    metadata = [
        '{"kind":"mail"}',
        None,
        "{}",
        '{"kind":1}',
        '{"kind":"mail"}',
        '{"kind":null,"x":"kind"}',
        "",
    ]
    documents = pa.table(
        {"metadata": metadata, "source": ["s"] * 7, "text": pa.array(["é"] * 7, pa.large_string())}
    )
    table = label_table(documents, pa.chunked_array([["en"] * 7]), "kind")
    assert table["register"].to_pylist() == ["mail", NONE, NONE, NONE, "mail", NONE, NONE]
    assert label_table(documents, pa.chunked_array([["en"] * 7]), None)[
        "register"
    ].unique().to_pylist() == [NONE]
    assert table["bytes"].to_pylist() == [2] * 7
