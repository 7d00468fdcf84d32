"""Many nights over a folder that changes give what one run over its last state gives."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tasks.runtime.artifact import Artifact
from tasks.runtime.store import Store
from tests.support.nights import TINY, Nights, kept, token_multiset
from tests.support.whole_runs import SAMPLE, run, started, wait_for

FIGURES = ("ingest", "language", "scores", "quality", "dedup", "pii", "contamination", "documents")
"""Stages whose counters and metrics are what a report shows of the data."""


def figures(artifacts: Mapping[str, Artifact]) -> dict[str, Any]:
    found = {s: (artifacts[s].counters, artifacts[s].metrics) for s in FIGURES}
    return json.loads(json.dumps(found))


def with_tokenizer(tokenizer: Artifact) -> list[str]:
    """Overrides that take a tokenizer of another store as it is."""
    return ["tokenizer=import", f"tokenizer.path={tokenizer.path}"]


def assert_same_data(nights: Mapping[str, Artifact], once: Mapping[str, Artifact]) -> None:
    assert kept(nights) == kept(once)
    assert token_multiset(nights["shards"]) == token_multiset(once["shards"])
    assert figures(nights) == figures(once)
    assert nights["shards"].metrics == once["shards"].metrics


def test_three_nights_of_change_loss_and_damage_give_what_one_run_gives(tmp_path: Path) -> None:
    settings = [*TINY, "refresh.tokenizer=first", "source.max_bad_frac=0.5"]
    nights = Nights(tmp_path / "nights", settings)
    for name, seed in (("a", 0), ("b", 1)):
        nights.write(name, seed)
    first = nights.refresh()
    nights.write("b", 2)
    nights.write("c", 3)
    with pytest.raises(KeyboardInterrupt):
        nights.stop_after("quality")
    (nights.folder / "a.jsonl").unlink()
    packed = gzip.compress((nights.folder / "c.jsonl").read_bytes())
    (nights.folder / "d.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    last = nights.refresh()
    assert last.artifacts["ingest"].counters["quarantined"] == 1
    assert last.artifacts["tokenizer"].key == first.artifacts["tokenizer"].key
    once = Nights(tmp_path / "once", [*TINY, "source.max_bad_frac=0.5"])
    once.root.mkdir()
    nights.folder.rename(once.folder)
    fresh = once.refresh(*with_tokenizer(last.artifacts["tokenizer"]))
    assert_same_data(last.artifacts, fresh.artifacts)


class SampleNights:
    """Nights over the embedded corpus, cut into files, each a process of its own."""

    def __init__(self, place: Path) -> None:
        self.place, self.folder = place, place / "in"
        self.folder.mkdir(parents=True)
        self._lines = SAMPLE.read_text("utf-8").splitlines(keepends=True)

    def lines(self, number: int) -> list[str]:
        return self._lines[number * 60 : (number + 1) * 60]

    def write(self, number: int, lines: Sequence[str] | None = None) -> None:
        text = "".join(self.lines(number) if lines is None else lines)
        (self.folder / f"{number}.jsonl").write_text(text, "utf-8")

    def night(self, *more: str) -> dict[str, Any]:
        done = run("refresh", self.folder, self.place, *SERIES, *more)
        return dict(json.loads(done.stdout.splitlines()[-1]))

    @contextmanager
    def begun(self, *more: str) -> Iterator[Any]:
        with started("refresh", self.folder, self.place, *SERIES, *more) as process:
            yield process


SOURCE = ["source.language_column=lang", "source.source_column=source"]
SERIES = [*SOURCE, "refresh.tokenizer=first"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_nights_of_the_sample_give_what_one_run_over_the_last_state_gives(
    tmp_path: Path,
) -> None:
    nights = SampleNights(tmp_path / "nights")
    for number in range(4):
        nights.write(number)
    nights.night()
    nights.write(4)
    added = nights.night()["changes"]
    assert added["inputs"] == {"new": 1, "changed": 0, "gone": 0, "same": 4}
    assert nights.night()["changes"]["nothing_new"]
    nights.write(1, [*nights.lines(1)[:30], *nights.lines(9)])
    assert nights.night()["changes"]["inputs"]["changed"] == 1
    nights.write(5)
    with nights.begun() as process:  # killed at the end of the block
        parts = nights.place / "store" / ".parts" / "quality"
        before = len(list(parts.glob("*/*")))
        wait_for(lambda: len(list(parts.glob("*/*"))) > before, process)
    nights.write(6)  # and nobody ran that night
    changes = nights.night()["changes"]
    assert changes["inputs"] == {"new": 2, "changed": 0, "gone": 0, "same": 5}
    packed = gzip.compress("".join(nights.lines(7)).encode())
    damaged = nights.folder / "7.jsonl.gz"
    damaged.write_bytes(packed[: len(packed) // 2])
    assert nights.night("source.max_bad_frac=0.5")["quarantined"] == 1
    damaged.write_bytes(packed)
    (nights.folder / "2.jsonl").unlink()
    assert nights.night()["changes"]["inputs"] == {"new": 0, "changed": 1, "gone": 1, "same": 6}
    gone = [json.loads(nights.lines(n)[5])["id"] for n in (0, 7)]
    (tmp_path / "gone.txt").write_text("\n".join(gone))
    nights.write(8)
    remove = f"source.remove={tmp_path / 'gone.txt'}"
    last = nights.night(remove)
    assert last["changes"]["documents"]["added"] > 0

    once = tmp_path / "once"
    tokenizer = nights.place / "store" / "tokenizer" / last["stages"]["tokenizer"]["key"]
    imported = ["tokenizer=import", f"tokenizer.path={tokenizer}", remove, *SOURCE]
    done = run("run", nights.folder, once, *imported)
    fresh = dict(json.loads(done.stdout.splitlines()[-1]))
    ours, theirs = (_artifacts(p, s) for p, s in ((nights.place, last), (once, fresh)))
    assert_same_data(ours, theirs)

    done = run("run", nights.folder, nights.place, remove, *SERIES)
    report = dict(json.loads(done.stdout.splitlines()[-1]))
    assert report["stages"]["shards"]["cached"]
    ours, theirs = (_artifacts(p, s) for p, s in ((nights.place, report), (once, fresh)))
    headlines = [dict(a["report"].metrics["headline"]) for a in (ours, theirs)]
    for one in headlines:
        one.pop("decode_tok_s", None)
    assert headlines[0] == headlines[1] and headlines[0]["val_bpb"] > 0


def _artifacts(place: Path, summary: Mapping[str, Any]) -> dict[str, Artifact]:
    store = Store(place / "store")
    found = {name: store.find(name, s["key"]) for name, s in summary["stages"].items()}
    return {name: artifact for name, artifact in found.items() if artifact is not None}
