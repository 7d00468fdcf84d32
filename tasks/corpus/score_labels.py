"""Labels documents by language, source and register, to show whom a score disfavours.

Columns `language` (as identified), `source`, `register` (text under a key of the metadata), `bytes`
of text: one row per document, so that tables of what a cut removes need neither texts nor metadata
again.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tasks.corpus.documentset import one_chunk
from tasks.corpus.metadata import text_under

LABELS_FILE = "labels.parquet"
LABELS_FOLDER = "labels"
DIMENSIONS = ("language", "source", "register")
NONE = "(none)"


def label_table(
    documents: pa.Table, languages: pa.ChunkedArray, register_key: str | None
) -> pa.Table:
    """The labels of documents that have `text, source, metadata`."""
    # Documents of one source often have the same metadata.
    metadata = one_chunk(documents["metadata"]).dictionary_encode()
    registers = pa.array(
        [text_under(one, register_key) for one in metadata.dictionary.to_pylist()], pa.string()
    )
    return pa.table(
        {
            "language": languages,
            "source": documents["source"],
            "register": pc.fill_null(registers.take(metadata.indices), NONE),
            "bytes": pc.binary_length(documents["text"]).cast(pa.int64()),
        }
    )
