"""Reads one text of a document's metadata, such as its kind or repository."""

from __future__ import annotations

import orjson


def text_under(metadata: str | None, key: str | None) -> str | None:
    """The text under a key of a JSON object; None where it is absent or not a text."""
    # Parsing the metadata of all documents costs more than looking for the key.
    if key is None or not metadata or key not in metadata:
        return None
    value = orjson.loads(metadata).get(key)
    return value if isinstance(value, str) else None
