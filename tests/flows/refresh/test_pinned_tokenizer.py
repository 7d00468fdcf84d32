"""A series keeps the tokenizer of an earlier night, and encodes only what is new."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flows.compose import compose
from flows.refresh.series import require_kept
from flows.run import Run, decide
from llm_core.config import ConfigError
from tasks.runtime.artifact import Artifact
from tasks.runtime.plan import Plan, Step
from tasks.runtime.store import Node
from tests.support.nights import Nights, part_names, token_multiset

FIRST = "refresh.tokenizer=first"


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    nights = Nights(tmp_path)
    for i in range(3):
        nights.write(f"a{i}", i)
    return nights


def _files(run: Run) -> set[str]:
    documents = run.artifacts["documents"]
    return {documents.file_digest(file.name) for file in documents.files("part-*.parquet")}


def test_a_second_night_keeps_the_tokenizer_of_the_first_and_encodes_only_the_new_file(
    nights: Nights,
) -> None:
    first = nights.refresh(FIRST)
    before = part_names(first, "shards")
    nights.write("b", 7)
    second = nights.refresh(FIRST)
    assert second.artifacts["tokenizer"].key == first.artifacts["tokenizer"].key
    assert second.outcomes["tokenizer"].cached and not second.outcomes["shards"].cached
    # Which documents are held out can change with their amount; what is encoded again is what did.
    changed = _files(second) - _files(first)
    assert len(before) == 3 and len(part_names(second, "shards") - before) == len(changed) < 4
    earlier, later = (token_multiset(run.artifacts["shards"]) for run in (first, second))
    assert earlier < later and later.total() == earlier.total() + 12
    unpinned = nights.refresh()
    assert unpinned.artifacts["tokenizer"].key != first.artifacts["tokenizer"].key


@pytest.mark.slow
def test_a_key_keeps_that_tokenizer_in_another_series_too(nights: Nights) -> None:
    key = nights.refresh().artifacts["tokenizer"].key
    nights.write("b", 7)
    run = nights.refresh(f"refresh.tokenizer={key}", "refresh.series=other")
    assert run.artifacts["tokenizer"].key == key
    assert run.artifacts["shards"].record["identity"]["parents"]["tokenizer"] == key


def test_first_is_of_the_same_series_and_of_the_same_settings(nights: Nights) -> None:
    first = nights.refresh(FIRST).artifacts["tokenizer"].key
    other = nights.refresh(FIRST, "tokenizer.vocab_size=290").artifacts["tokenizer"].key
    assert other != first, "other settings begin anew"
    nights.write("b", 7)
    assert nights.refresh(FIRST, "tokenizer.vocab_size=290").artifacts["tokenizer"].key == other
    assert nights.refresh(FIRST, "refresh.series=x").artifacts["tokenizer"].key not in (
        first,
        other,
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("refresh.tokenizer=0123456789abcdef", "0123456789abcdef) is missing"),
        ("tokenizer.vocab_size=290", "other settings (changed vocab_size: 300 → 290)"),
        ("force=[tokenizer]", "and force rebuilds it"),
        ("refresh.tokenizer=' '", "is blank"),
    ],
)
def test_a_tokenizer_that_cannot_be_kept_is_refused_before_anything_runs(
    nights: Nights, override: str, message: str
) -> None:
    key = nights.refresh().artifacts["tokenizer"].key
    with pytest.raises(ConfigError, match="refresh.tokenizer") as refusal:
        nights.refresh(f"refresh.tokenizer={key}", override)
    assert message in str(refusal.value)


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_kept_tokenizer_that_is_lost_is_never_trained_on_other_documents(
    nights: Nights, is_gone: bool
) -> None:
    path = nights.refresh(FIRST).artifacts["tokenizer"].path
    if is_gone:
        shutil.rmtree(path)
    else:
        (path / "tokenizer.json").write_text("{}")
    nights.write("b", 7)
    with pytest.raises(ConfigError, match="missing" if is_gone else "damaged"):
        decide(compose(nights.overrides(FIRST)), "shards")


def test_a_plan_that_finds_changed_bytes_in_a_kept_tokenizer_does_not_rebuild_it() -> None:
    """As of a disk that returns other bytes than were written, which no stamp of a file shows."""
    kept = Artifact(Path("tokenizer"), "tokenizer")
    steps = [
        Step(Node(stage, "key", "parts", {}, {}), "damaged: a file has changed content")
        for stage in ("tokenizer", "shards")
    ]
    with pytest.raises(ConfigError, match="tokenizer key is kept .* damaged: a file has changed"):
        require_kept(Plan("shards", steps), {"tokenizer": kept})
    require_kept(Plan("shards", steps[1:]), {"tokenizer": kept})
