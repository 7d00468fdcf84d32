import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from llm_core.bench import answers
from llm_core.bench.generation import summary
from llm_core.config import ConfigError
from llm_core.huggingface.export import load_model
from llm_core.infer.cache.rows import static_cache
from llm_core.model.transformer import Transformer
from llm_core.quantize.model import rounded_weights
from tasks.bench import proof
from tasks.bench.config import BenchConfig
from tasks.bench.stage import benchmark_model, measure
from tasks.runtime.artifact import Artifact
from tasks.runtime.stage import StageFailure
from tests.support.data.trained_run import save_model
from tests.support.engine.broken_caches import make_broken

SMALL = BenchConfig(
    batches=(1, 2), prompt_tokens=(4, 8), new_tokens=(3,), repeats=3, check_tokens=8,
    weights=("model", "int8"), load_requests=8, load_prompt_tokens=(2, 9), load_new_tokens=(2, 5),
    concurrencies=(1, 3),
)  # fmt: skip


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("train")
    save_model(folder, vocab_size=50, weight_scale=8)
    return Artifact(folder, "train")


def test_every_cell_is_measured_with_each_cache_and_format_and_defined(
    train: Artifact, tmp_path: Path
) -> None:
    metrics = benchmark_model(train, tmp_path, SMALL).metrics
    assert metrics["correctness"]["passed"] and metrics["correctness"]["fp64_max_abs_diff"] <= 1e-10
    cells = {
        (c["weights"], c["cache"], c["batch"], c["prompt_tokens"]): c for c in metrics["cells"]
    }
    assert set(cells) == {
        (weights, cache, batch, prompt)
        for weights in ("model", "int8")
        for cache in ("static", "paged", "int8", None)
        for batch in (1, 2)
        for prompt in (4, 8)
    }
    for cell in cells.values():
        for name in ("prefill_s", "step_s", "decode_tok_s", "prefill_tok_s"):
            assert set(cell[name]) == {"median", "min", "max", "repeats"}
            assert 0 < cell[name]["min"] <= cell[name]["median"] <= cell[name]["max"] < math.inf
        assert cell["decode_tok_s"]["repeats"] == 3 and cell["step_s"]["repeats"] == 6
        assert len(cell["samples"]["decode_tok_s"]) == 3 and cell["peak_bytes"] is None
        assert cell["mode"] == ("uncached" if cell["cache"] is None else "cached")
        for share in ("mbu", "mfu", "prefill_mbu", "prefill_mfu"):
            assert cell[share] > 0 and cell[f"{share}_stated"] is None
    static, int8 = (cells["model", cache, 2, 8]["bytes_per_step"] for cache in ("static", "int8"))
    assert int8 < static and cells["int8", "static", 2, 8]["bytes_per_step"] < static
    first = cells["model", "static", 1, 8]
    assert metrics["decode_tok_s"] == first["decode_tok_s"]["median"]
    assert first["same_tokens_frac"] == 1.0
    assert metrics["headline"] == {
        "mode": "cached",
        "cache": "static",
        "weights": "model",
        "batch": 1,
        "prompt_tokens": 8,
        "new_tokens": 3,
    }
    defined = " ".join(metrics["definitions"])
    assert all(
        name in defined
        for name in ("prefill_s", "step_s", "decode_tok_s", "mbu", "bound", "speedup", "warmup_s")
    )
    assert set(metrics["behind"]) == {"model", "int8"}
    assert {each["name"] for each in metrics["correctness"]["answers"]} == {
        "greedy", "batch", "chunks", "preempted", "prefix", "bursts", "stops", "stream",
    }  # fmt: skip
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
    result = measure(train.path / "model", config, {"static": make_broken(defect)})
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
    monkeypatch.setattr(proof, "free_bytes", lambda device: 1)
    result = measure(train.path / "model", SMALL, {"static": static_cache})
    layers = load_model(train.path / "model").config.num_layers
    assert [check["name"] for check in result["correctness"]["checks"]] == [
        f"{prefix}layer_{layer}" for prefix in ("paged_", "") for layer in range(layers)
    ]
    assert result["correctness"]["passed"] and result["decode_tok_s"] > 0
    broken = measure(train.path / "model", SMALL, {"static": make_broken("nan")})
    assert broken["withheld"] and broken["cells"] == []


