"""What only looks like personal data is made and counted, and rows of numbers are not addresses of
machines."""

from __future__ import annotations

from benchmarks.data.pii_lookalikes import LOOKALIKES, count_touched


def test_pairs_and_rows_of_numbers_are_no_addresses_and_equal_seeds_give_equal_counts() -> None:
    touched = count_touched(40)
    assert touched == count_touched(40) and touched.keys() == LOOKALIKES.keys()
    for kind in ("six pairs of digits", "eight pairs", "C++ name"):
        assert not touched[kind], kind
    assert touched["part number 3-2-4"]["NATIONAL_ID"] > 20, (
        "what is known to be mistaken is counted"
    )
