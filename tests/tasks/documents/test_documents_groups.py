"""Documents of one repository are never in both splits, and neighbours in the shards."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.corpus.documentset import ID, read_table, write_table
from tasks.corpus.groups import group_ids
from tasks.documents.split import join_families, units_of
from tasks.runtime.artifact import Artifact
from tasks.runtime.parts import PartRunner, serial, thread_executor
from tasks.shards.places import places_of_copies
from tests.support.data.judged_documents import NUM, family, write_judged
from tests.support.data.make_artifacts import empty_dir, read_documents

REPOSITORY_OF = [None if i % 9 == 0 else f"r{i * 7 % 11}" for i in range(NUM)]


@pytest.fixture
def grouped(parents: dict[str, Artifact], tmp_path: Path) -> dict[str, Artifact]:
    """The same parents; most documents name one of eleven repositories."""
    ingested, out, begin = parents["ingest"], tmp_path / "grouped", 0
    empty_dir(out / "documents")
    for file in ingested.files("documents/part-*.parquet"):
        table = read_table(file)
        some = REPOSITORY_OF[begin : begin + table.num_rows]
        begin += table.num_rows
        told = pa.array([json.dumps({"repository": r} if r else {"kind": "code"}) for r in some])
        place = table.column_names.index("metadata")
        table = table.set_column(place, "metadata", told)
        write_table(table, out / "documents" / file.name)
    return parents | {"ingest": Artifact(out, "ingest", ingested.counters, ingested.metrics)}


def test_a_repository_is_on_one_side_and_so_is_a_family(
    grouped: dict[str, Artifact], tmp_path: Path
) -> None:
    for seed in range(2):
        out = tmp_path / f"s{seed}"
        made = write_judged(grouped, out, seed=seed, validation_frac=0.2, group_key="repository")
        sides: dict[tuple[str, bytes], set[str]] = defaultdict(set)
        for row in read_documents(made):
            repository = REPOSITORY_OF[int(row["source_id"])]
            assert (row["group_id"] is None) == (repository is None)
            for name in ("family_id", "group_id"):
                if row[name] is not None:
                    sides[name, row[name]].add(row["split"])
        assert all(len(found) == 1 for found in sides.values())
        assert {side for found in sides.values() for side in found} == {"train", "validation"}


def test_a_key_that_no_document_has_is_told(
    grouped: dict[str, Artifact], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for key, is_told in (("repository", False), ("repositry", True)):
        caplog.clear()
        write_judged(grouped, tmp_path / key, group_key=key)
        assert ("documents.group_key (repositry) makes no group" in caplog.text) is is_told


def test_groups_of_documents_are_the_same_for_any_runner(
    grouped: dict[str, Artifact], tmp_path: Path
) -> None:
    threads = PartRunner(None, thread_executor(2))
    contents = []
    for name, runner in (("serial", serial), ("threads", threads)):
        made = write_judged(grouped, tmp_path / name, runner, group_key="repository")
        contents.append([file.read_bytes() for file in made.files("part-*.parquet")])
    assert contents[0] == contents[1]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.none() | st.integers(0, 6)), min_size=1))
def test_families_are_joined_where_groups_connect_them(rows: list[tuple[int, int | None]]) -> None:
    families = [family(number) for number, _ in rows]
    groups = [None if group is None else family(1000 + group) for _, group in rows]
    columns = [pa.chunked_array([pa.array(values, ID)]) for values in (families, groups)]
    units = units_of(columns[0], join_families(*columns)).to_pylist()
    # By definition: join what shares a family or a group until nothing changes.
    expected = list(families)
    for _ in rows:
        for a, b in itertools.combinations(range(len(rows)), 2):
            if families[a] == families[b] or (groups[a] and groups[a] == groups[b]):
                smaller = min(expected[a], expected[b])
                for mine in (a, b):
                    expected = [smaller if u == expected[mine] else u for u in expected]
    assert units == expected


def test_a_group_is_the_text_under_the_key() -> None:
    told = [
        '{"repository": "a/b"}',
        '{"path": "x", "repository": "a/b"}',
        '{"repository": ""}',
        '{"repository": 3}',
        '{"name": "repository"}',
        None,
    ]
    found = group_ids(pa.array(told), "repository").to_pylist()
    assert found[0] == found[1] is not None
    assert found[2:] == [None] * 4


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=40),
    st.integers(0, 3),
)
def test_documents_of_a_group_are_neighbours_in_each_of_their_readings(
    rows: list[tuple[int, int]], seed: int
) -> None:
    """Group 0 is none: its documents stand where they stand without groups."""
    random = np.random.default_rng(len(rows))
    ids = random.integers(0, 256, (len(rows), 16), np.uint8)
    names = random.integers(1, 256, (5, 16), np.uint8)
    names[0] = 0
    group = np.array([number for number, _ in rows])
    repeats = np.array([number for _, number in rows])
    documents, places = places_of_copies(ids, names[group], repeats, seed)
    _, alone = places_of_copies(ids, None, repeats, seed)
    assert np.bincount(documents, minlength=len(rows)).tolist() == repeats.tolist()
    assert np.array_equal(places[group[documents] == 0], alone[group[documents] == 0])
    copy = np.concatenate([np.arange(n) for n in repeats] or [np.zeros(0, int)])
    labels = [(int(group[d]), int(c)) for d, c in zip(documents, copy, strict=True)]
    order = np.argsort(places, kind="stable")
    runs = [key for key, _ in itertools.groupby(labels[i] for i in order) if key[0]]
    assert len(runs) == len(set(runs))
