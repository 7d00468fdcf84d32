"""The documents stage: what is kept, how it is divided, and what is told of the rest."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from tasks.contamination.config import ContaminationConfig
from tasks.contamination.stage import find_contamination
from tasks.corpus.documentset import ID, read_table, write_table
from tasks.documents.config import DocumentsConfig
from tasks.documents.mixture import MixtureConfig
from tasks.documents.split import SplitRule, choose_split
from tasks.documents.stage import write_documents
from tasks.runtime.artifact import Artifact, ArtifactMismatch, check_accounting
from tasks.runtime.parts import PartRunner, serial, thread_executor
from tasks.runtime.stage import StageFailure
from tests.support.data.make_artifacts import (
    empty_dir,
    ingest_files,
    make_sidecar,
    read_documents,
    write_jsonl,
)

NUM = 60
RANGES = pa.list_(pa.struct([("start", pa.int64()), ("end", pa.int64()), ("reason", pa.string())]))
MASKS = pa.list_(pa.struct([("start", pa.int64()), ("end", pa.int64()), ("type", pa.string())]))
SPANS = pa.list_(
    pa.struct(
        [
            ("start", pa.int64()),
            ("end", pa.int64()),
            ("type", pa.string()),
            ("replacement", pa.string()),
        ]
    )
)


def span_of(text: bytes, found: str) -> dict[str, object]:
    start = text.index(found.encode())
    return {"start": start, "end": start + len(found), "type": "EMAIL", "replacement": "<EMAIL>"}


@pytest.fixture(scope="module")
def parents(tmp_path_factory) -> dict[str, Artifact]:
    """60 documents in four files: every tenth is of bad quality, every seventh a duplicate of the
    one before."""
    folder = tmp_path_factory.mktemp("parents")
    texts = [
        f"Document {i} speaks of {'é' * (i % 9)} to user{i}@example.org and others."
        for i in range(NUM)
    ]
    for part in range(4):
        records = [
            {"id": str(i), "text": texts[i], "url": f"u{i}"}
            for i in range(part * 15, part * 15 + 15)
        ]
        write_jsonl(folder / "in" / f"{part}.jsonl", records)
    ingested = ingest_files(folder, "ingest", [folder / "in"])
    ids = [row["id"] for row in read_documents(ingested)]
    good = [i % 10 != 0 for i in range(NUM)]
    survives = [good[i] and not (i % 7 == 0 and good[i - 1]) for i in range(NUM)]
    family = [None if not good[i] else ids[i] if survives[i] else ids[i - 1] for i in range(NUM)]
    reasons = [None if survives[i] or not good[i] else "NEAR_DUPLICATE" for i in range(NUM)]
    drops = [0 if g else (0b100 if i % 20 else 0b101) for i, g in enumerate(good)]
    sizes = [len(text.encode()) for text in texts]
    language = make_sidecar(
        ingested,
        "language",
        folder / "language",
        [("language", pa.string(), ["en", "zh"] * (NUM // 2))],
    )
    quality = make_sidecar(
        ingested,
        "quality",
        folder / "quality",
        [
            ("num_bytes", pa.int64(), sizes),
            ("drops", pa.uint64(), drops),
            ("kept", pa.bool_(), good),
        ],
    )
    rules = [
        {"bit": 0, "name": "A", "drops": True},
        {"bit": 1, "name": "B", "drops": False},
        {"bit": 2, "name": "C", "drops": True},
    ]
    quality = dataclasses.replace(
        quality, counters=quality.counters | {"dropped": {"A": 3, "C": 3}}, metrics={"rules": rules}
    )
    columns = [
        ("family_id", ID, family),
        ("cluster_size", pa.int32(), [1 if g else None for g in good]),
        ("kept", pa.bool_(), survives),
        ("reason", pa.string(), reasons),
        ("cuts", RANGES, [[] if g else None for g in good]),
    ]
    dedup = make_sidecar(ingested, "dedup", folder / "dedup", columns)
    lost = [i for i in range(NUM) if reasons[i]]
    pairs = {
        "a": pa.array([ids[i - 1] for i in lost], ID),
        "b": pa.array([ids[i] for i in lost], ID),
        "jaccard": pa.array([0.8 + i / 1000 for i in lost]),
        "removed": pa.array([True] * len(lost)),
    }
    write_table(pa.table(pairs), dedup.path / "pairs.parquet")
    spans = [[span_of(text.encode(), f"user{i}@example.org")] for i, text in enumerate(texts)]
    pii = make_sidecar(
        ingested,
        "pii",
        folder / "pii",
        [("spans", SPANS, spans), ("kept", pa.bool_(), [True] * NUM)],
    )
    clean = find_contamination(ingested, empty_dir(folder / "contamination"), ContaminationConfig())
    return {
        "ingest": ingested,
        "language": language,
        "quality": quality,
        "dedup": dedup,
        "pii": pii,
        "contamination": clean,
    }


def make(parents: dict[str, Artifact], out_dir, runner=serial, **config) -> Artifact:
    return write_documents(*parents.values(), empty_dir(out_dir), DocumentsConfig(**config), runner)


def test_kept_documents_are_joined_scrubbed_and_counted(parents, tmp_path) -> None:
    artifact = make(parents, tmp_path / "out")
    rows = read_documents(artifact)
    check_accounting("documents", artifact.counters)
    assert artifact.counters["read"] == NUM and artifact.counters["kept"] == len(rows)
    sources = {row["id"]: row for row in read_documents(parents["ingest"])}
    for row in rows:
        i = int(row["source_id"])
        assert i % 10 != 0 and row["family_id"] == row["id"] and row["url"] == f"u{i}"
        assert row["language"] == ("en", "zh")[i % 2]
        assert row["text"] == sources[row["id"]]["text"].replace(f"user{i}@example.org", "<EMAIL>")
    lost = len([i for i in range(0, NUM, 7) if i % 10 != 0 and (i - 1) % 10 != 0])
    assert artifact.counters["dropped"] == {"A": 3, "C": 3, "NEAR_DUPLICATE": lost}
    assert [step["documents"] for step in artifact.metrics["funnel"]] == [
        60,
        60,
        54,
        54 - lost,
        54 - lost,
    ]
    assert artifact.metrics["dropped"]["quality"] == {"A": 3, "C": 3}
    for table in ("by_language", "by_source", "split"):
        entries = artifact.metrics[table].values()
        assert sum(e["documents"] for e in entries) == len(rows)
        assert sum(e["bytes"] for e in entries) == sum(len(r["text"].encode()) for r in rows)
    assert {s: e["families"] for s, e in artifact.metrics["split"].items()} == {
        s: len({r["family_id"] for r in rows if r["split"] == s}) for s in ("train", "validation")
    }


def with_columns(parents: dict[str, Artifact], folder, **added) -> dict[str, Artifact]:
    """The same parents with columns {stage: {name: (type, values)}} added to, or put in place in,
    their sidecars."""
    changed = dict(parents)
    for stage, columns in added.items():
        out = empty_dir(folder / stage)
        begin = 0
        for file in parents[stage].files("*.parquet"):
            table = read_table(file)
            if file.name.startswith("part-"):
                for name, (kind, values) in columns.items():
                    column = pa.chunked_array(
                        [pa.array(values[begin : begin + table.num_rows], kind)]
                    )
                    known = name in table.column_names
                    table = (
                        table.set_column(table.column_names.index(name), name, column)
                        if known
                        else table.append_column(name, column)
                    )
                begin += table.num_rows
            write_table(table, out / file.name)
        changed[stage] = dataclasses.replace(parents[stage], path=out)
    return changed


def test_cuts_masks_and_replacements_are_applied_and_what_is_emptied_goes(
    parents, tmp_path
) -> None:
    texts = [row["text"].encode() for row in read_documents(parents["ingest"])]
    cuts = [[{"start": 0, "end": 9, "reason": "LINE"}] for _ in texts]
    cuts[1] = [{"start": 0, "end": len(texts[1]), "reason": "LINE"}]
    cuts[2] = [
        {"start": 0, "end": len(texts[2]) - 7, "reason": "LINE"},
        {"start": len(texts[2]) - 8, "end": len(texts[2]), "reason": "LINE"},
    ]
    masks = [
        [{"start": t.index(b"speaks"), "end": t.index(b"speaks") + 6, "type": "WORD"}]
        for t in texts
    ]
    spans = [
        [
            {
                "start": t.index(b"user"),
                "end": t.index(b" and"),
                "type": "EMAIL",
                "replacement": "you@there",
            }
        ]
        for t in texts
    ]
    edited = with_columns(
        parents,
        tmp_path,
        dedup={"cuts": (RANGES, cuts)},
        quality={"masks": (MASKS, masks)},
        pii={"spans": (SPANS, spans)},
    )
    artifact = make(edited, tmp_path / "out")
    check_accounting("documents", artifact.counters)
    assert artifact.counters["dropped"]["EMPTIED"] == 2 and artifact.metrics["dropped"][
        "documents"
    ] == {"EMPTIED": 2}
    for row in read_documents(artifact):
        i = int(row["source_id"])
        assert row["text"] == f"{i} <WORD> of {'é' * (i % 9)} to you@there and others."
    assert artifact.counters["bytes"] == sum(
        len(r["text"].encode()) for r in read_documents(artifact)
    )


def test_lines_that_quality_cuts_go_beside_what_dedup_cuts(parents, tmp_path) -> None:
    texts = [row["text"].encode() for row in read_documents(parents["ingest"])]
    cuts = [[{"start": 0, "end": 9, "reason": "LINE"}] for _ in texts]
    lines = [[{"start": 4, "end": t.index(b" speaks"), "reason": "C4"}] for t in texts]
    lines[1] = [{"start": 9, "end": len(texts[1]), "reason": "C4"}]
    edited = with_columns(
        parents, tmp_path, dedup={"cuts": (RANGES, cuts)}, quality={"cuts": (RANGES, lines)}
    )
    artifact = make(edited, tmp_path / "out")
    assert artifact.counters["dropped"]["EMPTIED"] == 1
    rows = read_documents(artifact)
    assert {row["text"] for row in rows} == {
        f" speaks of {'é' * (int(r['source_id']) % 9)} to <EMAIL> and others." for r in rows
    }
    assert artifact.counters["bytes"] == sum(len(row["text"].encode()) for row in rows)


def test_contaminated_documents_go_and_count_only_where_nothing_before_dropped_them(
    parents, tmp_path
) -> None:
    contaminated = [i % 5 == 0 for i in range(NUM)]
    reasons = ["CONTAMINATED" if one else None for one in contaminated]
    columns = {
        "kept": (pa.bool_(), [not one for one in contaminated]),
        "reason": (pa.string(), reasons),
    }
    artifact = make(with_columns(parents, tmp_path, contamination=columns), tmp_path / "out")
    check_accounting("documents", artifact.counters)
    before = {int(row["source_id"]) for row in read_documents(make(parents, tmp_path / "before"))}
    assert {int(row["source_id"]) for row in read_documents(artifact)} == {
        i for i in before if i % 5
    }
    assert artifact.metrics["dropped"]["contamination"] == {
        "CONTAMINATED": sum(i % 5 == 0 for i in before)
    }


def test_documents_that_pii_drops_count_only_where_no_judge_before_did(parents, tmp_path) -> None:
    dropping = with_columns(
        parents, tmp_path, pii={"kept": (pa.bool_(), [i % 4 != 0 for i in range(NUM)])}
    )
    artifact = make(dropping, tmp_path / "out")
    check_accounting("documents", artifact.counters)
    before = {int(row["source_id"]) for row in read_documents(make(parents, tmp_path / "before"))}
    assert {int(row["source_id"]) for row in read_documents(artifact)} == {
        i for i in before if i % 4
    }
    assert artifact.counters["dropped"]["PII"] == sum(i % 4 == 0 for i in before)
    assert artifact.metrics["funnel"][-2]["stage"] == "pii"


def test_a_mixture_repeats_and_drops_training_documents_only(parents, tmp_path) -> None:
    plain = {
        row["id"]: row
        for row in read_documents(make(parents, tmp_path / "plain", validation_frac=0.3))
    }
    assert {row["repeats"] for row in plain.values()} == {1}
    mixture = MixtureConfig(language_frac={"zh": 0.8}, max_repeats=10)
    artifact = make(parents, tmp_path / "mixed", validation_frac=0.3, mixture=mixture)
    check_accounting("documents", artifact.counters)
    mixed = {row["id"]: row for row in read_documents(artifact)}
    validation = {key: row for key, row in plain.items() if row["split"] == "validation"}
    assert {key: row for key, row in mixed.items() if row["split"] == "validation"} == validation
    assert {row["split"] for row in mixed.values()} == {"train", "validation"}
    assert all(
        row["split"] == plain[key]["split"] and row["text"] == plain[key]["text"]
        for key, row in mixed.items()
    )
    assert artifact.counters["dropped"]["MIXTURE"] == len(plain) - len(mixed) > 0
    read = {"en": 0, "zh": 0}
    for row in mixed.values():
        if row["split"] == "train":
            read[row["language"]] += row["repeats"] * len(row["text"].encode())
    reached = {
        language: entry["reached_bytes"]
        for language, entry in artifact.metrics["mixture"]["by_language"].items()
    }
    assert reached == read and artifact.metrics["mixture"]["configured"]
    assert read["zh"] / sum(read.values()) == pytest.approx(0.8, abs=0.08)
    assert artifact.metrics["mixture"]["by_language"]["zh"]["planned_bytes"] == pytest.approx(
        0.8 * artifact.metrics["mixture"]["bytes"], abs=2
    )


def test_survivors_of_larger_clusters_are_read_more_often(parents, tmp_path) -> None:
    sized = with_columns(
        parents, tmp_path, dedup={"cluster_size": (pa.int32(), [1 + i % 3 for i in range(NUM)])}
    )
    rows = read_documents(
        make(sized, tmp_path / "out", mixture=MixtureConfig(cluster_repeats={"2": 2, "3": 5}))
    )
    for row in rows:
        assert row["repeats"] == (
            1 if row["split"] == "validation" else (1, 2, 5)[int(row["source_id"]) % 3]
        )


def test_documents_of_the_tail_stay_out_and_those_of_the_head_are_read_twice(
    parents, tmp_path
) -> None:
    names = [("head", "middle", "tail", None)[i % 4] for i in range(NUM)]
    tables = [(file, read_table(file)) for file in parents["quality"].files("part-*.parquet")]
    folder, begin = empty_dir(tmp_path / "quality"), 0
    for file, table in tables:
        write_table(
            table.append_column("bucket", pa.array(names[begin : (begin := begin + len(table))])),
            folder / file.name,
        )
    told = parents["quality"].metrics | {"buckets": {}}
    bucketed = parents | {
        "quality": dataclasses.replace(parents["quality"], path=folder, metrics=told)
    }
    mixture = MixtureConfig(bucket_repeats={"head": 2, "tail": 0})
    rows = read_documents(make(bucketed, tmp_path / "out", mixture=mixture))
    train = {int(row["source_id"]): row["repeats"] for row in rows if row["split"] == "train"}
    assert train and all(
        repeats == (1 if i % 4 else 2) and i % 4 != 2 for i, repeats in train.items()
    )
    with pytest.raises(
        ConfigError, match=r"bucket_repeats needs buckets; set quality.buckets.score"
    ):
        make(parents, tmp_path / "none", mixture=mixture)


def test_duplicate_examples_show_scrubbed_texts_of_removed_pairs(parents, tmp_path) -> None:
    examples = make(parents, tmp_path / "out").metrics["duplicate_examples"]
    assert len(examples) == 3
    for example in examples:
        assert "@" not in example["survivor"] + example["member"] and "<EMAIL>" in example["member"]
    assert examples[0]["survivor"].startswith("Document 6 ") and examples[0]["member"].startswith(
        "Document 7 "
    )


def test_bytes_do_not_depend_on_workers(parents, tmp_path) -> None:
    mixture = MixtureConfig(temperature=3, target_bytes=3000)
    one = make(parents, tmp_path / "one", mixture=mixture)
    four = make(
        parents, tmp_path / "four", PartRunner(make_executor=thread_executor(4)), mixture=mixture
    )
    assert [f.read_bytes() for f in one.files("*")] == [f.read_bytes() for f in four.files("*")]
    assert (one.counters, one.metrics) == (four.counters, four.metrics)
    assert [f.name for f in one.files("*")] == [f"part-{i:05d}.parquet" for i in range(4)]


def test_split_holds_out_the_wanted_bytes_and_the_seed_chooses_them(parents, tmp_path) -> None:
    chosen = set()
    for seed in range(3):
        rows = read_documents(make(parents, tmp_path / f"s{seed}", validation_frac=0.2, seed=seed))
        total = sum(len(r["text"].encode()) for r in rows)
        held = sum(len(r["text"].encode()) for r in rows if r["split"] == "validation")
        assert 0.2 <= held / total < 0.25
        chosen.add(tuple(r["source_id"] for r in rows if r["split"] == "validation"))
    assert len(chosen) == 3


def test_sidecar_of_other_documents_is_refused(parents, tmp_path) -> None:
    others = ingest_files(
        tmp_path,
        "in",
        [
            write_jsonl(tmp_path / "a" / f"{i}.jsonl", [{"text": f"{i} {j}"} for j in range(15)])
            for i in range(4)
        ],
    )
    foreign = make_sidecar(
        others,
        "pii",
        tmp_path / "pii",
        [("spans", SPANS, [[]] * NUM), ("kept", pa.bool_(), [True] * NUM)],
    )
    with pytest.raises(ArtifactMismatch, match="pii"):
        make(parents | {"pii": foreign}, tmp_path / "out")


def test_nothing_kept_names_the_three_reasons_that_took_most(parents, tmp_path) -> None:
    none = [
        ("num_bytes", pa.int64(), [1] * NUM),
        ("drops", pa.uint64(), [1] * NUM),
        ("kept", pa.bool_(), [False] * NUM),
    ]
    quality = make_sidecar(parents["ingest"], "quality", tmp_path / "quality", none)
    counters = quality.counters | {"dropped": {"A": 30, "B": 20, "C": 9, "D": 1}}
    quality = dataclasses.replace(quality, counters=counters, metrics=parents["quality"].metrics)
    with pytest.raises(StageFailure, match=r"quality A 30, quality B 20, quality C 9\)"):
        make(parents | {"quality": quality}, tmp_path / "out")


def family(name: int) -> bytes:
    return hashlib.blake2b(str(name).encode(), digest_size=16).digest()


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 1000), min_size=2, max_size=40),
    st.floats(0.01, 0.5),
    st.integers(0, 5),
    st.randoms(),
)
def test_split_rule_ignores_order_and_leaves_something_on_both_sides(
    sizes, frac, seed, random
) -> None:
    families = {family(i): size for i, size in enumerate(sizes)}
    rule = choose_split(families, frac, seed)
    shuffled = list(families.items())
    random.shuffle(shuffled)
    assert (
        choose_split(dict(shuffled), frac, seed)
        == rule
        == SplitRule.from_payload(rule.to_payload())
    )
    sides = defaultdict(int)
    for one, size in families.items():
        sides[rule.split_of(one)] += size
    assert set(sides) == {"train", "validation"}
    # At most twice what is wanted, unless every family alone is more than that.
    assert sides["validation"] <= 2 * frac * sum(sizes) or sides["validation"] == min(sizes)
    assert len(rule.passed_over) <= 1 / frac


def test_one_book_does_not_become_the_validation_set() -> None:
    families = {family(i): 10 for i in range(100)} | {family(1000): 5000}
    for seed in range(30):
        rule = choose_split(families, 0.1, seed)
        assert rule.split_of(family(1000)) == "train"
        assert sum(rule.split_of(f) == "validation" for f in families) == 60


def test_too_little_to_divide_fails_with_a_way_out() -> None:
    with pytest.raises(StageFailure, match="need one each"):
        choose_split({family(0): 10}, 0.05, 0)
    for bad in (0.0, 0.6):
        with pytest.raises(ConfigError, match="validation_frac"):
            DocumentsConfig(validation_frac=bad)
