"""Text that occurred before is cut, all of it and nothing else, whatever the order of reading."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError, build
from tasks.corpus.documentset import read_table
from tasks.dedup.config import CutsConfig, DedupConfig
from tasks.dedup.cuts import disjoint
from tasks.documents.edits import collect_edits, edit_texts
from tasks.runtime.artifact import digest_file
from tasks.runtime.parts import PartRunner, thread_executor
from tests.support.data.cut_documents import (
    LINES,
    PARAGRAPHS,
    RUNS,
    dated,
    remaining,
    repetitive_texts,
)
from tests.support.data.dedup_runs import run, words
from tests.support.data.make_artifacts import SPANS


def runs_by_definition(texts: list[list[str]], size: int) -> list[list[bool]]:
    """Which words are cut: those in a window that equals an earlier one, a whole window before or
    in an earlier text."""
    first: dict[tuple[str, ...], tuple[int, int]] = {}
    cut = [[False] * len(text) for text in texts]
    for number, text in enumerate(texts):
        for i in range(len(text) - size + 1):
            where = first.setdefault(tuple(text[i : i + size]), (number, i))
            if where[0] != number or i - where[1] >= size:
                cut[number][i : i + size] = [True] * size
    return cut


def test_runs_are_those_of_the_definition(tmp_path_factory: pytest.TempPathFactory) -> None:
    @settings(deadline=None, max_examples=15, database=None)
    @given(st.integers(0, 1 << 30), st.sampled_from([3, 26, 2000]))
    def check(seed: int, vocabulary: int) -> None:
        rng = random.Random(seed)
        known = [f"w{i}é" for i in range(vocabulary)]
        blocks = [[rng.choice(known) for _ in range(rng.randint(10, 45))] for _ in range(4)]
        blocks.append(["a"] * 70)
        texts = []
        for _ in range(rng.randint(2, 6)):
            chosen = [
                rng.choice(blocks) if rng.random() < 0.7 else [rng.choice(known)] * 2
                for _ in range(rng.randint(1, 6))
            ]
            texts.append([word for block in chosen for word in block])
        texts = [list(t) for t in dict.fromkeys(map(tuple, texts))]
        documents = dated([" ".join(text) for text in texts])
        _, rows = run(tmp_path_factory.mktemp("case"), documents, RUNS, num_parts=2)
        left = remaining(documents, rows)
        for i, cut in enumerate(runs_by_definition(texts, 20)):
            assert left.get(f"d{i}", "").split() == [
                word for word, gone in zip(texts[i], cut, strict=True) if not gone
            ]

    check()


def test_runs_take_what_pieces_leave(tmp_path: Path) -> None:
    one, two = words(1, 30), words(2, 30)
    texts = [
        " ".join(one) + "\n\n" + " ".join(two),
        "start " + " ".join(one) + "\n\n" + " ".join(two) + "\n\nend of it all",
    ]
    config = replace(
        PARAGRAPHS, cuts=CutsConfig(pieces="paragraph", min_piece_units=3, substring_units=20)
    )
    artifact, rows = run(tmp_path, dated(texts), config)
    assert remaining(dated(texts), rows)["d1"].split() == ["start", "end", "of", "it", "all"]
    assert [c["reason"] for c in rows["d1"]["cuts"]] == ["REPEATED_SUBSTRING", "REPEATED_PARAGRAPH"]
    assert artifact.counters["cut_bytes"] == sum(c["end"] - c["start"] for c in rows["d1"]["cuts"])


def test_documents_are_written_without_their_cuts(tmp_path: Path) -> None:
    documents = dated(
        list(dict.fromkeys(t for seed in range(5) for t in repetitive_texts(seed, "\n\n")))
    )
    config = replace(PARAGRAPHS, cuts=replace(PARAGRAPHS.cuts, substring_units=20))
    artifact, rows = run(tmp_path, documents, config)
    sidecar = read_table(artifact.file("part-00000.parquet"))
    texts = pa.chunked_array([pa.array([d["text"] for d in documents], pa.large_string())])
    none = pa.chunked_array([pa.nulls(len(documents), SPANS)])
    edited, _ = edit_texts(texts, collect_edits(sidecar["cuts"], none, none), "dedup sidecar")
    left = remaining(documents, rows)
    assert any(row["cuts"] for row in rows.values())
    assert {
        d["name"]: text
        for d, text in zip(documents, edited.to_pylist(), strict=True)
        if d["name"] in left
    } == left


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 9), st.booleans()),
        max_size=12,
    )
)
def test_merged_cuts_hold_the_same_bytes_once(ranges: list[tuple[int, int, int, bool]]) -> None:
    taken: dict[bool, set[tuple[int, int]]] = {False: set(), True: set()}
    given_ranges = []
    for document, start, size, is_run in ranges:
        covered = {(document, i) for i in range(start - 1, start + size + 1)}
        if not covered & taken[is_run]:  # each finder's own ranges are apart
            taken[is_run] |= {(document, i) for i in range(start, start + size)}
            given_ranges.append((document, start, start + size, 2 if is_run else 1))
    columns = np.array(given_ranges, np.int64).reshape(-1, 4).T
    document, start, end, reason = disjoint(*columns)
    found = [
        (d, i, r)
        for d, s, e, r in zip(document, start, end, reason, strict=True)
        for i in range(s, e)
    ]
    assert len({(d, i) for d, i, _ in found}) == len(found)
    assert {(d, i) for d, i, _ in found} == taken[False] | taken[True]
    assert all((r == 1) == ((d, i) in taken[False]) for d, i, r in found)
    assert [(d, s) for d, s in zip(document, start, strict=True)] == sorted(
        zip(document, start, strict=True)
    )


@pytest.mark.parametrize("config", [LINES, RUNS], ids=["lines", "runs"])
def test_order_layout_and_workers_do_not_change_the_cuts(
    tmp_path: Path, config: DedupConfig
) -> None:
    rng = random.Random(5)
    blocks = [" ".join(words(i, rng.randint(4, 60))) for i in range(20)]
    documents = dated(
        list(dict.fromkeys("\n".join(rng.sample(blocks, rng.randint(1, 6))) for _ in range(60)))
    )
    first, expected = run(tmp_path / "first", documents, config, num_parts=4)
    assert any(row["cuts"] for row in expected.values())
    threads, _ = run(
        tmp_path / "threads",
        documents,
        config,
        num_parts=4,
        run_parts=PartRunner(make_executor=thread_executor(3)),
    )
    assert [digest_file(f) for f in threads.files("*.parquet")] == [
        digest_file(f) for f in first.files("*.parquet")
    ]
    shuffled = random.Random(1).sample(documents, len(documents))
    assert run(tmp_path / "shuffled", shuffled, config, num_parts=7)[1] == expected


@pytest.mark.parametrize("config", [LINES, PARAGRAPHS, RUNS], ids=["lines", "paragraphs", "runs"])
def test_a_second_pass_over_what_is_left_cuts_no_whole_piece(
    tmp_path_factory: pytest.TempPathFactory, config: DedupConfig
) -> None:
    @settings(deadline=None, max_examples=8, database=None)
    @given(st.integers(0, 1 << 30), st.integers(1, 6))
    def check(seed: int, count: int) -> None:
        tmp_path = tmp_path_factory.mktemp("case")
        documents = dated(
            list(dict.fromkeys(t for i in range(count) for t in repetitive_texts(seed + i, "\n\n")))
        )
        _, rows = run(tmp_path / "first", documents, config)
        left = remaining(documents, rows)
        again = [d | {"text": left[d["name"]]} for d in documents if d["name"] in left]
        artifact, rows = run(tmp_path / "second", again, config)
        assert artifact.metrics["cuts"] == {}
        assert all(row["reason"] != "NOTHING_LEFT" for row in rows.values())

    check()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cuts": {"min_piece_units": 0}}, r"min_piece_units \(0\) must be at least 1"),
        ({"cuts": {"bloom_error": 0.5}}, r"bloom_error \(0.5\)"),
        ({"cuts": {"substring_units": 5}}, r"substring_units \(5\) must be 0, or from 20"),
        ({"cuts": {"pieces": "word"}}, "not a choice"),
        ({"cuts": {"substring_units": 50}, "keep_index": True}, "needs the texts of all documents"),
        (
            {"cuts": {"pieces": "line", "piece_memory": "bloom"}, "keep_index": True},
            "bloom.* keep_index=false",
        ),
        ({"tracking_parameters": ["a*b"]}, "names, with \\* at the end only"),
        ({"source_priority": ["wiki"]}, "is used only by the rule source_priority"),
        ({"survivor": ["quality", "id"]}, "quality_column"),
    ],
)
def test_a_bad_setting_is_named_with_its_rule(values: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(DedupConfig, values, "dedup")
