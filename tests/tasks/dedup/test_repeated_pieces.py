"""Paragraphs and lines stay once, where they first occur, by a filter in memory or by sorting."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.dedup import repeated_pieces
from tasks.dedup.config import CutsConfig, DedupConfig
from tasks.runtime.artifact import write_sealed
from tasks.runtime.parts import PART_FILE, Part, PartResult
from tests.support.data.cut_documents import LINES, PARAGRAPHS, dated, remaining, repetitive_texts
from tests.support.data.dedup_runs import kept, run, words


def test_a_paragraph_stays_once(tmp_path: Path) -> None:
    texts = [
        "Title\n\nOne two three.\nFour  five.\n\nOwn text of a.\n",
        "Own text of b.\n\nONE TWO THREE.\n four five.\n\n\nThe end of b",
    ]
    artifact, rows = run(tmp_path, dated(texts), PARAGRAPHS)
    assert remaining(dated(texts), rows) == {"d0": texts[0], "d1": "Own text of b.\n\nThe end of b"}
    assert [c["reason"] for c in rows["d1"]["cuts"]] == ["REPEATED_PARAGRAPH"]
    assert artifact.counters["cut_documents"] == 1 and artifact.counters["cut_bytes"] == 29
    assert artifact.metrics["cuts"] == {
        "REPEATED_PARAGRAPH": {"cuts": 1, "bytes": 29, "documents": 1}
    }


def test_a_line_stays_once_and_short_lines_stay_always(tmp_path: Path) -> None:
    texts = [
        "one two three\nAmen\nalpha beta gamma\n",
        "é\nalpha beta gamma\nAmen\nalpha beta  gamma\nnew line of text",
    ]
    _, rows = run(tmp_path, dated(texts), LINES)
    assert remaining(dated(texts), rows)["d1"] == "é\nAmen\nnew line of text"


def test_a_document_with_nothing_left_is_dropped(tmp_path: Path) -> None:
    texts = [
        "one two three\nfour five six\nseven eight nine",
        "four five six\none two three",
        "--\nfour five six\n!",
        "four five six\nx",
    ]
    artifact, rows = run(tmp_path, dated(texts), LINES)
    assert kept(rows) == {"d0", "d3"}
    assert artifact.counters["dropped"] == {"NOTHING_LEFT": 2}
    assert remaining(dated(texts), rows)["d3"] == "x"


def test_a_document_that_goes_cuts_nothing_out_of_others(tmp_path: Path) -> None:
    body = words(1, 60)
    texts = [
        " ".join(body),
        " ".join([*body[:59], "other"]) + "\n\nfour five six seven",
        "four five six seven\n\nown text of d2",
    ]
    config = replace(PARAGRAPHS, method="minhash")
    _, rows = run(tmp_path, dated(texts), config)
    assert rows["d1"]["reason"] == "NEAR_DUPLICATE"
    assert rows["d2"]["cuts"] == []


def lines_by_definition(texts: list[str], min_units: int) -> list[str]:
    seen: set[str] = set()
    left = []
    for text in texts:
        rest = []
        for line in text.splitlines():
            words_of_line = line.casefold().split()
            key = " ".join(words_of_line)
            if len(words_of_line) < min_units or key not in seen:
                rest.append(line)
            if len(words_of_line) >= min_units:
                seen.add(key)
        left.append("\n".join(rest))
    return left


@pytest.mark.parametrize(
    "config", [LINES, replace(PARAGRAPHS, cuts=replace(PARAGRAPHS.cuts, min_piece_units=3))]
)
def test_cuts_are_those_of_the_definition(
    tmp_path_factory: pytest.TempPathFactory, config: DedupConfig
) -> None:
    separator = "\n" if config is LINES else "\n\n"

    @settings(deadline=None, max_examples=12, database=None)
    @given(st.integers(0, 1 << 30))
    def check(seed: int) -> None:
        texts = list(dict.fromkeys(repetitive_texts(seed, separator)))
        _, rows = run(tmp_path_factory.mktemp("case"), dated(texts), config, num_parts=2)
        expected = lines_by_definition([t.replace("\n\n", "\n") for t in texts], 3)
        left = remaining(dated(texts), rows)
        for i, rest in enumerate(expected):
            assert left.get(f"d{i}", "").replace("\n\n", "\n").strip() == rest.strip()

    check()


def test_the_filter_cuts_what_sorting_cuts(tmp_path: Path) -> None:
    documents = dated(
        list(dict.fromkeys(t for seed in range(40) for t in repetitive_texts(seed % 7, "\n")))
    )
    _, exact = run(tmp_path / "exact", documents, LINES, num_parts=3)
    bloom = replace(LINES, cuts=replace(LINES.cuts, piece_memory="bloom", bloom_error=1e-9))
    _, rows = run(tmp_path / "bloom", documents, bloom, num_parts=2)
    assert rows == exact and any(row["cuts"] for row in rows.values())


def test_cuts_that_a_filter_makes_by_mistake_are_told(tmp_path: Path) -> None:
    documents = dated(
        ["\n".join(" ".join(words(20 * i + j, 3)) for j in range(20)) for i in range(60)]
    )
    artifact, _ = run(tmp_path / "exact", documents, LINES)
    assert artifact.metrics["expected_false_cuts"] == 0
    artifact, rows = run(
        tmp_path / "bloom",
        documents,
        replace(LINES, cuts=replace(LINES.cuts, piece_memory="bloom", bloom_error=0.01)),
    )
    assert 0.1 < artifact.metrics["expected_false_cuts"] < 0.01 * 1200
    assert sum(len(row["cuts"]) for row in rows.values()) < 12


@pytest.mark.parametrize(("memory", "most"), [("bloom", 9), ("exact", 45)])
def test_memory_is_what_the_filter_or_sorting_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: Any, most: float
) -> None:
    """Bytes by which another piece raises the peak; spans, keys and cuts of ten pieces a document
    are on disk."""
    monkeypatch.setattr(repeated_pieces, "_PIECES_AT_ONCE", 1 << 12)
    config = CutsConfig(pieces="line", piece_memory=memory)

    def peak(num_documents: int, traced: bool = True) -> int:
        folder = tmp_path / f"{num_documents}"
        folder.mkdir()
        pieces = np.arange(10 * num_documents)
        np.save(
            folder / "keys.npy",
            np.random.default_rng(0).integers(0, 1 << 64, (len(pieces), 2), dtype=np.uint64),
        )
        np.save(
            folder / "spans.npy",
            np.stack([pieces // 10, pieces % 10 * 50, pieces % 10 * 50 + 50], axis=1),
        )
        np.save(folder / "firsts.npy", np.arange(num_documents + 1) * 10)
        write_sealed(folder / PART_FILE, {"counters": {"pieces": len(pieces)}})
        part, made = Part("p", "p", {}), PartResult("p", folder)
        owners, earlier = [np.arange(num_documents)], np.zeros((0, 2), np.uint64)
        if traced:
            tracemalloc.start()
        found = repeated_pieces.find_repeated_pieces(
            [part], owners, earlier, config, lambda *_: [made], tmp_path
        )
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(found.document) == len(found.keys) == 0
        return highest

    peak(100, traced=False)  # compiles
    assert (peak(30_000) - peak(10_000)) / 200_000 < most
