"""A withdrawn record is dropped by its id before its text is read."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from llm_core.config import ConfigError
from tasks.ingest.sources import SourceConfig
from tasks.ingest.stage import ingest, ingest_file, list_parts
from tasks.ingest.withdrawn import WITHDRAWN, read_withdrawn
from tasks.runtime.artifact import Artifact, check_accounting
from tasks.runtime.stage import StageFailure
from tests.support.data.make_artifacts import empty_dir, read_documents, write_jsonl


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_jsonl(
        tmp_path / "in" / "a.jsonl",
        [{"id": f"doc {i}", "text": f"text {i}"} for i in range(5)] + [{"id": "void", "text": " "}],
    )
    return tmp_path


def read(folder: Path, *names: str) -> Artifact:
    remove = None
    if names:
        remove = folder / "gone.txt"
        remove.write_text("\n".join(names))
    config = SourceConfig(paths=(str(folder / "in"),), remove=remove)
    return ingest(empty_dir(folder / f"out{len(list(folder.iterdir()))}"), config)


def ids(artifact: Artifact) -> dict[str, str]:
    return {row["source_id"]: row["id"].hex() for row in read_documents(artifact)}


def test_either_id_withdraws_a_record_and_the_others_stay_as_they_are(folder: Path) -> None:
    all_ids = ids(read(folder))
    left = read(folder, "doc 3", f"  {all_ids['doc 1'].upper()}\r", "", "")
    assert ids(left) == {k: v for k, v in all_ids.items() if k not in ("doc 1", "doc 3")}
    check_accounting("ingest", left.counters)
    assert left.counters["dropped"] == {"EMPTY": 1, "EXCLUDED": 0, WITHDRAWN: 2}
    rows = pq.read_table(left.file("dropped.parquet")).to_pylist()
    gone = {r["source_id"]: r["id"].hex() for r in rows if r["reason"] == WITHDRAWN}
    assert gone == {name: all_ids[name] for name in ("doc 1", "doc 3")}
    assert not any(b"text 3" in file.read_bytes() for file in left.path.rglob("*.parquet"))


def test_name_is_an_id_of_ours_in_any_case_and_one_of_the_source_as_written(folder: Path) -> None:
    name = "AB" * 16
    (folder / "list").write_text(name)
    withdrawn = read_withdrawn(folder / "list")
    assert not withdrawn.has(bytes(16), name.lower()) and withdrawn.unknown == [name]
    assert withdrawn.has(bytes(16), name) and withdrawn.has(bytes.fromhex(name), None)
    assert withdrawn.unknown == []


def test_names_that_no_record_has_are_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = read(folder, "doc 2", "void", "nobody", "no one").metrics["withdrawn"]
    assert found == {"found": 2, "unknown": 2, "examples": ["no one", "nobody"]}
    assert "not in the source (2): no one, nobody" in caplog.text


def test_order_and_repeats_in_the_list_cost_no_new_part_and_other_names_do(folder: Path) -> None:
    def digests(*names: str) -> list[str]:
        (folder / "gone.txt").write_text("\n".join(names))
        config = SourceConfig(paths=(str(folder / "in"),), remove=folder / "gone.txt")
        return [part.digest for part in list_parts(config)]

    without = [part.digest for part in list_parts(SourceConfig(paths=(str(folder / "in"),)))]
    assert digests("a", "b") == digests("b", "a", "b", "") != digests("a")
    assert digests() == without, "an empty list is none"


def test_a_list_that_changes_while_the_source_is_read_makes_no_part(folder: Path) -> None:
    (folder / "gone.txt").write_text("doc 1")
    config = SourceConfig(paths=(str(folder / "in"),), remove=folder / "gone.txt")
    part = list_parts(config)[0]
    (folder / "gone.txt").write_text("doc 1\ndoc 2")
    with pytest.raises(StageFailure, match=r"gone\.txt changed while the source was read"):
        ingest_file(part, empty_dir(folder / "part"), config)


def test_the_list_is_an_input_of_the_key_under_a_name_that_no_file_has(folder: Path) -> None:
    (folder / "gone.txt").write_text("doc 1")
    config = SourceConfig(paths=(str(folder / "in"),), remove=folder / "gone.txt")
    assert set(config.input_files()) == {"a.jsonl", "/source.remove"}
    assert set(config.data_files()) == {"a.jsonl"}


def test_a_list_that_cannot_be_read_is_one_line(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"source\.remove \(.*none\.txt\) is not a file"):
        SourceConfig(paths=(str(folder),), remove=folder / "none.txt").input_files()
    (folder / "gone.txt").write_bytes(b"doc\xff")
    with pytest.raises(ConfigError, match="is not UTF-8 at byte 3; write one id a line"):
        list_parts(SourceConfig(paths=(str(folder / "in"),), remove=folder / "gone.txt"))
