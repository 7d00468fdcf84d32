"""The analysis: the same tables before and after each stage, over samples that are equal and a
matter of ids alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llm_core.config import ConfigError
from tasks.analysis.config import AnalysisConfig
from tasks.analysis.snapshots import STATES, Sample, hashed_units, registrable_domains
from tasks.analysis.stage import analyse
from tasks.corpus.documentset import ID, read_table, write_table
from tasks.runtime.artifact import Artifact
from tasks.runtime.parts import PartRunner, serial, thread_executor
from tests.support.data.make_artifacts import (
    empty_dir,
    ingest_files,
    make_sidecar,
    read_documents,
    write_jsonl,
)

NUM = 400
WORDS = [f"word{i}" for i in range(500)]
LAST_BULLETS = ("documents", "bullet_line_frac")


def make_corpus(folder: Path, num_files: int) -> dict[str, Artifact]:
    """Documents of 19 words and an address: a fourth is bad, an eighth duplicates, addresses are
    replaced in the end."""
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, 19)) + f" me{i}@x.org" for i in range(NUM)]
    hosts = ["a.example.co.uk", "b.example.co.uk", "example.com", None]
    for part in range(num_files):
        rows = range(part * NUM // num_files, (part + 1) * NUM // num_files)
        records = [
            {
                "id": str(i),
                "text": texts[i],
                "url": hosts[i % 4] and f"https://{hosts[i % 4]}/{i}",
                "from": "xy"[i % 2],
            }
            for i in rows
        ]
        write_jsonl(folder / "in" / f"{part}.jsonl", records)
    ingested = ingest_files(folder, "ingest", [folder / "in"], source_column="from")
    good = [i % 4 != 0 for i in range(NUM)]
    unique = [good[i] and i % 8 != 1 for i in range(NUM)]
    quality = [
        ("num_bytes", pa.int64(), [len(t) for t in texts]),
        ("num_words", pa.int64(), [22] * NUM),
        ("unsegmented_frac", pa.float64(), [0.0] * NUM),
        ("bullet_line_frac", pa.float64(), [(i % 4) / 4 for i in range(NUM)]),
        ("verdict", pa.uint64(), [0] * NUM),
        ("drops", pa.uint64(), [0] * NUM),
        ("kept", pa.bool_(), good),
    ]
    made = {
        "ingest": ingested,
        "language": make_sidecar(
            ingested,
            "language",
            folder / "language",
            [("language", pa.string(), ["en", "de"] * (NUM // 2))],
        ),
        "quality": make_sidecar(ingested, "quality", folder / "quality", quality),
        "dedup": make_sidecar(ingested, "dedup", folder / "dedup", [("kept", pa.bool_(), unique)]),
    }
    final = empty_dir(folder / "documents")
    for file in ingested.files("documents/*.parquet"):
        table = read_table(file)
        rows = [
            (r["id"], r["text"].partition("me")[0] + "<EMAIL>")
            for r in table.to_pylist()
            if unique[int(r["source_id"])]
        ]
        ids, kept = zip(*rows, strict=True)
        write_table(
            pa.table({"id": pa.array(ids, ID), "text": pa.array(kept, pa.large_string())}),
            final / file.name,
        )
    sizes = {str(size): int(1e6 * size**-3.0) for size in range(2, 30)}
    made["dedup"] = Artifact(
        made["dedup"].path, "dedup", made["dedup"].counters, {"cluster_size_histogram": sizes}
    )
    return made | {"documents": Artifact(final, "documents")}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return make_corpus(tmp_path_factory.mktemp("corpus"), 4)


def run(corpus: dict[str, Artifact], out_dir: Path, runner=serial, **config) -> Artifact:
    return analyse(*corpus.values(), empty_dir(out_dir), AnalysisConfig(**config), runner)


def test_every_state_has_the_documents_bytes_and_words_it_has(corpus, tmp_path) -> None:
    states = run(corpus, tmp_path / "out").metrics["states"]
    assert list(states) == list(STATES)
    assert [states[s]["documents"] for s in STATES] == [400, 300, 250, 250]
    assert [states[s]["words"] for s in STATES] == [22 * 400, 22 * 300, 22 * 250, 20 * 250]
    texts = [r["text"] for r in read_documents(corpus["documents"])]
    assert states["documents"]["bytes"] == sum(map(len, texts)) < states["dedup"]["bytes"]
    assert states["ingest"]["tokens_estimated"] == 400 * round(22 * 4 / 3)
    scale = pq.read_table(tmp_path / "out" / "scale.parquet").to_pylist()
    for name in ("documents", "bytes", "words", "tokens_estimated"):
        for state in STATES:
            assert sum(r[name] for r in scale if r["state"] == state) == states[state][name]
    assert {(r["source"], r["language"]) for r in scale} == {("x", "en"), ("y", "de")}


def test_labels_domains_and_histograms_are_counted_in_each_state(corpus, tmp_path) -> None:
    metrics = run(corpus, tmp_path / "out").metrics
    by_source = {
        row["source"]: {s: row[s]["documents"] for s in STATES} for row in metrics["by_source"]
    }
    assert by_source == {
        "x": {"ingest": 200, "quality": 100, "dedup": 100, "documents": 100},
        "y": {"ingest": 200, "quality": 200, "dedup": 150, "documents": 150},
    }
    assert metrics["states"]["ingest"]["sources"]["hhi"] == pytest.approx(0.5, abs=0.001)
    assert {row["domain"]: row["documents"] for row in metrics["domains"]} == {
        "example.co.uk": 50,
        "example.com": 100,
        "(none)": 100,
    }
    bullets = metrics["histograms"]["bullet_line_frac"]
    assert bullets["low"] == [0, 0.25, 0.5, 0.75]
    assert bullets["states"]["ingest"] == [100] * 4 and bullets["states"]["dedup"] == [
        0,
        50,
        100,
        100,
    ]
    changed = metrics["changed_by_language"]
    assert {
        language: moved["bullet_line_frac"] for language, moved in changed.items()
    } == pytest.approx({"en": 1 / 2, "de": 1 / 6})
    by_language = pq.read_table(tmp_path / "out" / "features.parquet").to_pylist()
    lows = {
        (r["language"], r["low"]): r["documents"]
        for r in by_language
        if (r["state"], r["feature"]) == LAST_BULLETS
    }
    assert lows == {("en", 0.5): 100, ("de", 0.25): 50, ("de", 0.75): 100}
    assert "num_bytes" not in metrics["histograms"] and "num_words" in metrics["histograms"]
    assert metrics["cluster_law"]["exponent"] == pytest.approx(3, abs=0.05)


def test_samples_are_of_equal_size_and_measures_of_the_random_words_are_right(
    corpus, tmp_path
) -> None:
    artifact = run(corpus, tmp_path / "out", vendi_documents=16)
    states = artifact.metrics["states"]
    assert artifact.counters["sample_units"] == 20 * 250
    for state in STATES:
        assert states[state]["sample_documents"] in (5000 // 22 + 1, 250)
        assert (
            states[state]["vendi"]["value"] == pytest.approx(14, abs=2)
            and artifact.metrics["vendi_documents"] == 16
        )
    # Nineteen words drawn evenly from 500, one that every document has.
    expected = 0.05 * np.log2(20) + 0.95 * np.log2(500 / 0.95)
    assert states["documents"]["entropy_bits"]["1gram"] == pytest.approx(expected, abs=0.1)
    curve = artifact.metrics["growth_curves"]["documents"]
    assert curve[-1][0] == 5000 and 495 <= curve[-1][1] <= 501


def test_bytes_do_not_depend_on_workers_and_numbers_not_on_files(corpus, tmp_path) -> None:
    one = run(corpus, tmp_path / "one", max_sample_units=1000)
    four = run(
        corpus,
        tmp_path / "four",
        PartRunner(make_executor=thread_executor(4)),
        max_sample_units=1000,
    )
    assert [f.read_bytes() for f in one.files("*")] == [f.read_bytes() for f in four.files("*")]
    assert one.metrics == four.metrics and one.counters["sample_units"] == 1000
    # The same documents from one file have other ids, so other samples, but the same scale.
    alone = run(make_corpus(tmp_path / "alone", 1), tmp_path / "out", max_sample_units=1000)
    assert (
        alone.metrics["by_language"] == one.metrics["by_language"]
        and alone.metrics["histograms"] == one.metrics["histograms"]
    )
    json.dumps(one.metrics, allow_nan=False)
    shutil.rmtree(tmp_path / "alone")


def test_a_sample_is_the_beginning_of_the_order_of_hashes(tmp_path) -> None:
    for part, hashes in enumerate(([5, 1], [3, 4], [])):
        units = pa.array([[h * 10, h * 10 + 1] for h in hashes], pa.large_list(pa.uint64()))
        ids = pa.array([bytes([h] * 16) for h in hashes], ID)
        empty_dir(tmp_path / str(part))
        write_table(
            pa.table({"hash": pa.array(hashes, pa.uint64()), "id": ids, "units": units}),
            tmp_path / str(part) / "dedup.parquet",
        )
    folders = [tmp_path / str(part) for part in range(3)]
    for num_units, expected, begins in (
        (8, [10, 11, 30, 31, 40, 41, 50, 51], [0, 2, 4, 6, 8]),
        (3, [10, 11, 30], [0, 2, 3]),
        (0, [], [0]),
    ):
        sample = Sample.load(folders, "dedup", num_units)
        assert sample.units.tolist() == expected and sample.begins.tolist() == begins


def test_units_are_folded_and_domains_are_registrable() -> None:
    units, begins = hashed_units(
        pa.chunked_array([pa.array(["The the 漢字!", "", "the"], pa.large_string())]), np.arange(3)
    )
    assert (
        begins.tolist() == [0, 4, 4, 5]
        and units[0] == units[1] == units[4]
        and len(set(units.tolist())) == 3
    )
    urls = [
        "https://www.bbc.co.uk/x",
        "http://bücher.example.de:80/",
        "http://[half",
        "http://10.0.0.1/",
        "npm:x",
        None,
        "https://localhost/",
    ]
    assert registrable_domains(pa.chunked_array([pa.array(urls, pa.string())])) == [
        "bbc.co.uk", "example.de", "(none)", "10.0.0.1", "(none)", "(none)", "localhost",
    ]  # fmt: skip


def test_settings_that_measure_nothing_are_refused() -> None:
    for bad in (
        {"max_sample_units": 10},
        {"vendi_documents": 1},
        {"vendi_groups": 1},
        {"seed": -1},
    ):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            AnalysisConfig(**bad)
