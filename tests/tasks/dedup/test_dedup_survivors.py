"""Of a cluster the preferred document survives, in whatever order the documents are read."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.dedup.config import DedupConfig
from tasks.runtime.artifact import ArtifactMismatch, digest_file
from tasks.runtime.parts import PartRunner, process_executor, thread_executor
from tests.support.data.dedup_runs import (
    COUNTED,
    document_id,
    kept,
    mixed_corpus,
    named,
    near_pairs,
    run,
    words,
)


def test_only_documents_that_quality_kept_take_part(tmp_path: Path) -> None:
    text = " ".join(words(3, 50))
    artifact, rows = run(tmp_path, named([text + " more", text, text, text]), dropped={"d0", "d2"})
    assert rows["d0"] == rows["d2"] | {"id": document_id("d0")}
    assert rows["d2"] | {"id": None} == dict.fromkeys(rows["d2"]) | {"kept": False}
    assert artifact.counters == COUNTED | {"read": 2, "kept": 1, "dropped": {"EXACT_DUPLICATE": 1}}


def test_exact_method_leaves_near_duplicates(tmp_path: Path) -> None:
    text = " ".join(words(3, 50))
    artifact, rows = run(
        tmp_path, named([text, text.upper(), text + " more"]), DedupConfig(method="exact")
    )
    assert len(kept(rows)) == 2
    assert near_pairs(artifact) == {}
    assert len({row["family_id"] for row in rows.values()}) == 2


def test_the_longest_document_survives_and_ties_go_to_the_smaller_id(tmp_path: Path) -> None:
    text = " ".join(words(3, 80))
    _, rows = run(tmp_path, named([text, text + " and more", text + " or few", text]))
    assert kept(rows) == {"d1"}
    _, tied = run(tmp_path / "tied", named([text] * 5))
    assert kept(tied) == {min(tied, key=document_id)}


def test_preference_of_sources_and_dates_is_obeyed(tmp_path: Path) -> None:
    text = " ".join(words(3, 80))
    documents = [
        {
            "name": "crawl",
            "text": text + " with a tail",
            "source": "crawl",
            "added_at": "2020-01-01",
        },
        {"name": "book", "text": text, "source": "book", "added_at": "2021-01-01"},
        {"name": "undated", "text": text, "source": "other"},
    ]
    by_source = DedupConfig(
        survivor=("source_priority", "length", "id"), source_priority=("book", "crawl")
    )
    assert kept(run(tmp_path / "a", documents, by_source)[1]) == {"book"}
    by_date = DedupConfig(survivor=("date", "id"))
    assert kept(run(tmp_path / "b", documents, by_date)[1]) == {"crawl"}


def test_quality_may_decide_who_survives(tmp_path: Path) -> None:
    text = " ".join(words(3, 80))
    documents = [
        {"name": "long", "text": text + " with a tail", "score": 0.5},
        {"name": "good", "text": text, "score": 0.75},
        {"name": "unknown", "text": text.upper()},
    ]
    config = DedupConfig(survivor=("quality", "length", "id"), quality_column="score")
    assert kept(run(tmp_path / "a", documents, config)[1]) == {"good"}
    with pytest.raises(
        ArtifactMismatch, match=r"quality_column \(scores\) is not a number .* did you mean score"
    ):
        run(
            tmp_path / "b",
            documents,
            DedupConfig(survivor=("quality", "id"), quality_column="scores"),
        )


def test_pages_of_one_url_are_versions_of_which_one_stays(tmp_path: Path) -> None:
    old, new = (" ".join(words(seed, 60)) for seed in (1, 2))
    documents = [
        {
            "name": "old",
            "text": old,
            "url": "http://example.org/page?utm_source=mail",
            "added_at": "2020",
        },
        {"name": "new", "text": new, "url": "HTTP://example.org/page#top", "added_at": "2024"},
        {"name": "copy of new", "text": new, "url": "http://example.org/other", "added_at": "2025"},
        {"name": "nowhere", "text": " ".join(words(3, 60)), "url": None, "added_at": "2025"},
        {"name": "nowhere too", "text": " ".join(words(4, 60)), "url": None, "added_at": "2025"},
    ]
    config = DedupConfig(survivor=("date", "id"), same_url=True)
    artifact, rows = run(tmp_path / "on", documents, config)
    # A text that is out does not take its copies with it.
    assert kept(rows) == {"old", "copy of new", "nowhere", "nowhere too"}
    assert (rows["new"]["reason"], rows["new"]["cluster_id"]) == ("SAME_URL", rows["old"]["id"])
    assert rows["old"]["cluster_size"] == 2
    assert artifact.counters["dropped"] == {"SAME_URL": 1}
    _, off = run(tmp_path / "off", documents, DedupConfig(survivor=("date", "id")))
    assert off["new"]["kept"] and off["copy of new"]["reason"] == "EXACT_DUPLICATE"


def test_survivors_have_no_duplicates_among_them(tmp_path_factory: pytest.TempPathFactory) -> None:
    @settings(deadline=None, max_examples=5, database=None)
    @given(st.integers(0, 1 << 30), st.integers(1, 20))
    @example(8, 60)
    def check(seed: int, num_bases: int) -> None:
        tmp_path = tmp_path_factory.mktemp("case")
        documents = mixed_corpus(seed, num_bases)
        _, rows = run(tmp_path / "first", documents)
        stay = [d for d in documents if rows[d["name"]]["kept"]]
        artifact, again = run(tmp_path / "second", stay)
        assert 0 < len(stay) <= len(documents)
        assert artifact.counters["dropped"] == {} and kept(again) == {d["name"] for d in stay}

    check()


def test_order_and_layout_of_the_documents_do_not_change_the_outcome(tmp_path: Path) -> None:
    documents = mixed_corpus()
    first, expected = run(tmp_path / "first", documents)
    assert 0 < len(kept(expected)) < len(documents)
    for seed, num_parts in ((1, 1), (2, 3), (3, 7)):
        shuffled = random.Random(seed).sample(documents, len(documents))
        artifact, rows = run(tmp_path / str(seed), shuffled, num_parts=num_parts)
        assert rows == expected
        assert digest_file(artifact.file("pairs.parquet")) == digest_file(
            first.file("pairs.parquet")
        )
        assert artifact.counters == first.counters and artifact.metrics == first.metrics


def bytes_of_run(root: Path, runner: PartRunner) -> dict[str, str]:
    artifact, _ = run(root, mixed_corpus(), num_parts=4, run_parts=runner)
    return {f.name: digest_file(f) for f in artifact.files("*")}


def test_bytes_are_the_same_for_any_number_of_threads(tmp_path: Path) -> None:
    alone = bytes_of_run(tmp_path / "alone", PartRunner())
    assert sorted(alone) == ["pairs.parquet", *(f"part-0000{i}.parquet" for i in range(4))]
    assert alone == bytes_of_run(tmp_path / "four", PartRunner(make_executor=thread_executor(4)))


@pytest.mark.slow
def test_bytes_are_the_same_in_processes(tmp_path: Path) -> None:
    alone = bytes_of_run(tmp_path / "alone", PartRunner())
    assert alone == bytes_of_run(tmp_path / "two", PartRunner(make_executor=process_executor(2)))


@pytest.mark.parametrize("num_parts", [1, 4])
def test_of_two_repositories_that_share_files_one_keeps_all_of_them(
    tmp_path: Path, num_parts: int
) -> None:
    """A fork has longer copies of some files and shorter ones of others, and fewer files."""
    documents = []
    for name, numbers, extra in (("origin", range(8), 0), ("fork", range(6), 1)):
        for i in numbers:
            words = [f"w{i}x{k}" for k in range(60)] + ["more"] * (extra if i % 2 else 1 - extra)
            told = json.dumps({"repository": name})
            documents.append({"name": f"{name}/{i}", "text": " ".join(words), "metadata": told})
    documents.append({"name": "alone", "text": " ".join(f"w0x{k}" for k in range(60)) + " a b c"})
    by_length = run(tmp_path / "length", documents, num_parts=num_parts)[1]
    config = DedupConfig(survivor=("group", "length", "id"), group_key="repository")
    by_group = run(tmp_path / "group", documents, config, num_parts=num_parts)[1]
    assert set(kept(by_group)) == {f"origin/{i}" for i in range(8)}
    assert {name.split("/")[0] for name in kept(by_length)} > {"origin"}
