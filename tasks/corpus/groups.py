"""Names the group that a document belongs to by a text of its metadata, as the repository of code.

Columns in: `metadata`, JSON objects. Out: `group_id`, 128 bits of a hash of the text, so that
groups are equal across sources and parts; null where a document has no such text.
"""

from __future__ import annotations

import functools
import hashlib

import pyarrow as pa

from llm_core.printing import get_logger
from tasks.corpus.documentset import ID
from tasks.corpus.metadata import text_under

logger = get_logger("tasks.corpus.groups")

GROUP_COLUMN = "group_id"


def group_ids(metadata: pa.ChunkedArray | pa.Array, key: str) -> pa.Array:
    """The group of each document under a metadata key."""
    return pa.array([_digest(text_under(one, key)) for one in metadata.to_pylist()], ID)


def warn_without_groups(groups: pa.ChunkedArray, setting: str, key: str | None) -> None:
    """Say it where no document has the key, which may be misspelt."""
    if groups.null_count == len(groups) > 0:
        logger.warning("%s (%s) makes no group: no document has it in its metadata", setting, key)


@functools.lru_cache(1 << 16)
def _digest(text: str | None) -> bytes | None:
    return (
        hashlib.blake2b(text.encode(), digest_size=16, person=b"group").digest() if text else None
    )
