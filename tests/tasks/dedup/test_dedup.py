"""Duplicates go, originals stay, and nobody's order of reading decides which."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError, build
from tasks.dedup.config import DedupConfig
from tasks.dedup.signatures import choose_bands
from tasks.dedup.stage import deduplicate
from tasks.runtime.artifact import Artifact, ArtifactMismatch, digest_file
from tasks.runtime.parts import PartRunner, process_executor, thread_executor
from tasks.runtime.stage import StageFailure
from tests.support.data.dedup_runs import (
    COUNTED,
    SAMPLE,
    document_id,
    kept,
    make_parents,
    mixed_corpus,
    named,
    near_pairs,
    run,
    sample_documents,
    similarity,
    words,
)

# --- what goes and what stays
# -----------------------------------------------------------------------


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


# --- who survives
# -----------------------------------------------------------------------------------


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


# --- size
# -------------------------------------------------------------------------------------------


def test_a_hundred_thousand_equal_documents_take_seconds(tmp_path: Path) -> None:
    started = time.perf_counter()
    artifact, _ = run(tmp_path, named(["the same few words again and again"] * 100_000))
    assert artifact.counters["kept"] == 1
    assert artifact.metrics["clusters"][0]["size"] == 100_000
    assert time.perf_counter() - started < 60


def test_thousands_of_nearly_equal_documents_cost_linear_work(tmp_path: Path) -> None:
    text = " ".join(words(2, 100))
    artifact, _ = run(tmp_path, named([f"{text} {i}" for i in range(5000)]))
    assert artifact.counters["dropped"] == {"NEAR_DUPLICATE": 4999}
    assert artifact.metrics["candidate_pairs"] < 20 * 5000


# --- the sample
# -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, dict[str, dict]]:
    return run(tmp_path_factory.mktemp("sample"), sample_documents(), num_parts=3)


def truth(kind: str) -> list[list[str]]:
    lines = map(json.loads, (SAMPLE / "truth_dups.jsonl").read_text("utf-8").splitlines())
    return [line["ids"] for line in lines if line["type"] == kind]


def test_every_exact_duplicate_of_the_sample_is_found(
    sample: tuple[Artifact, dict[str, dict]],
) -> None:
    _, rows = sample
    for group in truth("exact"):
        assert len({rows[name]["cluster_id"] for name in group}) == 1
        assert sum(rows[name]["kept"] for name in group) <= 1


def test_near_pairs_of_the_sample_fare_as_their_exact_similarity_says(
    sample: tuple[Artifact, dict[str, dict]],
) -> None:
    from tests.tasks.kernels.dedup.test_minhash import shingles_by_definition

    artifact, rows = sample
    text_of = {d["name"]: d["text"] for d in sample_documents()}
    pairs = near_pairs(artifact)
    together = alike = 0
    for a, b in truth("near"):
        one, two = (set(shingles_by_definition(text_of[name], 5)) for name in (a, b))
        jaccard = len(one & two) / max(len(one | two), 1)
        recorded = pairs.get((rows[a]["id"], rows[b]["id"])) or pairs.get(
            (rows[b]["id"], rows[a]["id"])
        )
        assert recorded is None or recorded["jaccard"] == jaccard
        if jaccard >= 0.8:
            assert not (rows[a]["kept"] and rows[b]["kept"])
        if jaccard >= 0.5:
            alike += 1
            together += rows[a]["family_id"] == rows[b]["family_id"]
    assert alike > 100
    assert together >= 0.97 * alike


def test_metrics_describe_the_sample(sample: tuple[Artifact, dict[str, dict]]) -> None:
    artifact, rows = sample
    metrics = artifact.metrics
    histogram = metrics["cluster_size_histogram"]
    assert sum(int(size) * n for size, n in histogram.items()) == artifact.counters["read"]
    assert sum(histogram.values()) == artifact.counters["kept"] == len(kept(rows))
    assert metrics["families"] == len({row["family_id"] for row in rows.values()})
    assert metrics["lsh"]["num_bands"] == 14 and metrics["lsh"]["rows_per_band"] == 8
    assert metrics["clusters"][0]["size"] == max(row["cluster_size"] for row in rows.values())
    json.dumps(metrics, allow_nan=False)


# --- what a user can get wrong
# ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"num_perms": 100},
            r"num_perms \(100\) must be a multiple of num_bands \(14\); try num_bands=10",
        ),
        ({"num_bands": 0}, "must be a multiple of num_bands"),
        ({"threshold": 0.4}, "family_threshold"),
        ({"threshold": 1.5}, "threshold"),
        ({"survivor": ["length"]}, "end with id"),
        ({"survivor": ["length", "length", "id"]}, "once"),
        ({"survivor": ["weight", "id"]}, "not a choice"),
        ({"shingle_units": 0}, "shingle_units"),
        ({"full_bucket_documents": 1}, "full_bucket_documents"),
        ({"seed": -1}, "seed"),
        ({"num_perm": 128}, "did you mean num_perms"),
    ],
)
def test_a_bad_setting_is_named_with_its_rule(values: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(DedupConfig, values, "dedup")


def test_bands_can_be_left_to_datasketch() -> None:
    config = DedupConfig(num_bands=None, num_family_bands=None)
    (bands, rows), (family_bands, family_rows) = choose_bands(config)
    assert bands * rows <= 112 and family_bands * family_rows <= 112
    assert family_rows < rows


def test_bands_that_datasketch_cannot_choose_are_asked_for() -> None:
    with pytest.raises(
        ConfigError, match=r"no bands of num_perms \(2\) for a similarity of 1\.0 .*; set num_bands"
    ):
        choose_bands(DedupConfig(num_perms=2, num_bands=None, num_family_bands=2, threshold=1.0))


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
    with pytest.raises(ArtifactMismatch, match="does not belong"):
        deduplicate(ingest, quality, tmp_path / "out", DedupConfig())


def test_every_choice_in_conf_builds() -> None:
    yaml = pytest.importorskip("yaml")
    files = sorted((Path(__file__).resolve().parents[3] / "conf" / "dedup").glob("*.yaml"))
    assert {f.stem for f in files} >= {"minhash", "exact"}
    configs = {f.stem: build(DedupConfig, yaml.safe_load(f.read_text("utf-8"))) for f in files}
    assert configs["minhash"] == DedupConfig()
