"""Input that changes under a run gives no artifact of the planned key."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import pytest

from llm_core.config import ConfigError
from tasks.ingest import stage
from tasks.ingest.sources import SourceConfig
from tasks.ingest.stage import ingest, list_parts
from tasks.runtime.artifact import Artifact
from tasks.runtime.execute import make_artifact
from tasks.runtime.inputs import InputDigests
from tasks.runtime.parts import PartRunner
from tasks.runtime.plan import make_nodes, make_plan
from tasks.runtime.stage import StageFailure
from tasks.runtime.store import Store
from tests.support.data.make_artifacts import empty_dir, read_documents, write_jsonl


def test_file_that_changes_while_it_is_read_is_kept_under_no_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [
        write_jsonl(tmp_path / "in" / name, [{"text": name}]) for name in ("a.jsonl", "b.jsonl")
    ]
    config = SourceConfig(name="s", paths=(str(tmp_path / "in"),))
    read = stage.read_streams

    def read_and_append(file: BinaryIO, *arguments: Any) -> Any:
        if file.name == str(files[1]):
            with files[1].open("a") as more:
                more.write('{"text": "more"}\n')
        return read(file, *arguments)

    runner = PartRunner(parts_dir=tmp_path / "parts")
    with (
        monkeypatch.context() as patch,
        pytest.raises(StageFailure, match=r"b\.jsonl changed while it was read"),
    ):
        patch.setattr(stage, "read_streams", read_and_append)
        ingest(empty_dir(tmp_path / "o1"), config, runner)
    assert [p.name for p in (tmp_path / "parts").glob("[!.]*")] == [list_parts(config)[0].digest]
    assert len(read_documents(ingest(empty_dir(tmp_path / "o2"), config, runner))) == 3


@pytest.mark.parametrize(
    "harm",
    [lambda file: file.write_text('{"text": "other"}'), Path.unlink],
    ids=["changed", "gone"],
)
@pytest.mark.parametrize("early", [False, True], ids=["late", "early"])
def test_input_that_changes_after_the_plan_gives_no_artifact_of_that_key(
    harm: Any, early: bool, tmp_path: Path
) -> None:
    store, file = (
        Store(tmp_path / "store"),
        write_jsonl(tmp_path / "list" / "a.jsonl", [{"text": "a"}]),
    )
    config = SourceConfig(
        name="s", paths=(str(write_jsonl(tmp_path / "b.jsonl", [{"text": "b"}])), str(file))
    )
    (step,) = make_plan(
        store,
        make_nodes("ingest", {"ingest": config}, InputDigests(store.digests_file), ""),
        "ingest",
    ).steps

    def harmed(*arguments: Any) -> Artifact:
        if early:
            harm(file)
        made = ingest(*arguments)
        if not early:
            harm(file)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "ingest", harmed)
        with pytest.raises(
            (StageFailure, ConfigError), match=r"a\.jsonl (changed|was removed|does not exist)"
        ):
            make_artifact(store, step, {}, config, PartRunner(), print)
    assert store.find("ingest", step.node.key) is None
