"""A withdrawn document is in nothing that is made from then on, and the store can be cleared of
it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows import cli
from flows.commands.unused import needed, remove, unused
from flows.run import Run
from llm_core.config import ConfigError
from tests.support.nights import TINY, Nights, kept, part_names

SECRET = "xylophonist"
"""A word that occurs in the withdrawn document only."""


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    nights = Nights(tmp_path, [*TINY, "dedup=indexed"])
    for i in range(2):
        nights.write(f"a{i}", i)
    file = nights.folder / "a0.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[3]["text"] += f" {SECRET}"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "gone.txt").write_text("a0-3\n")
    return nights


def remove_list(nights: Nights) -> str:
    return f"source.remove={nights.root / 'gone.txt'}"


def holders(folder: Path, document_id: bytes) -> set[str]:
    """Files below a folder that hold the document's id or its word, but for the lists of dropped
    records."""
    found = set()
    for path in (p for p in folder.rglob("*") if p.is_file() and p.name != "dropped.parquet"):
        if any(document_id in piece or SECRET.encode() in piece for piece in _pieces(path)):
            found.add(str(path.relative_to(folder)))
    return found


def _pieces(path: Path) -> Iterator[bytes]:
    if path.suffix not in (".parquet", ".arrow"):
        yield path.read_bytes()
        return
    if path.suffix == ".parquet":
        table = pq.read_table(path)
    else:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    for column in table.columns:
        for chunk in column.chunks:
            yield from (buffer.to_pybytes() for buffer in chunk.buffers() if buffer is not None)


def new_artifacts(before: Run, after: Run) -> list[Path]:
    old = {a.path for a in before.artifacts.values()}
    return [a.path for a in after.artifacts.values() if a.path not in old]


def test_a_withdrawn_document_is_in_no_artifact_from_then_on(nights: Nights) -> None:
    first = nights.refresh()
    (document_id,) = (i for i, text in kept(first.artifacts).items() if SECRET in text)
    with_it = {a.stage for a in first.artifacts.values() if holders(a.path, document_id)}
    assert with_it >= {"ingest", "quality", "dedup", "pii", "documents", "shards"}
    second = nights.refresh(remove_list(nights))
    assert {p.parent.name for p in new_artifacts(first, second)} >= with_it
    for path in new_artifacts(first, second):
        assert holders(path, document_id) == set(), path
    assert set(kept(second.artifacts)) == set(kept(first.artifacts)) - {document_id}
    assert second.artifacts["ingest"].counters["dropped"]["WITHDRAWN"] == 1


def test_only_the_file_of_a_withdrawn_document_is_worked_on_again(nights: Nights) -> None:
    first = nights.refresh("refresh.tokenizer=first")
    second = nights.refresh("refresh.tokenizer=first", remove_list(nights))
    for stage in ("language", "quality", "pii"):
        before, after = ({*run.artifacts[stage].record["parts"]} for run in (first, second))
        assert len(after - before) * 2 == len(after), stage


def test_gc_leaves_nothing_of_a_withdrawn_document_and_all_that_the_last_run_needs(
    nights: Nights,
) -> None:
    first = nights.refresh()
    (document_id,) = (i for i, text in kept(first.artifacts).items() if SECRET in text)
    second = nights.refresh(remove_list(nights))
    store = second.store
    assert holders(store.root, document_id)
    found = unused(store, needed(store, 1))
    assert {item.kind for item in found} == {"artifact", "part"}
    remove(found)
    assert holders(store.root, document_id) == set()
    again = nights.refresh(remove_list(nights))
    assert all(outcome.cached for outcome in again.outcomes.values())
    parts = {stage: part_names(again, stage) for stage in ("ingest", "documents", "shards")}
    forced = nights.refresh(remove_list(nights), "force=[ingest,documents,shards]")
    assert {stage: part_names(forced, stage) for stage in parts} == parts, "no part was missing"


@pytest.mark.parametrize("setting", ["dedup.index", "shards.earlier"])
def test_what_a_run_continues_from_may_hold_no_withdrawn_document(
    nights: Nights, setting: str
) -> None:
    first = nights.refresh()
    stage = setting.partition(".")[0]
    continued = f"{setting}={first.artifacts[stage].path}"
    (nights.folder / "a0.jsonl").unlink()
    nights.write("b", 5)
    with pytest.raises(ConfigError, match=rf"names what {setting} \(.*has read: a0-3; give"):
        nights.refresh("refresh.tokenizer=first", continued, remove_list(nights))
    (nights.root / "gone.txt").write_text("b-1\n")
    nights.refresh("refresh.tokenizer=first", continued, remove_list(nights))


@pytest.mark.slow
def test_gc_keeps_parts_while_a_run_that_uses_their_folder_is_not_finished(nights: Nights) -> None:
    nights.refresh()
    nights.write("b", 5)
    with pytest.raises(KeyboardInterrupt):
        nights.stop_after("documents")
    nights.write("b", 6)
    run = nights.refresh()

    def stages_with_unused_parts(keep: int) -> set[str]:
        found = [
            item.path for item in unused(run.store, needed(run.store, keep)) if item.kind == "part"
        ]
        return {path.parent.parent.name for path in found}

    assert "shards" not in stages_with_unused_parts(2), "the stopped run may yet need them"
    assert "shards" in stages_with_unused_parts(1)


def explain(
    nights: Nights, capsys: pytest.CaptureFixture[str], what: str, *more: str
) -> tuple[int, str]:
    capsys.readouterr()
    code = cli.main(["explain", what, *nights.places, *more])
    out, err = capsys.readouterr()
    return code, out + err


def test_explain_says_when_a_document_was_withdrawn(
    nights: Nights, capsys: pytest.CaptureFixture[str]
) -> None:
    nights.refresh()
    withdrawn = nights.refresh(remove_list(nights))
    nights.write("b", 5)
    last = nights.refresh(remove_list(nights))
    code, said = explain(nights, capsys, "a0-3")
    assert code == 0 and "dropped by ingest: WITHDRAWN" in said and SECRET not in said
    assert f"withdrawn     by run {withdrawn.record.run_id}   {withdrawn.record.started_at}" in said
    remove(unused(last.store, needed(last.store, 1)))
    _, said = explain(nights, capsys, "a0-3")
    assert f"by run {last.record.run_id} or an earlier one" in said
    _, as_json = explain(nights, capsys, "a0-3", "--json")
    assert json.loads(as_json)["withdrawn"]["or_earlier"] is True


@pytest.mark.slow
def test_explain_names_the_last_run_that_had_a_document(
    nights: Nights, capsys: pytest.CaptureFixture[str]
) -> None:
    first = nights.refresh()
    (nights.folder / "a0.jsonl").unlink()
    nights.refresh()
    code, said = explain(nights, capsys, "a0-5")
    assert code == 2 and f"run {first.record.run_id} is the last that had it" in said
    code, said = explain(nights, capsys, "a0-5", f"run={first.record.run_id}")
    assert code == 0 and "source_id a0-5" in said


def test_explain_takes_a_file_and_says_what_became_no_document(
    nights: Nights, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = nights.folder / "odd.jsonl"
    odd.write_text('{"text": broken\n{"id": "blank", "text": " "}\n{"id": "x", "text": "a b"}\n')
    (nights.folder / "notes.bin").write_text("?")
    nights.refresh("source.max_bad_frac=0.5")
    for name in ("odd.jsonl", str(odd)):
        code, said = explain(nights, capsys, name)
        assert code == 0 and "file odd.jsonl" in said
        assert "quarantined   1   broken JSON" in said and "dropped       1   EMPTY" in said
        assert "line 1, byte 0" in said
    assert "every record of it became a document" in explain(nights, capsys, "a1.jsonl")[1]
    assert "skipped: unsupported format" in explain(nights, capsys, "notes.bin")[1]
    assert explain(nights, capsys, "xodd.jsonl")[0] == 2, "only whole names"
