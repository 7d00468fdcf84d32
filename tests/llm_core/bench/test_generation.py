"""Work of a cell is counted as weights and caches are stored."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from llm_core.bench.generation import Cell, Subject, measure_cell
from llm_core.infer.cache.rows import paged_cache, static_cache
from llm_core.profiling.roofline import Peaks, cached_step, kv_bytes_per_token
from llm_core.quantize.model import round_model
from tests.support.engine.small_model import make_model

CACHES = {"static": static_cache, "paged": paged_cache, "int8": partial(static_cache, int8=True)}
CELL = Cell(batch=2, prompt_tokens=6, new_tokens=4)
PEAKS = Peaks(1e9, 1e9)


@pytest.mark.parametrize("tied", [True, False])
def test_bytes_of_a_step_are_those_of_stored_weights_and_keys(tied: bool) -> None:
    model = make_model(dtype=torch.float32, tied=tied)
    config = model.config
    plain = Subject(model, "model", PEAKS, caches=CACHES)
    rows = {row["cache"]: row for row in measure_cell(plain, CELL, repeats=3, seed=0)}
    middle = CELL.prompt_tokens + CELL.new_tokens // 2
    expected = cached_step(config, CELL.batch, middle, 4).num_bytes
    assert rows["static"]["bytes_per_step"] == rows["paged"]["bytes_per_step"] == expected
    keys = CELL.batch * middle * kv_bytes_per_token(config, 4)
    heads = config.num_layers * config.num_kv_heads
    short = CELL.batch * middle * 2 * heads * (config.head_dim + 4)
    assert rows["int8"]["bytes_per_step"] == expected - keys + short
    assert rows["int8"]["cache_bytes"] < rows["static"]["cache_bytes"]
    rounded = Subject(round_model(model, "int8"), "int8", PEAKS, caches=CACHES)
    less = measure_cell(rounded, CELL, repeats=3, seed=0)[0]["bytes_per_step"]
    weights = config.matmul_parameters()
    # A byte per number, and a scale per row.
    assert keys + weights < less < keys + 1.5 * weights


def test_stated_peaks_are_a_second_share_beside_the_measured() -> None:
    model = make_model(dtype=torch.float32)
    subject = Subject(model, "model", PEAKS, Peaks(2e9, 4e9), CACHES)
    for row in measure_cell(subject, CELL, repeats=3, seed=0):
        for prefix in ("", "prefill_"):
            assert row[f"{prefix}mbu_stated"] == pytest.approx(row[f"{prefix}mbu"] / 2, abs=1e-4)
            assert row[f"{prefix}mfu_stated"] == pytest.approx(row[f"{prefix}mfu"] / 4, abs=1e-4)


def test_caches_of_equal_numbers_give_the_tokens_of_the_uncached_mode() -> None:
    model = make_model()
    rows = measure_cell(Subject(model, "model", PEAKS, caches=CACHES), CELL, repeats=3, seed=0)
    assert [row["cache"] for row in rows] == ["static", "paged", "int8", None]
    assert rows[0]["same_tokens_frac"] == rows[1]["same_tokens_frac"] == 1.0
    assert rows[-1]["mode"] == "uncached" and rows[-1]["speedup"] == 1.0
