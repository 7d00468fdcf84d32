"""A chain of refreshes fares as one run over all of its input, in which what came earlier is
preferred."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from flows.chains import follow_chain
from flows.commands.unused import needed, unused
from flows.compose import compose
from flows.records import read_records, write_record
from flows.run import Run, describe, open_run
from llm_core.config import ConfigError
from tasks.corpus.documentset import read_table
from tasks.runtime.artifact import Artifact
from tasks.runtime.code import ROOT
from tasks.runtime.execute import make_artifact
from tasks.runtime.store import Store
from tests.support.data.dedup_runs import words


def write_piece(file: Path, seed: int, num_documents: int = 40) -> Path:
    """Copies, near copies and relatives of bases that all pieces share."""
    rng = random.Random(seed)
    records = []
    for i in range(num_documents):
        text = words(rng.randrange(12), 30)
        for _ in range(rng.choice([0, 0, 1, 2, 9])):
            text[rng.randrange(len(text))] = words(rng.getrandbits(30), 1)[0]
        records.append(
            {
                "id": f"{file.stem}-{i}",
                "text": " ".join(text),
                "added": f"2026-01-{1 + int(file.stem[1:] or 0):02d}",
            }
        )
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


@contextmanager
def opened(overrides: Sequence[str]) -> Iterator[Run]:
    more = ["quality=off", "tracking=off", "orchestrator=none", "num_workers=1", "dedup=indexed"]
    given = [*more, *overrides]
    with open_run("refresh", "dedup", compose(given), given, make_artifact) as run:
        yield run


def deduplicated(*overrides: str) -> Artifact:
    """The dedup artifact of a run that ends there."""
    return deduplicated_and_said(*overrides)[0]


def deduplicated_and_said(*overrides: str) -> tuple[Artifact, str]:
    """The same, and what is shown at the end of the run."""
    with opened(overrides) as run:
        raw = run.stage("ingest")
        labelled = run.stage("language", raw)
        judged = run.stage("quality", raw, labelled, run.stage("scores", raw, labelled))
        run.stage("dedup", raw, judged)
    return run.artifacts["dedup"], describe(run)


def removed(artifact: Artifact) -> set[bytes]:
    return _ids(artifact, kept=False)


def kept(artifact: Artifact) -> set[bytes]:
    return _ids(artifact, kept=True)


def _ids(artifact: Artifact, kept: bool) -> set[bytes]:
    tables = [read_table(file, ["id", "kept"]) for file in artifact.files("part-*.parquet")]
    return {row["id"] for table in tables for row in table.to_pylist() if row["kept"] == kept}


@pytest.fixture
def store(tmp_path: Path) -> list[str]:
    return [f"store={tmp_path / 'store'}", f"state={tmp_path / 'state'}"]


def source(*files: Path) -> list[str]:
    return [f"source.root={files[0].parent}", f"source.paths={[str(file) for file in files]}"]


def test_a_chain_of_pieces_removes_what_one_run_over_all_removes(
    store: list[str], tmp_path: Path
) -> None:
    pieces = [write_piece(tmp_path / "in" / f"p{i}.jsonl", i) for i in range(3)]
    order = ["dedup.survivor=[date,length,id]"]
    chained = [
        removed(deduplicated(*store, *order, *source(piece), "dedup.chain=all")) for piece in pieces
    ]
    together = removed(deduplicated(*store, *order, *source(*pieces), "dedup.keep_index=false"))
    assert set.union(*chained) == together and all(len(one) > 5 for one in chained)
    alone = [removed(deduplicated(*store, *order, *source(piece))) for piece in pieces]
    assert chained[0] == alone[0] and all(
        a < b for a, b in zip(alone[1:], chained[1:], strict=True)
    ), "else nothing was chained"


def test_a_chain_knows_an_input_again_and_takes_only_what_completed(
    store: list[str], tmp_path: Path
) -> None:
    a, b, c = (write_piece(tmp_path / "in" / f"{name}.jsonl", i, 6) for i, name in enumerate("abc"))
    settings = [*store, "dedup.chain=crawl"]
    first = deduplicated(*settings, *source(a))
    assert deduplicated(*settings, *source(a)).key == first.key, "not a duplicate of itself"
    with pytest.raises(KeyboardInterrupt), opened([*settings, *source(c)]):
        raise KeyboardInterrupt
    second = deduplicated(*settings, *source(b))
    assert (
        follow_chain(compose(["dedup=indexed", *settings, *source(c)]))[0].dedup.index
        == second.path
    )
    other = deduplicated(*settings, *source(a), "dedup.threshold=0.9")
    assert follow_chain(compose(["dedup=indexed", *settings, *source(a)]))[0].dedup.index is None
    assert (
        follow_chain(compose(["dedup=indexed", *settings, *source(b)]))[0].dedup.index == other.path
    )
    assert (
        follow_chain(compose(["dedup=indexed", *settings, *source(c)]))[0].dedup.index
        == second.path
    )
    elsewhere = compose(
        ["dedup=indexed", *store, "dedup.chain=mail", *source(c), f"dedup.index={second.key}"]
    )
    assert str(follow_chain(elsewhere)[0].dedup.index) == second.key, (
        "the first of a chain may continue from a given index"
    )


def test_a_chain_over_a_source_that_grows_says_what_stays_with_earlier_runs_and_how_to_get_all(
    store: list[str], tmp_path: Path
) -> None:
    a, b = (write_piece(tmp_path / "in" / f"p{i}.jsonl", i) for i in range(2))
    order = ["dedup.survivor=[date,length,id]"]
    first, said = deduplicated_and_said(*store, *order, *source(a), "dedup.chain=crawl")
    assert "earlier_duplicates" not in first.counters and "Only new" not in said
    second, said = deduplicated_and_said(*store, *order, *source(a, b), "dedup.chain=crawl")
    again, duplicates = second.counters["read_again"], second.counters["earlier_duplicates"]
    assert first.counters["kept"] <= again <= first.counters["read"] <= duplicates
    assert f"{duplicates} of {second.counters['read']} that dedup read are duplicates" in said
    assert (
        f"({again} of them the very same documents" in said
        and said.count("Only new documents") == 1
    )
    assert "without dedup.chain" in said
    both, said = deduplicated_and_said(*store, *order, *source(a, b))
    assert kept(both) == kept(first) | kept(second) and "Only new" not in said


def test_new_input_of_a_chain_is_not_said_to_be_read_again(
    store: list[str], tmp_path: Path
) -> None:
    a, b = (write_piece(tmp_path / "in" / f"p{i}.jsonl", i) for i in range(2))
    deduplicated(*store, *source(a), "dedup.chain=crawl")
    second, said = deduplicated_and_said(*store, *source(b), "dedup.chain=crawl")
    assert (
        second.counters["read_again"] == 0 < second.counters["earlier_duplicates"]
        and "Only new" not in said
    )


def test_a_chain_is_never_broken_in_silence(store: list[str], tmp_path: Path) -> None:
    a, b = (write_piece(tmp_path / "in" / f"{name}.jsonl", i, 6) for i, name in enumerate("ab"))
    settings, root = [*store, "dedup.chain=crawl"], Store(tmp_path / "store")
    first = deduplicated(*settings, *source(a))
    config = compose(["dedup=indexed", *settings, *source(b)])
    assert first.path not in [item.path for item in unused(root, needed(root, 0))], (
        "the next run needs it"
    )
    (record,) = read_records(root)
    record.outcome = "running"
    write_record(root, record)
    with pytest.raises(ConfigError, match=f"being extended by run {record.run_id}"):
        follow_chain(config)
    record.outcome = "completed"
    write_record(root, record)
    (first.path / "artifact.json").unlink()
    with pytest.raises(ConfigError, match=f"continues from dedup {first.key} .* not in the store"):
        follow_chain(config)


@pytest.mark.parametrize("by", ["chain", "index"])
def test_a_damaged_index_is_refused_and_not_taken_for_another(
    by: str, store: list[str], tmp_path: Path
) -> None:
    a, b = (write_piece(tmp_path / "in" / f"{name}.jsonl", i, 6) for i, name in enumerate("ab"))
    first = deduplicated(*store, "dedup.chain=crawl", *source(a))
    file = first.path / "index" / "shingles.arrow"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    goes_on_from = "dedup.chain=crawl" if by == "chain" else f"dedup.index={first.key}"
    with pytest.raises(ConfigError, match=r"damaged: index/shingles.arrow has changed content"):
        deduplicated(*store, goes_on_from, *source(b))
    deduplicated(*store, "dedup.chain=crawl", *source(a))
    assert deduplicated(*store, goes_on_from, *source(b)).metrics["earlier_documents"]


BEGINS = """
import os, sys, time, types
from pathlib import Path
import flows.run
from flows.cli import main

