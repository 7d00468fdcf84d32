"""Layers of tensor ranks whose products and exchanges overlap give what plain ones give, and do
overlap."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_core.config import ConfigError
from llm_core.parallel.overlap import check_access
from tests.support.distributed.overlaps import KINDS
from tests.support.distributed.processes import run_program

WORLD = 4
TURN = ["pass_on", "product", "wait"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("overlaps")
    run_program("tests.support.distributed.overlaps", [str(folder)], folder)
    return [json.loads((folder / f"rank-{rank}.json").read_text("utf-8")) for rank in range(WORLD)]


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_are_those_of_products_after_exchanges(
    found: list[dict[str, Any]], kind: str
) -> None:
    assert all(len(rank[kind]) == 6 and max(rank[kind].values()) < 1e-14 for rank in found)
    # Sums over processes are rounded to 16 bits, where some of the plain path are of float32.
    assert all(
        len(rank[f"{kind}, bf16"]) == 6 and max(rank[f"{kind}, bf16"].values()) < 0.04
        for rank in found
    )


def test_every_exchange_begins_before_the_product_beside_it_and_is_waited_for_after_it(
    found: list[dict[str, Any]],
) -> None:
    for rank in found:
        assert rank["orders"]["enter"] == [*TURN * (WORLD - 1), "product"]
        assert rank["orders"]["leave"] == ["product", *TURN * (WORLD - 1)]
        assert rank["orders"]["enter, backward"] == [
            "all_gather",
            "product",
            "wait",
            "reduce_scatter",
            "product",
            "wait",
        ]


def test_a_backward_in_two_passes_exchanges_for_each_only_what_it_needs(
    found: list[dict[str, Any]],
) -> None:
    ring = ["pass_on", "wait"] * (WORLD - 1)
    for rank in found:
        assert max(layer["error"] for layer in rank["passes"].values()) < 1e-14
        assert rank["passes"]["enter"]["exchanged"] == [ring, ["all_gather", "wait"]]
        assert rank["passes"]["leave"]["exchanged"] == [ring, ["all_gather"]]


def test_selective_recomputing_gathers_no_tokens_for_a_product_it_has_kept(
    found: list[dict[str, Any]],
) -> None:
    assert all(
        rank["recomputed"] == ["pass_on"] * (WORLD - 1) + ["all_gather", "reduce_scatter"]
        for rank in found
    )


def test_memory_that_others_cannot_read_is_refused_in_one_line() -> None:
    with pytest.raises(
        ConfigError,
        match=(
            r"\(symmetric\) reads .*, this process computes on cpu; use parallel.tp_overlap=ring$"
        ),
    ):
        check_access("symmetric", None, torch.device("cpu"))  # type: ignore[arg-type]


@pytest.mark.gpu
def test_on_gpus_both_kinds_give_what_the_plain_path_gives(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    run_program("tests.support.distributed.overlaps", [str(tmp_path), "cuda"], tmp_path)
    for rank in range(2):
        found = json.loads((tmp_path / f"rank-{rank}.json").read_text("utf-8"))
        assert all(
            max(found[kind].values()) < 1e-12 and max(found[f"{kind}, bf16"].values()) < 0.04
            for kind in KINDS
        )
