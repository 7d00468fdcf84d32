"""Duplicates go, originals stay, and nobody's order of reading decides which."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.dedup.config import DedupConfig
from tasks.dedup.stage import deduplicate
from tasks.runtime.artifact import ArtifactMismatch
from tasks.runtime.stage import StageFailure
from tests.support.data.dedup_runs import (
    COUNTED,
    kept,
    make_parents,
    named,
    near_pairs,
    run,
    similarity,
    words,
)


def test_short_documents_collapse_only_when_equal(tmp_path: Path) -> None:
    texts = ["one two three four"] * 3 + [
        "one two three five",
        "C",
        "C++",
        "c",
        "!!!",
        "!!!",
        "???",
    ]
    _, rows = run(tmp_path, named(texts))
    assert len(kept(rows)) == 6  # each text once; C and c are equal but for case, C++ is not
    assert len({rows[f"d{i}"]["cluster_id"] for i in range(3)}) == 1
    assert [rows[f"d{i}"]["reason"] for i in (4, 6)].count("EXACT_DUPLICATE") == 1
    assert rows["d5"]["kept"] and rows["d9"]["kept"]


def test_blank_documents_never_cluster_together(tmp_path: Path) -> None:
    _, rows = run(tmp_path, named(["", " ", "\n\t", "word", ""]))
    assert len(kept(rows)) == 5
    assert len({row["family_id"] for row in rows.values()}) == 5


def test_documents_from_one_template_with_bodies_of_their_own_all_stay(tmp_path: Path) -> None:
    template = words(0, 180)
    texts = [" ".join(template[:90] + words(i + 1, 120) + template[90:]) for i in range(300)]
    artifact, rows = run(tmp_path, named(texts))
    assert len(kept(rows)) == 300
    assert artifact.counters == COUNTED | {"read": 300, "kept": 300}
    assert artifact.metrics["family_candidate_pairs"] > 0  # it was tempted


def test_a_chain_of_edits_does_not_collapse_into_its_first_link(tmp_path: Path) -> None:
    text = words(1, 200)
    versions = []
    for step in range(
        30
    ):  # each differs a little from the one before, the last has nothing of the first
        versions.append(" ".join(text))
        text[step * 6 : step * 6 + 6] = words(100 + step, 6)
    _, rows = run(tmp_path, named(versions))
    by_id = {row["id"]: name for name, row in rows.items()}
    text_of = {d["name"]: d["text"] for d in named(versions)}
    assert 3 <= len(kept(rows)) < 30
    for name, row in rows.items():
        assert (
            name in kept(rows)
            or similarity(text_of[name], text_of[by_id[row["cluster_id"]]]) >= 0.8
        )
    assert len({row["family_id"] for row in rows.values()}) == 1


def test_near_duplicates_follow_exact_similarity_in_every_case(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    @settings(deadline=None, max_examples=25, database=None)
    @given(st.integers(0, 1 << 30), st.integers(2, 25), st.sampled_from([0.6, 0.8, 0.9]))
    def check(seed: int, count: int, threshold: float) -> None:
        rng = random.Random(seed)
        bases = [words(rng.getrandbits(30), rng.randint(4, 60)) for _ in range(3)]
        texts = []
        for _ in range(count):
            text = list(rng.choice(bases))
            for _ in range(rng.choice([0, 0, 1, 2, 4])):
                text[rng.randrange(len(text))] = words(rng.getrandbits(30), 1)[0]
            texts.append(" ".join(text))
        config = DedupConfig(threshold=threshold)
        artifact, rows = run(tmp_path_factory.mktemp("case"), named(texts), config)
        names = {row["id"]: name for name, row in rows.items()}
        text_of = {d["name"]: d["text"] for d in named(texts)}
        pairs = near_pairs(artifact)
        for (a, b), row in pairs.items():
            assert (
                row["jaccard"]
                == similarity(text_of[names[a]], text_of[names[b]])
                >= config.family_threshold
            )
        for name, row in rows.items():
            head = names[row["cluster_id"]]
            assert rows[head]["kept"] and rows[head]["cluster_id"] == row["cluster_id"]
            assert rows[head]["family_id"] == row["family_id"]
            assert row["cluster_size"] == sum(
                r["cluster_id"] == row["cluster_id"] for r in rows.values()
            )
            if row["reason"] == "NEAR_DUPLICATE":
                assert similarity(text_of[name], text_of[head]) >= threshold
                assert pairs[row["cluster_id"], row["id"]]["removed"]
            elif row["reason"] == "EXACT_DUPLICATE":
                copies = [
                    n
                    for n in rows
                    if text_of[n] == text_of[name] and rows[n]["reason"] != "EXACT_DUPLICATE"
                ]
                assert len(copies) == 1 and rows[copies[0]]["cluster_id"] == row["cluster_id"]
            else:
                assert row["kept"] and head == name
        stay = sorted(kept(rows))
        assert len({text_of[n] for n in stay}) == len(stay)
        assert sum(r["removed"] for r in pairs.values()) == artifact.counters["dropped"].get(
            "NEAR_DUPLICATE", 0
        )

    check()


def test_near_duplicates_are_found_as_often_as_theory_promises(tmp_path: Path) -> None:
    rng = random.Random(5)
    texts = []
    for i in range(150):
        text = words(1000 + i, 120)
        copy = list(text)
        for place in rng.sample(range(120), rng.choice([1, 2, 3])):
            copy[place] = words(5000 + 200 * i + place, 1)[0]
        texts += [" ".join(text), " ".join(copy)]
    _, rows = run(tmp_path, named(texts))
    alike = [i for i in range(0, 300, 2) if similarity(texts[i], texts[i + 1]) >= 0.8]
    found = sum(rows[f"d{i}"]["cluster_id"] == rows[f"d{i + 1}"]["cluster_id"] for i in alike)
    assert len(alike) > 90
    assert found == len(alike)  # the family banding meets pairs of 0.8 with probability 0.9999996
    assert len(kept(rows)) == 300 - len(alike)


def test_a_hundred_thousand_equal_documents_are_one_cluster(tmp_path: Path) -> None:
    artifact, _ = run(tmp_path, named(["the same few words again and again"] * 100_000))
    assert artifact.counters["kept"] == 1
    assert artifact.metrics["clusters"][0]["size"] == 100_000


def test_thousands_of_nearly_equal_documents_cost_linear_work(tmp_path: Path) -> None:
    text = " ".join(words(2, 100))
    artifact, _ = run(tmp_path, named([f"{text} {i}" for i in range(5000)]))
    assert artifact.counters["dropped"] == {"NEAR_DUPLICATE": 4999}
    assert artifact.metrics["candidate_pairs"] < 20 * 5000


def test_no_documents_is_a_clear_failure(tmp_path: Path) -> None:
    with pytest.raises(StageFailure, match="quality kept none"):
        run(tmp_path, named(["some text"]), dropped={"d0"})


def test_verdicts_of_other_documents_are_refused(tmp_path: Path) -> None:
    ingest, _ = make_parents(tmp_path / "one", named(["a", "b"]))
    (tmp_path / "two").mkdir()
    _, quality = make_parents(
        tmp_path / "two", [{"name": "x", "text": "a"}, {"name": "y", "text": "b"}]
    )
    (tmp_path / "out").mkdir()
    with pytest.raises(ArtifactMismatch, match="was made for other documents"):
        deduplicate(ingest, quality, tmp_path / "out", DedupConfig())
