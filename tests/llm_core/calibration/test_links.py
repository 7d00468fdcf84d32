"""Bandwidths are those of nccl-tests, and a fit gives back the link that made the times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_core.calibration.collectives import IN_PIECES, KINDS, Kind, bus_factor
from llm_core.calibration.links import SIZES, Timing, fit_links
from llm_core.planner.traffic import collective_hops


def timing(kind: Kind, processes: int, num_bytes: int, elapsed_s: float) -> Timing:
    return Timing(kind, processes, "float32", False, num_bytes, elapsed_s, elapsed_s, True)


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    assert bus_factor("all_reduce", 8) == 2 * 7 / 8
    assert {bus_factor(kind, 8) for kind in IN_PIECES} == {7 / 8}
    assert {bus_factor(kind, 8) for kind in KINDS if kind not in (*IN_PIECES, "all_reduce")} == {1}
    # The first line of nccl-tests' own example: 8 GPUs, 128 MiB, 848.7 us: 158.15 and 276.76 GB/s.
    found = timing("all_reduce", 8, 128 << 20, 848.7e-6)
    assert found.algorithm_gb_s == pytest.approx(158.15, rel=1e-3)
    assert found.bus_gb_s == pytest.approx(276.76, rel=1e-3)


@given(
    start_us=st.floats(1, 1e4),
    gb_s=st.floats(0.01, 500),
    processes=st.integers(2, 64),
    kind=st.sampled_from([kind for kind in KINDS if kind != "barrier"]),
)
def test_a_fit_gives_back_start_and_bandwidth(
    start_us: float, gb_s: float, processes: int, kind: Kind
) -> None:
    hops = collective_hops(processes)
    times = [
        timing(kind, processes, size, hops * start_us * 1e-6 + size * factor / (gb_s * 1e9))
        for size in SIZES
        for factor in [bus_factor(kind, processes)]
    ]
    found = fit_links(times)[kind]
    assert found.start_us == pytest.approx(start_us, rel=1e-3, abs=0.01)
    # Where starting takes all of the time, no size tells the bandwidth.
    if SIZES[-1] / (gb_s * 1e9) > 0.01 * hops * start_us * 1e-6:
        assert found.gb_s == pytest.approx(gb_s, rel=1e-2)


def test_times_that_no_size_changes_give_the_largest_bandwidth_seen() -> None:
    times = [timing("send", 2, size, 1e-3) for size in SIZES]
    found = fit_links(times)["send"]
    assert found.start_us == pytest.approx(1e3)
    assert found.gb_s == pytest.approx(SIZES[-1] / 1e-3 / 1e9, rel=1e-3)
