"""Grids of tensor ranks are squares, several squares, or cubes, and shapes that do not divide are
refused by name."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pytest

from llm_core.config import ConfigError
from llm_core.memory.config import MemoryConfig
from llm_core.model.config import ModelConfig
from llm_core.model.expert_config import ExpertsConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.grid.shape import GridShape, TensorKind, check_grid, grid_of
from llm_core.training.run_config import check_run
from tasks.runtime.code import ROOT
from tests.support.engine.small_runs import MODEL as RUN_MODEL
from tests.support.engine.small_runs import TRAIN

MODEL = ModelConfig(64, 32, 2, 4, 4, 64, 64)


def layout(tp: int, kind: TensorKind, depth: int = 1, **values: Any) -> ParallelConfig:
    return ParallelConfig("ddp", tp, tp=tp, tp_kind=kind, tp_depth=depth, **values)


def test_each_kind_has_its_own_numbers_of_processes() -> None:
    legal: dict[tuple[TensorKind, int], set[int]] = {
        ("2d", 1): {4, 9, 16, 25, 36, 49, 64},
        ("2.5d", 2): {8, 18, 32, 50},
        ("2.5d", 3): {12, 27, 48},
        ("3d", 1): {8, 27, 64},
    }
    for (kind, depth), numbers in legal.items():
        for tp in range(1, 65):
            if tp not in numbers:
                with pytest.raises(ConfigError, match=r"tp .*try tp="):
                    grid_of(kind, tp, depth)
                continue
            grid = grid_of(kind, tp, depth)
            assert grid is not None and grid.side**2 * grid.depth == tp
            assert (grid.depth == grid.side) if kind == "3d" else (grid.depth == depth)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: layout(8, "2d"), r"tp .8. must be a square .*; try tp=4 or 9"),
        (lambda: layout(4, "3d"), r"tp .4. must be a cube .*; try tp=8 or 27"),
        (lambda: layout(4, "2.5d"), r"tp_depth .1. must be 2 or more .*tp_depth=2"),
        (lambda: layout(12, "2.5d", 2), r"tp .12. must be 2 squares .*; try tp=8 or 18"),
        (lambda: layout(4, "1d", 2), r"tp_depth .2. belongs to tp_kind=2.5d"),
        (lambda: layout(4, "2d", sequence_parallel=False), r"tp_kind .2d. always cuts"),
        (lambda: layout(4, "2d", tp_overlap="ring"), r"tp_kind .2d. .*set tp_overlap=none"),
        (
            lambda: ParallelConfig("ddp", 8, tp=4, pp=2, tp_kind="2d"),
            r"tp_kind .2d. .*pp is 2 and cp 1; set both 1",
        ),
        (
            lambda: ParallelConfig("ddp", 8, tp=4, cp=2, tp_kind="2d"),
            r"tp_kind .2d. .*pp is 1 and cp 2; set both 1",
        ),
    ],
)
def test_layouts_that_are_no_grid_are_refused_by_name(make: Any, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        make()


@pytest.mark.parametrize(
    ("model", "rule"),
    [
        ({}, None),
        ({"num_kv_heads": 1}, r"model.num_kv_heads .1. must be a multiple of 2"),
        ({"ffn_dim": 63}, r"model.ffn_dim .* must be a multiple of 2"),
        (
            {"dim": 34, "num_kv_heads": 2, "own_head_dim": 8},
            r"model.dim .34. must be .* of 4",
        ),
        ({"vocab_size": 1}, r"model.vocab_size .1. must leave each of 2 columns some ids"),
    ],
)
def test_models_that_do_not_divide_are_refused_by_name(
    model: dict[str, Any], rule: str | None
) -> None:
    changed = dataclasses.replace(MODEL, **model)
    if rule is None:
        check_grid(changed, GridShape("3d", 2, 2))
        return
    with pytest.raises(ConfigError, match=rule):
        check_grid(changed, GridShape("3d", 2, 2))


@pytest.mark.parametrize(
    ("groups", "rule"),
    [
        ({}, None),
        ({"parallel": {"kind": "fsdp"}}, r"parallel.kind .fsdp. .*set parallel.kind=ddp"),
        ({"optimizer": "muon"}, r"optim.kind .muon. .*set optim.kind=adamw"),
        ({"train": {"compile": True}}, r"train.compile .true. .*set train.compile=false"),
        ({"train": {"kernels": "triton"}}, r"train.kernels .*set train.kernels=torch"),
        ({"memory": {"ffn_tiles": 2}}, r"memory.ffn_tiles .2. .*set memory.ffn_tiles=1"),
        ({"memory": {"recompute": "selective"}}, r"memory.recompute .* set memory.recompute=full"),
        ({"model": {"num_kv_heads": 1}}, r"model.num_kv_heads .1. must be a multiple of 2"),
        (
            {"model": {"norm": "offset_rms", "ffn": "geglu", "scaled_embeddings": True}},
            r"model.norm .offset_rms. .*parallel.tp_kind=1d",
        ),
        (
            {"model": {"experts": ExpertsConfig(4, 2)}},
            r"model.experts .set. .*parallel.tp_kind=1d",
        ),
    ],
)
def test_settings_that_grids_were_not_tested_with_are_refused_by_name(
    groups: dict[str, Any], rule: str | None
) -> None:
    model = dataclasses.replace(RUN_MODEL, **groups.get("model", {}))
    train = dataclasses.replace(TRAIN, **groups.get("train", {}))
    values = {"kind": "ddp", "num_processes": 4, "tp": 4, "tp_kind": "2d"}
    parallel = ParallelConfig(**values | groups.get("parallel", {}))
    memory = MemoryConfig(**groups.get("memory", {}))
    refused = pytest.raises(ConfigError, match=rule) if rule else contextlib.nullcontext()
    with refused:
        check_run(model, train, parallel, memory, groups.get("optimizer", "adamw"))


def pair(grid: GridShape) -> str:
    """What a process receives for a layer to four widths and one back, in tokens x width and in
    width², the sum over depths included."""
    both = [
        sum(grid.received(layer, tokens, 4 * width, width) for layer in ("into", "out"))
        for tokens, width in ((512, 64), (0, 64))
    ]
    weights = both[1] / 64**2
    if grid.kind == "2.5d":
        weights += 2 * (grid.depth - 1) / grid.depth * 8 / grid.side**2
    return f"{(both[0] - both[1]) / (512 * 64):.2f} Th + {weights:.1f} h²"


@pytest.mark.parametrize(
    ("ranks", "grids"),
    [
        (4, [GridShape("2d", 2, 1)]),
        (8, [GridShape("2.5d", 2, 2), GridShape("3d", 2, 2)]),
        (16, [GridShape("2d", 4, 1), GridShape("2.5d", 2, 4)]),
        (64, [GridShape("2d", 8, 1), GridShape("2.5d", 4, 4), GridShape("3d", 4, 4)]),
        (512, [GridShape("2.5d", 8, 8), GridShape("3d", 8, 8)]),
    ],
)
def test_the_table_of_the_guide_is_what_the_formulas_give(
    ranks: int, grids: list[GridShape]
) -> None:
    guide = (ROOT / "docs/guides/several-gpus.md").read_text("utf-8")
    (row,) = (line for line in guide.splitlines() if line.startswith(f"| {ranks} | "))
    assert f"{4 * (ranks - 1) / ranks:.2f} Th" in row
    for grid in grids:
        assert pair(grid) in row
