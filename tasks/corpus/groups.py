"""Names the group that a document belongs to by a value of its metadata, as the repository of code.

Columns in: `metadata`, JSON objects. Out: `group_id`, 128 bits of a hash of the value, so that
groups are equal across sources and parts; null where a document has no such text.
"""

from __future__ import annotations

import functools
import hashlib

import orjson
import pyarrow as pa

from tasks.corpus.documentset import ID

GROUP_COLUMN = "group_id"


def group_ids(metadata: pa.ChunkedArray | pa.Array, key: str) -> pa.Array:
    """The group of each document under a metadata key."""
    return pa.array([_group_of(text, key) for text in metadata.to_pylist()], ID)


def _group_of(metadata: str | None, key: str) -> bytes | None:
    # Parsing the metadata of all documents costs more than looking for the key.
    if not metadata or key not in metadata:
        return None
    value = orjson.loads(metadata).get(key)
    return _digest(value) if isinstance(value, str) and value else None


@functools.lru_cache(1 << 16)
def _digest(value: str) -> bytes:
    return hashlib.blake2b(value.encode(), digest_size=16, person=b"group").digest()
