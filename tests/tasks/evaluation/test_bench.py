import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from llm_core.bench.generation import summary
from llm_core.config import ConfigError
from llm_core.huggingface.export import load_model
from llm_core.infer.cache.rows import static_cache
from tasks.evaluation import bench
from tasks.evaluation.bench import benchmark_model, measure
from tasks.evaluation.config import BenchConfig
from tasks.runtime.artifact import Artifact
from tasks.runtime.stage import StageFailure
from tests.support.data.trained_run import save_model
from tests.support.engine.broken_caches import make_broken

SMALL = BenchConfig(
    batches=(1, 2), prompt_tokens=(4, 8), new_tokens=(3,), repeats=3, check_tokens=8
)


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("train")
    save_model(folder, vocab_size=50, weight_scale=8)
    return Artifact(folder, "train")


def test_every_cell_is_measured_in_both_modes_and_defined(train: Artifact, tmp_path: Path) -> None:
    metrics = benchmark_model(train, tmp_path, SMALL).metrics
    assert metrics["correctness"]["passed"] and metrics["correctness"]["fp64_max_abs_diff"] <= 1e-10
    cells = {(c["mode"], c["batch"], c["prompt_tokens"]): c for c in metrics["cells"]}
    assert set(cells) == {
        (mode, batch, prompt)
        for mode in ("cached", "uncached")
        for batch in (1, 2)
        for prompt in (4, 8)
    }
    for cell in cells.values():
        for name in ("prefill_s", "step_s", "decode_tok_s", "prefill_tok_s"):
            assert set(cell[name]) == {"median", "min", "max", "repeats"}
            assert 0 < cell[name]["min"] <= cell[name]["median"] <= cell[name]["max"] < math.inf
        assert cell["decode_tok_s"]["repeats"] == 3 and cell["step_s"]["repeats"] == 6
    assert metrics["decode_tok_s"] == cells["cached", 1, 8]["decode_tok_s"]["median"]
    assert metrics["headline"] == {
        "mode": "cached",
        "batch": 1,
        "prompt_tokens": 8,
        "new_tokens": 3,
    }
    defined = " ".join(metrics["definitions"])
    assert all(
        name in defined
        for name in ("prefill_s", "step_s", "decode_tok_s", "mbu", "bound", "speedup", "warmup_s")
    )
    assert json.loads((tmp_path / "bench.json").read_text()) == metrics


def test_percentiles_need_twenty_values() -> None:
    assert summary([3.0, 1.0, 2.0, 9.0, 2.5]) == {
        "median": 2.5,
        "min": 1.0,
        "max": 9.0,
        "repeats": 5,
    }
    assert summary(list(range(1, 20))) == {"median": 10.0, "min": 1.0, "max": 19.0, "repeats": 19}
    many = np.arange(1, 102, dtype=float)
    assert summary(many) == {"median": 51.0, "p05": 6.0, "p95": 96.0, "repeats": 101}
    assert set(summary(many[:20])) == {"median", "p05", "p95", "repeats"}


PLANTED = {
    "position after a prefix": "pieces",
    "lengths of rows": "ragged_rows",
    "nan": "splits",
    "top-left mask": "pieces",
    "key far back": "cell_1x(40+3)",
    "row 4": "cell_6x(8+3)",
}


@pytest.mark.parametrize("defect", PLANTED)
def test_speed_is_withheld_when_the_cache_is_broken(train: Artifact, defect: str) -> None:
    config = dataclasses.replace(SMALL, batches=(1, 6), prompt_tokens=(8, 40, 4000))
    result = measure(train.path / "model", config, make_broken(defect))
    assert not result["correctness"]["passed"] and f"{PLANTED[defect]}: " in result["withheld"]
    assert [
        check
        for check in result["correctness"]["checks"]
        if check["name"] == PLANTED[defect] and not check["passed"]
    ]
    assert (
        result["cells"] == [] and result["decode_tok_s"] is None and result["prefill_tok_s"] is None
    )
    assert "no speed is reported" in result["withheld"]
    json.dumps(result, allow_nan=False)


def test_a_model_too_large_for_float64_is_checked_layer_by_layer(
    train: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "free_bytes", lambda device: 1)
    result = measure(train.path / "model", SMALL, static_cache)
    layers = load_model(train.path / "model").config.num_layers
    assert [check["name"] for check in result["correctness"]["checks"]] == [
        f"{prefix}layer_{layer}" for prefix in ("", "paged_") for layer in range(layers)
    ]
    assert result["correctness"]["passed"] and result["decode_tok_s"] > 0
    broken = measure(train.path / "model", SMALL, make_broken("nan"))
    assert broken["withheld"] and broken["cells"] == []


def test_cells_longer_than_the_model_are_skipped_with_the_reason(
    train: Artifact, tmp_path: Path
) -> None:
    config = BenchConfig(
        batches=(1,), prompt_tokens=(4, 95), new_tokens=(3,), repeats=3, check_tokens=8
    )
    metrics = benchmark_model(train, tmp_path, config).metrics
    assert {c["prompt_tokens"] for c in metrics["cells"]} == {4}
    assert [
        (s["prompt_tokens"], "max_seq_len (96)" in s["reason"]) for s in metrics["skipped"]
    ] == [(95, True)]
    with pytest.raises(StageFailure, match="no cell"):
        benchmark_model(
            train, tmp_path, BenchConfig(batches=(1,), prompt_tokens=(95,), new_tokens=(3,))
        )


@pytest.mark.parametrize(
    "values",
    [
        {"batches": (2,)},
        {"batches": ()},
        {"new_tokens": (1,)},
        {"repeats": 2},
        {"check_tokens": 3},
        {"seed": -1},
    ],
)
def test_impossible_grids_are_config_errors(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        BenchConfig(**values)  # type: ignore[arg-type]
