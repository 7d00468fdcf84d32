"""Keeps the turns of a chat as byte spans over the text of its document.

The text of a chat is the contents of its turns, with a blank line between them. Judges see that and
nothing else: no roles, no template. The column `turns`, list<struct<role, start, end>> with UTF-8
offsets, is last in files of documents that hold a chat, null for other documents, and absent from
all other files.

A pair of answers is such a chat whose last two turns answer the same turns before them. Their roles
are `CHOSEN` and `REJECTED`, so both are judged, edited and dropped together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.corpus.documentset import one_chunk

TURNS_COLUMN = "turns"
TURNS = pa.list_(pa.struct([("role", pa.string()), ("start", pa.int64()), ("end", pa.int64())]))
SEPARATOR = "\n\n"
ASSISTANT = "assistant"
CHOSEN, REJECTED = "chosen", "rejected"
"""Roles of the two answers of a pair; both are the assistant's."""
PAIR = (CHOSEN, REJECTED)


def has_turns(file: str | Path) -> bool:
    """Whether a file of documents has the column."""
    return TURNS_COLUMN in pq.read_schema(file).names


def join_turns(turns: Sequence[tuple[str, str]]) -> tuple[str, list[dict[str, Any]]]:
    """(text, spans) of turns given as (role, content)."""
    spans, at = [], 0
    for role, content in turns:
        end = at + len(content.encode())
        spans.append({"role": role, "start": at, "end": end})
        at = end + len(SEPARATOR)
    return SEPARATOR.join(content for _, content in turns), spans


def messages_of(text: str, turns: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The turns as messages with `role` and `content`."""
    encoded = text.encode()
    return [
        {"role": turn["role"], "content": encoded[turn["start"] : turn["end"]].decode()}
        for turn in turns
    ]


def branches_of(
    messages: Sequence[Mapping[str, str]],
) -> tuple[list[dict[str, str]], list[dict[str, str]]] | None:
    """A pair as two chats, with the chosen and with the rejected answer; None for other chats."""
    answers = {m["role"]: {**m, "role": ASSISTANT} for m in messages if m["role"] in PAIR}
    if not answers:
        return None
    prompt = [dict(message) for message in messages if message["role"] not in PAIR]
    return [*prompt, answers[CHOSEN]], [*prompt, answers[REJECTED]]


def spans_of(turns: pa.ChunkedArray | pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """(int64 (turns,) document of each turn, int64 (turns, 2) its start and end)."""
    column = one_chunk(turns)
    flat = column.flatten()
    spans = np.stack([flat.field(name).to_numpy() for name in ("start", "end")], axis=1)
    return column.value_parent_indices().to_numpy(), spans


def with_spans(turns: pa.ChunkedArray | pa.Array, spans: np.ndarray) -> pa.Array:
    """The same turns at other places."""
    column = one_chunk(turns)
    flat = column.flatten()
    places = [pa.array(np.ascontiguousarray(spans[:, k]), pa.int64()) for k in (0, 1)]
    moved = pa.StructArray.from_arrays([flat.field("role"), *places], fields=list(TURNS.value_type))
    lengths = column.value_lengths().fill_null(0).to_numpy()
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, moved, mask=column.is_null())
