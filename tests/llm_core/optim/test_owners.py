"""Rows that processes share: each in one process, in order, whatever the numbers."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from llm_core.optim.owners import rows_of


@given(st.integers(1, 40), st.integers(1, 9))
def test_each_row_belongs_to_one_process_in_the_order_of_ranks(num_rows: int, size: int) -> None:
    weight = torch.arange(2 * num_rows).view(num_rows, 2)
    parts = [rows_of(weight, rank, size) for rank in range(size)]
    assert torch.equal(torch.cat(parts), weight)
    # The split that FSDP makes.
    assert [len(part) for part in parts if len(part)] == [len(part) for part in weight.chunk(size)]
