"""The trainer gives the answer of one process under products of pipeline, context and data parallelism, and so do checkpoints."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.processes import run_ranks

TOLERANCE = 1e-10

FAST: list[dict[str, Any]] = [
    {"kind": "fsdp", "pp": 2, "cp": 2, "pp_schedule": "interleaved", "tied": True, "packed": True},
    {"kind": "zero1", "pp": 2, "tied": True, "packed": False},
    {"kind": "hsdp", "dp_shard": 2, "tied": False, "packed": False},
    {"kind": "ddp", "pp": 2, "cp": 2, "cp_kind": "ulysses", "pp_schedule": "naive", "tied": False, "packed": False},
]
SHARDED = [
    {"kind": kind, **degrees, "tied": tied, "packed": packed, "vocab": vocab, "micro": micro}
    for kind, degrees in (
        ("ddp", {}),
        ("zero1", {}),
        ("zero1", {"pp": 2, "pp_schedule": "interleaved"}),
        ("zero1", {"cp": 2}),
        ("zero1", {"pp": 2, "cp": 2}),
        ("zero2", {}),
        ("zero2", {"pp": 2, "pp_schedule": "zero_bubble_v"}),
        ("zero2", {"cp": 2}),
        ("fsdp", {}),
        ("hsdp", {"dp_shard": 2}),
        ("hsdp", {"dp_shard": 2, "cp": 2}),
    )
    for tied, packed, vocab in ((True, True, 51), (False, False, 51), (True, False, 64), (False, True, 64))
    for micro in ((1,) if "pp" in degrees else (1, 2))
]
WHOLE = [
    {"kind": kind, **degrees, "tied": tied, "packed": packed}
    for kind in ("ddp", "fsdp")
    for degrees in (
        {"pp": 2},
        {"pp": 4},
        {"pp": 2, "pp_schedule": "gpipe"},
        {"pp": 2, "pp_schedule": "zero_bubble"},
        {"pp": 2, "pp_schedule": "zero_bubble_v"},
        {"pp": 2, "pp_schedule": "dualpipe_v"},
        {"cp": 4},
        {"cp": 2, "cp_balanced": True},
        {"cp": 2, "cp_kind": "ulysses"},
        {"pp": 2, "cp": 2, "cp_balanced": True},
    )
    for tied, packed in ((True, True), (False, False))
]


def worst_differences(layouts: list[dict[str, Any]], folder: Path) -> list[dict[str, float]]:
    run_ranks("tests.distributed.trainer_run", 1, [str(folder), json.dumps(layouts)], folder, timeout_s=1200)
    found: list[dict[str, float]] = json.loads((folder / "layouts.json").read_text("utf-8"))
    assert all({"initial", "loss", "norm", "moment", "validation", "parameter", "goes_on"} == one.keys() for one in found)
    return found


def test_products_of_layouts_train_as_one_process_and_exchange_checkpoints_with_it(tmp_path: Path) -> None:
    found = worst_differences(FAST, tmp_path)
    assert len(found) == len(FAST) and max(max(one.values()) for one in found) < TOLERANCE


@pytest.mark.slow
@pytest.mark.timeout(1300)
@pytest.mark.parametrize("layouts", [SHARDED, WHOLE], ids=["shards", "pipelines and slices"])
def test_every_layout_trains_as_one_process_and_exchanges_checkpoints_with_it(
    tmp_path: Path, layouts: list[dict[str, Any]]
) -> None:
    found = worst_differences(layouts, tmp_path)
    assert [layout for layout, one in zip(layouts, found, strict=True) if max(one.values()) >= TOLERANCE] == []
