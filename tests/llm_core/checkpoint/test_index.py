"""The layout decides who writes a piece, and every element is written once."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from llm_core.checkpoint.index import (
    AXES,
    CUTTING,
    Box,
    Entry,
    Index,
    coordinates_of,
    entries_of,
    make_index,
    overlap,
    share_out,
    within,
)
from llm_core.parallel.apply import build_layout
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.hosts.exchange import Hosts
from llm_core.parallel.places import local, placed_weights
from llm_core.parallel.weights import box_of
from tests.support.distributed.alone import as_process
from tests.support.distributed.cases import layout
from tests.support.engine.small_runs import MODEL, TRAIN

SIZES = st.one_of(
    st.tuples(*(st.integers(1, 3) for _ in range(4))),
    st.tuples(*(st.integers(1, 2) for _ in range(6))),
)


@st.composite
def entries(draw: st.DrawFn, sizes: tuple[int, ...]) -> Entry:
    shape = tuple(draw(st.lists(st.integers(0, 7), max_size=2)))
    there = AXES[: len(sizes)]
    axes = [axis for axis in CUTTING if axis in there and shape and draw(st.booleans())]
    cuts = tuple((axis, draw(st.integers(0, len(shape) - 1))) for axis in axes)
    return Entry(
        shape, draw(st.sampled_from(["F32", "BF16"])), cuts, draw(st.integers(0, sizes[0] - 1))
    )


@st.composite
def indexes(draw: st.DrawFn) -> Index:
    sizes = draw(SIZES)
    found = draw(st.lists(entries(sizes), min_size=1, max_size=6))
    index = Index(sizes, {f"tensor-{number}": entry for number, entry in enumerate(found)})
    share_out(index)
    return index


def processes(index: Index) -> list[tuple[int, ...]]:
    """Coordinates by rank."""
    return list(itertools.product(*map(range, index.sizes)))


@given(indexes())
def test_every_element_of_every_tensor_is_written_by_one_process(index: Index) -> None:
    for name, entry in index.tensors.items():
        written = np.zeros(entry.shape, dtype=int)
        for coordinates in processes(index):
            if index.writes(name, coordinates):
                box = index.box(name, coordinates)
                written[within(box, tuple(map(range, entry.shape)))] += 1
        assert (written == 1).all(), (name, entry)


@given(indexes(), st.data())
def test_a_reader_finds_the_pieces_of_any_box_with_those_who_wrote_them(
    index: Index, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(index.tensors)))
    shape = index.tensors[name].shape
    wanted: Box = tuple(
        range(begin, data.draw(st.integers(begin, size)))
        for size in shape
        for begin in [data.draw(st.integers(0, size))]
    )
    found = np.zeros(shape, dtype=int)
    whole = tuple(map(range, shape))
    for rank, piece in index.pieces(name, wanted):
        coordinates = processes(index)[rank]
        assert index.writes(name, coordinates) and index.box(name, coordinates) == piece
        found[within(overlap(piece, wanted), whole)] += 1
    expected = np.zeros(shape, dtype=int)
    expected[within(wanted, whole)] = 1
    assert (found == expected).all()


@pytest.mark.parametrize(
    "parallel",
    [
        layout(4, "fsdp", tp=2),
        layout(4, "zero1", tp=2),
        layout(4, "hsdp", dp_shard=2),
        layout(8, "ddp", tp=4, tp_kind="2d"),
        layout(8, "ddp", tp=8, tp_kind="3d"),
    ],
    ids=lambda one: f"{one.kind}-{one.tp_kind}",
)
def test_the_piece_of_a_process_is_the_one_that_its_layout_gives_it(
    parallel: ParallelConfig,
) -> None:
    for rank in range(parallel.num_processes):
        with as_process(rank, parallel) as ranks:
            made = build_layout(MODEL, parallel, TRAIN, ranks)
            state = {name: place.view(local(w)) for name, w, place in placed_weights(made)}
            sizes, coordinates = coordinates_of(made, ranks)
            own = Hosts(HashStore(), rank, parallel.num_processes)
            index = make_index(entries_of(state), sizes, coordinates, own)
            for name, weight, place in placed_weights(made):
                expected = box_of(made, name, weight, place.shape)
                assert index.box(name, coordinates) == expected, (rank, name)


@pytest.mark.parametrize("sizes", [(1, 4, 2, 1), (1, 1, 1, 8), (2, 2, 2, 1)])
def test_what_several_have_is_shared_out_among_them(sizes: tuple[int, int, int, int]) -> None:
    """No process writes more than its share and the largest piece."""
    tensors = {
        f"{kind}-{number}": Entry((64 * number, 8), "F32", cuts, number % sizes[0])
        for number in range(1, 40)
        for kind, cuts in (("whole", ()), ("cut", (("dp_shard", 0),)))
    }
    index = Index(sizes, tensors)
    share_out(index)
    written: Counter[tuple[int, ...]] = Counter()
    for name, coordinates in itertools.product(tensors, processes(index)):
        if index.writes(name, coordinates):
            written[coordinates] += math.prod(map(len, index.box(name, coordinates)))
    for pp in range(sizes[0]):
        own = [written[c] for c in processes(index) if c[0] == pp]
        largest = max(math.prod(e.shape) for e in tensors.values() if e.pp == pp)
        assert max(own) <= sum(own) / len(own) + largest


def test_a_store_is_not_asked_without_pipeline_ranks() -> None:
    store = HashStore()
    make_index({}, (1, 2, 2, 1), (0, 1, 0, 0), Hosts(store, 2, 4))
    assert store.num_keys() == 0
