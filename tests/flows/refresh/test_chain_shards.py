"""The shards of a whole chain grow at their end: earlier tokens keep their place."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from flows.commands.unused import needed, remove, unused
from flows.run import Run
from llm_core.config import ConfigError
from llm_core.data.shards import open_shards
from tasks.runtime.stage import StageFailure
from tests.support.nights import TINY, Nights, kept, part_names, token_rows

CHAIN = ["dedup=indexed", "dedup.chain=crawl", "shards.whole_chain=true"]
FIRST = "refresh.tokenizer=first"


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    nights = Nights(tmp_path, [*TINY, *CHAIN, "shards.max_shard_tokens=400"])
    for i in range(3):
        nights.write(f"p{i}", i)
    return nights


def place(nights: Nights, number: int, *overrides: str) -> Run:
    """The run of one place of the chain, whose input is one file."""
    file = nights.folder / f"p{number}.jsonl"
    return nights.refresh(f"source.paths=[{file}]", f"source.root={nights.folder}", *overrides)


def bytes_of(run: Run) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in run.artifacts["shards"].files("*.arrow")}


def test_each_place_adds_its_documents_behind_those_of_the_places_before(nights: Nights) -> None:
    runs = [place(nights, number, FIRST) for number in range(3)]
    for before, after in pairwise(runs):
        shards, longer = bytes_of(before), bytes_of(after)
        assert shards.items() < longer.items()
        rows, more = (token_rows(run.artifacts["shards"]) for run in (before, after))
        assert more[: len(rows)] == rows and len(more) > len(rows)
    ids = {i for run in runs for i in kept(run.artifacts)}
    last = runs[-1].artifacts["shards"]
    for split in ("train", "validation"):
        opened = open_shards(last.path, split)
        assert opened.num_documents == last.metrics["splits"][split]["documents"]
    written = {id for split in ("train", "validation") for id, _ in token_rows(last, split)}
    assert written == ids and last.counters["read"] == 12, "only new documents were encoded"
    assert len(part_names(runs[-1], "shards")) == 3


@pytest.mark.slow
def test_a_place_that_is_given_again_finds_its_shards(nights: Nights) -> None:
    runs = [place(nights, number, FIRST) for number in range(3)]
    again = place(nights, 1, FIRST)
    assert again.artifacts["shards"].key == runs[1].artifacts["shards"].key
    assert all(outcome.cached for outcome in again.outcomes.values())


def test_shards_of_another_tokenizer_are_not_put_behind(nights: Nights) -> None:
    place(nights, 0)
    with pytest.raises(StageFailure, match=r"has tokenizer_digest .*refresh\.tokenizer=first"):
        place(nights, 1)


@pytest.mark.slow
def test_the_end_of_a_chain_survives_gc(nights: Nights) -> None:
    runs = [place(nights, number, FIRST) for number in range(2)]
    remove(unused(runs[-1].store, needed(runs[-1].store, 0)))
    paths = [run.artifacts["shards"].path for run in runs]
    assert all(path.exists() for path in paths)


@pytest.mark.slow
def test_what_an_earlier_place_has_read_is_withdrawn_there_and_then_in_those_after_it(
    nights: Nights,
) -> None:
    runs = [place(nights, number, FIRST) for number in range(2)]
    (nights.root / "gone.txt").write_text("p0-4\np1-2\n")
    withdrawal = f"source.remove={nights.root / 'gone.txt'}"
    with pytest.raises(ConfigError, match=rf"run {runs[0].record.run_id} .* has read: p0-4; give"):
        place(nights, 1, FIRST, withdrawal)
    again = [place(nights, number, FIRST, withdrawal) for number in range(2)]
    rows = [
        row for s in ("train", "validation") for row in token_rows(again[1].artifacts["shards"], s)
    ]
    assert len(rows) == 22
    assert {id for id, _ in rows} == {i for run in again for i in kept(run.artifacts)}


def test_a_whole_chain_needs_a_chain_and_earlier_shards_are_shards(nights: Nights) -> None:
    with pytest.raises(ConfigError, match=r"shards\.whole_chain needs dedup\.chain"):
        nights.refresh("dedup.chain=null")
    with pytest.raises(ConfigError, match=r"shards\.earlier .* is neither a shards artifact"):
        nights.refresh("shards.whole_chain=false", "shards.earlier=0123456789abcdef")
