"""Drift on real text: shuffled nights of the embedded corpus are calm, and a night of another kind
is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flows.run import Run
from tasks.analysis.changes import sample_measures
from tasks.analysis.drift import DriftConfig, compare_distributions
from tasks.corpus.documentset import read_table
from tests.support.nights import TINY, Nights
from tests.support.whole_runs import SAMPLE

CONFIG = DriftConfig()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The data stages of the embedded corpus."""
    settings = ["run=demo", *TINY[1:], "quality=lenient"]
    nights = Nights(tmp_path_factory.mktemp("corpus"), settings)
    nights.folder.mkdir(parents=True)
    (nights.folder / "sample.jsonl").write_bytes(Path(SAMPLE).read_bytes())
    return nights.refresh()


def drifts(run: Run, new: pa.Array, before: pa.Array) -> list[str]:
    files = [f.name for f in run.artifacts["ingest"].files("documents/part-*.parquet")]
    sides = [sample_measures(run.artifacts, files, 5000, ids) for ids in (new, before)]
    return [row["measure"] for row in compare_distributions(*sides, CONFIG) if row["drifts"]]


def documents(run: Run) -> pa.Table:
    files = run.artifacts["ingest"].files("documents/part-*.parquet")
    return pa.concat_tables([read_table(f, ["id", "source"]) for f in files]).combine_chunks()


@pytest.mark.slow
@pytest.mark.parametrize("new_documents", [60, 300])
def test_twenty_shuffled_nights_of_real_text_raise_no_alarm(
    corpus: Run, new_documents: int
) -> None:
    ids = documents(corpus)["id"].combine_chunks()
    alarms = []
    for seed in range(20):
        order = pa.array(np.random.default_rng(seed).permutation(len(ids)))
        new, before = ids.take(order[:new_documents]), ids.take(order[new_documents:])
        alarms += drifts(corpus, new, before)
    assert alarms == []


@pytest.mark.slow
def test_a_night_of_any_one_source_among_all_others_is_found_at_once(corpus: Run) -> None:
    table = documents(corpus)
    counts = pc.value_counts(table["source"].combine_chunks()).to_pylist()
    sources = [row["values"] for row in counts if row["counts"] >= 50]
    assert len(sources) >= 3
    for source in sources:
        is_new = pc.equal(table["source"], source)
        new = table.filter(is_new)["id"].combine_chunks()
        before = table.filter(pc.invert(is_new))["id"].combine_chunks()
        assert drifts(corpus, new, before), source
