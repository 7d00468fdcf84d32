"""Turns of a chat stay where their text is, whatever is cut and replaced around them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tasks.contamination.config import ContaminationConfig
from tasks.contamination.stage import find_contamination
from tasks.corpus.documentset import ID, write_table
from tasks.corpus.turns import messages_of
from tasks.documents.config import DocumentsConfig
from tasks.documents.stage import write_documents
from tasks.ingest.sources import InputConfig, SourceConfig
from tasks.ingest.stage import ingest
from tasks.runtime.artifact import Artifact
from tests.support.data.make_artifacts import (
    CUTS,
    SPANS,
    empty_dir,
    make_sidecar,
    read_documents,
    write_jsonl,
)

ADDRESS, LINE = "me@example.org", "Cut me.\n"


def chat(question: str, answer: str) -> dict[str, Any]:
    contents = ("user", question), ("assistant", answer)
    return {"messages": [{"role": role, "content": content} for role, content in contents]}


def all_of(text: str, found: str, **more: str) -> list[dict[str, Any]]:
    start = text.encode().find(found.encode())
    edit = {"start": start, "end": start + len(found.encode()), **more}
    return [] if start < 0 else [edit]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Chats of one source with an address and a line to cut, and plain texts of another."""
    folder = tmp_path_factory.mktemp("chats")
    records = [chat(f"Grüße {n} {ADDRESS} {LINE}{ADDRESS}?", f"{LINE}Yes {n}.") for n in range(8)]
    write_jsonl(folder / "chat" / "a.jsonl", [*records, chat("What?", LINE)])
    write_jsonl(folder / "web" / "a.jsonl", [{"text": f"{LINE}Plain {n}."} for n in range(8)])
    sources = {
        "chat": InputConfig(paths=(str(folder / "chat"),), text_kind="chat"),
        "web": InputConfig(paths=(str(folder / "web"),)),
    }
    ingested = ingest(empty_dir(folder / "ingest"), SourceConfig(sources=sources))
    rows = read_documents(ingested)
    ids, texts = [row["id"] for row in rows], [row["text"] for row in rows]
    yes = ("kept", pa.bool_(), [True] * len(rows))
    sizes = ("num_bytes", pa.int64(), [len(text.encode()) for text in texts])
    cuts = [all_of(text, LINE) for text in texts]
    spans = [all_of(text, ADDRESS, type="EMAIL", replacement="<E>") for text in texts]
    columns = {
        "language": [("language", pa.string(), ["en"] * len(rows))],
        "quality": [sizes, ("drops", pa.uint64(), [0] * len(rows)), yes],
        "dedup": [
            ("family_id", ID, ids),
            ("cluster_size", pa.int32(), [1] * len(rows)),
            yes,
            ("reason", pa.string(), [None] * len(rows)),
            ("cuts", CUTS, cuts),
        ],
        "pii": [("spans", SPANS, spans), yes],
    }
    sidecars = {n: make_sidecar(ingested, n, folder / n, some) for n, some in columns.items()}
    sidecars["quality"].metrics["rules"] = []
    pairs = {name: pa.array([], ID) for name in ("a", "b")}
    pairs |= {"jaccard": pa.array([], pa.float64()), "removed": pa.array([], pa.bool_())}
    write_table(pa.table(pairs), sidecars["dedup"].path / "pairs.parquet")
    clean = find_contamination(ingested, empty_dir(folder / "contamination"), ContaminationConfig())
    return write_documents(
        ingested,
        **sidecars,
        contamination=clean,
        out_dir=empty_dir(folder / "documents"),
        config=DocumentsConfig(validation_frac=0.2),
    )


def test_turns_are_those_of_the_edited_text(made: Artifact) -> None:
    found = {
        tuple(message["content"] for message in messages_of(row["text"], row["turns"]))
        for row in read_documents(made)
        if row["source"] == "chat"
    }
    assert found == {(f"Grüße {n} <E> {ADDRESS}?", f"{LINE}Yes {n}.") for n in range(8)}


def test_a_chat_with_a_turn_that_cuts_emptied_is_dropped(made: Artifact) -> None:
    assert made.counters["dropped"] == {"EMPTIED": 1}


def test_files_of_plain_texts_have_no_turns(made: Artifact) -> None:
    plain = [row for row in read_documents(made) if row["source"] == "web"]
    assert len(plain) == 8 and not any("turns" in row for row in plain)


def test_judges_see_the_contents_of_turns_alone(made: Artifact) -> None:
    for row in read_documents(made):
        assert "assistant" not in row["text"] and "user" not in row["text"]
