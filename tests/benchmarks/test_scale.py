"""What a process exchanges does not grow with the number of processes."""

from __future__ import annotations

import itertools

from benchmarks.engine.scale import entries, files_read, simulate
from llm_core.checkpoint.index import dump_index
from llm_core.model.config import ModelConfig

SMALL = ModelConfig(640, 64, 2, 4, 2, 96, 64, tied_embeddings=False)


def test_costs_of_512_processes_are_those_of_16() -> None:
    few, many = (simulate((2, 1, size, 2), SMALL) for size in (4, 128))
    for name in ("plan", "save", "vote"):
        (requests, num_bytes), (more_requests, more_bytes) = getattr(few, name), getattr(many, name)
        assert more_requests <= requests and more_bytes <= num_bytes + 10 * requests, name
    assert len(dump_index(many.index)) <= len(dump_index(few.index)) + 2
    assert files_read(many.index, many.index) <= files_read(few.index, few.index) + 1


def test_every_tensor_belongs_to_one_pipeline_rank() -> None:
    of_ranks = [entries((2, 1, 2, 2), pp, SMALL) for pp in range(2)]
    assert all(of_ranks)
    assert not any(a.keys() & b.keys() for a, b in itertools.combinations(of_ranks, 2))
    together = set().union(*of_ranks)
    assert together == set(entries((1, 1, 2, 2), 0, SMALL))
