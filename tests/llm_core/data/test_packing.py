"""Every target is in one place or counted, documents stay whole where they can, and shares are what
the rows show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.data.batch import IGNORED
from llm_core.data.config import DataConfig
from llm_core.data.loader import Loader
from llm_core.data.packing import best_fit, concat, make_plan, one_per_row, pack_best_fit
from llm_core.data.shards import open_shards
from tests.support.engine.shard_files import write_split

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=60)
PACKINGS = ("concat", "best_fit", "one_per_row")


def bounds(sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    ends = np.cumsum(sizes)
    return ends - sizes, ends


def naive_best_fit(sizes: list[int], capacity: int) -> list[int]:
    """Free places of each row, by the definition: longest first, each into the fullest row that
    takes it."""
    free: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = [k for k, left in enumerate(free) if left >= size]
        if fitting:
            free[min(fitting, key=lambda k: free[k])] -= size
        else:
            free.append(capacity - size)
    return sorted(free)


@settings(max_examples=300, deadline=None)
@given(lengths, st.integers(40, 90))
def test_best_fit_fills_rows_as_its_definition_does(sizes: list[int], capacity: int) -> None:
    row_of = pack_best_fit(np.array(sizes), capacity)
    filled = np.bincount(row_of, sizes)
    assert sorted((capacity - filled).astype(int).tolist()) == naive_best_fit(sizes, capacity)


@settings(max_examples=200, deadline=None)
@given(lengths, st.integers(1, 50), st.sampled_from(PACKINGS))
def test_every_target_is_in_one_row_or_counted(
    sizes: list[int], seq_len: int, packing: str
) -> None:
    plan = make_plan(*bounds(sizes), seq_len, packing)
    targets = np.concatenate(
        [np.arange(a, b) for a, b in zip(plan.starts, plan.stops, strict=True)]
        or [np.zeros(0, int)]
    )
    assert len(np.unique(targets)) == len(targets) == sum(sizes) - plan.num_cropped_tokens
    assert np.all(plan.stops > plan.starts) and plan.row_offsets[-1] == len(plan.starts)
    filled = (
        np.add.reduceat(plan.stops - plan.starts, plan.row_offsets[:-1])
        if plan.num_rows
        else np.zeros(0, int)
    )
    assert np.all(filled <= seq_len) and (packing != "concat" or np.all(filled == seq_len))
    if packing == "best_fit":
        assert plan.num_cropped_tokens == 0


@settings(max_examples=100, deadline=None)
@given(lengths, st.integers(1, 50))
def test_best_fit_cuts_only_what_is_longer_than_a_row(sizes: list[int], seq_len: int) -> None:
    starts, stops = bounds(sizes)
    plan = best_fit(starts, stops, seq_len)
    document = np.searchsorted(stops, plan.starts, "right")
    pieces = np.bincount(document, minlength=len(sizes))
    assert pieces.tolist() == [-(-size // seq_len) for size in sizes]
    assert plan.num_cut_documents == sum(size > seq_len for size in sizes)


def test_shares_follow_from_the_rows() -> None:
    starts, stops = bounds([10, 3, 4, 25])
    assert concat(starts, stops, 8).num_cropped_tokens == 2
    assert (
        one_per_row(starts, stops, 8).num_cropped_tokens,
        one_per_row(starts, stops, 8).num_rows,
    ) == (2 + 17, 4)
    plan = best_fit(starts, stops, 8)
    assert plan.num_rows == 6 and plan.num_targets == 42  # 8 | 8 | 8 | 8 | 4 3 1 | 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shards")
    rng = np.random.default_rng(0)
    documents = [[*rng.integers(1, 500, n).tolist(), 0] for n in rng.integers(0, 60, 80)]
    write_split(made, [documents[:30], documents[30:55], documents[55:]])
    return made


@pytest.mark.parametrize("packing", ["best_fit", "one_per_row"])
def test_rows_hold_documents_from_their_first_token_to_their_end(
    folder: Path, packing: str
) -> None:
    shards, seq_len = open_shards(folder, "train"), 32
    data = DataConfig(packing=packing, mask_documents=True)  # type: ignore[arg-type]
    loader = Loader(shards, seq_len, 1, seed=0, data=data)
    seen = []
    for step in range(loader.num_samples):
        ids, targets, documents = (x[0].numpy() for x in loader.batch(step)[:3])
        assert np.array_equal(documents == -1, targets == IGNORED)
        for number in range(documents.max() + 1):
            here = documents == number
            assert np.array_equal(ids[here][1:], targets[here][:-1])
            seen.append((int(ids[here][0]), targets[here].tolist()))
    whole = [document.tokens.tolist() for document in shards.documents()]
    pieces = [
        (0 if start == 0 else tokens[start - 1], tokens[start : start + seq_len])
        for tokens in whole
        for start in range(0, len(tokens) if packing == "best_fit" else 1, seq_len)
    ]
    assert sorted(seen) == sorted(pieces)
    padding = 1 - sum(len(tokens) for _, tokens in seen) / (loader.num_samples * seq_len)
    assert loader.shares().padding_frac == pytest.approx(padding)
    assert (loader.shares().cropped_frac == 0) == (packing == "best_fit")


def test_documents_of_the_stream_change_where_an_end_of_text_is_read(folder: Path) -> None:
    data = DataConfig(mask_documents=True)
    ids, _, documents, *_ = Loader(open_shards(folder, "train"), 32, 4, seed=0, data=data).batch(3)
    assert np.array_equal(np.diff(documents.numpy(), axis=1), (ids[:, 1:] == 0).numpy())


def test_concat_by_a_plan_reads_the_stream(folder: Path) -> None:
    shards = open_shards(folder, "train")
    mixed = Loader(
        shards, 16, 1, 0, data=DataConfig(order="sequential", mixture={"0": {"web": 1.0}})
    )
    stream = shards.read(0, shards.num_tokens)
    for step in range(mixed.num_samples):
        ids, targets, *_ = mixed.batch(step)
        assert targets[0].tolist() == stream[step * 16 : step * 16 + 16].tolist()
        assert ids[0].tolist() == [0, *stream][step * 16 : step * 16 + 16]


def test_a_large_corpus_is_packed_in_time_that_goes_with_documents() -> None:
    sizes = np.random.default_rng(0).lognormal(6, 1.2, 300_000).astype(np.int64) + 1
    starts, stops = bounds(sizes.tolist())
    plan = best_fit(starts, stops, 2048)
    assert plan.num_targets == sizes.sum() and plan.num_targets / (plan.num_rows * 2048) > 0.99