here, write = Path(sys.argv[1]), flows.run.write_record

def when_both_have_looked(store, record):
    (here / f"looked-{os.getpid()}").touch()
    until = time.monotonic() + 2
    while len(list(here.glob("looked-*"))) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    return write(store, record)

flows.run.write_record = when_both_have_looked
sys.modules["flows.stages"] = types.SimpleNamespace(stages=lambda run: sys.stdin.read())
sys.exit(main(["refresh", *sys.argv[2:]]))
"""
"""A run that gives the other all the time to look at the records before it writes its own, and ends
when stdin does."""


def test_of_two_runs_that_make_a_chain_longer_in_one_moment_one_is_refused(
    store: list[str], tmp_path: Path
) -> None:
    settings = [
        *store,
        "dedup=indexed",
        "dedup.chain=crawl",
        "quality=off",
        "tracking=off",
        "orchestrator=none",
    ]
    runs = []
    for i, name in enumerate("ab"):
        given = [*settings, *source(write_piece(tmp_path / "in" / f"{name}.jsonl", i, 6))]
        command = [sys.executable, "-c", BEGINS, str(tmp_path), *given]
        pipe = subprocess.PIPE
        runs.append(
            subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        )
    try:
        while (
            all(run.poll() is None for run in runs)
            and len(list(tmp_path.glob("store/.runs/*.json"))) < 2
        ):
            time.sleep(0.01)
        refused, other = sorted(runs, key=lambda run: run.poll() is None)
        assert refused.poll() == 2, "both began"
        (record,) = read_records(Store(tmp_path / "store"))
        complaint = refused.stderr.read().splitlines()[-1]
        assert complaint.startswith(
            f"textmill: dedup.chain (crawl) is being extended by run {record.run_id}"
        )
        assert other.communicate("")[1] == "" and other.returncode == 0
    finally:
        for run in runs:
            run.kill()
            run.communicate()


def test_a_chain_without_an_index_to_hand_on_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"chain \('crawl'\) .* keep_index=true; try dedup=indexed dedup.chain=crawl",
    ):
        compose(["dedup.chain=crawl"])