def test_cells_longer_than_the_model_are_skipped_with_the_reason(
    train: Artifact, tmp_path: Path
) -> None:
    config = dataclasses.replace(SMALL, batches=(1,), prompt_tokens=(4, 95), concurrencies=())
    metrics = benchmark_model(train, tmp_path, config).metrics
    assert {c["prompt_tokens"] for c in metrics["cells"]} == {4}
    (skipped,) = metrics["skipped"]
    assert skipped["prompt_tokens"] == 95 and "max_seq_len (96)" in skipped["reason"]
    assert metrics["loads"] == []
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
        {"caches": ("paged",)},
        {"caches": ("static", "static")},
        {"weights": ("int8",)},
        {"concurrencies": (0,)},
        {"arrival_fracs": (0.0,)},
        {"load_requests": 0},
        {"load_new_tokens": (5, 4)},
    ],
)
def test_impossible_grids_are_config_errors(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        BenchConfig(**values)  # type: ignore[arg-type]


def test_loads_are_measured_closed_and_open_on_the_engine(train: Artifact) -> None:
    metrics = measure(train.path / "model", SMALL)
    loads = metrics["loads"]
    assert [(row["kind"], row.get("concurrency"), row.get("arrival_frac")) for row in loads] == [
        ("closed", 1, None),
        ("closed", 3, None),
        ("open", None, 0.5),
        ("open", None, 0.9),
    ]
    fastest = max(row["requests_per_s"] for row in loads[:2])
    for row in loads:
        assert row["target"] == "engine" and row["requests"] == 8 and row["failed"] == 0
        assert row["ttft_s"]["p50"] > 0 and row["ttft_s"]["p90"] is None
        assert sum(row["itl_histogram"]["counts"]) == row["output_tokens"] - row["requests"]
        assert set(row) - {"target", "kind"} >= {"goodput", "queue_s", "late_s"}
    assert [row["rate_per_s"] for row in loads[2:]] == pytest.approx(
        [0.5 * fastest, 0.9 * fastest], rel=1e-4
    )
    # The folder of this test has no tokenizer, so there is nothing to serve.
    (lack,) = [each for each in metrics["skipped"] if each.get("load") == "http"]
    assert "tokenizer.json" in lack["reason"]


def test_rounded_weights_that_answer_wrongly_have_no_speed(
    train: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = answers.greedy_behind

    def wrong(model: Transformer, seed: int) -> answers.Behind:
        return answers.Behind(3.0, 0.1) if rounded_weights(model) else real(model, seed)

    monkeypatch.setattr(answers, "greedy_behind", wrong)
    metrics = measure(train.path / "model", dataclasses.replace(SMALL, concurrencies=()))
    assert {cell["weights"] for cell in metrics["cells"]} == {"model"}
    (withheld,) = metrics["skipped"]
    assert withheld["weights"] == "int8" and "withheld: a greedy token" in withheld["reason"]
    assert metrics["withheld"] is None and metrics["decode_tok_s"] > 0


def test_wrong_answers_of_the_engine_withhold_every_speed(
    train: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = [answers.Proof("batch", "answer 2 differs at token 5")]
    monkeypatch.setattr(answers, "check_answers", lambda model, seed: wrong)
    metrics = measure(train.path / "model", SMALL)
    assert "batch: answer 2 differs at token 5" in metrics["withheld"]
    assert not metrics["correctness"]["passed"]
    assert metrics["cells"] == metrics["loads"] == [] and metrics["decode_tok_s"] is None
