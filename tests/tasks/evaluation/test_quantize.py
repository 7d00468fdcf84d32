"""A quantized model is written whole, generates as in memory, and its cost in bits is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from llm_core.config import ConfigError
from llm_core.huggingface.export import load_model, read_config, read_shape
from llm_core.infer.choice.sampling import GREEDY
from tasks.evaluation.config import (
    EvaluateConfig,
    EvaluateStageConfig,
    GenerateConfig,
    QuantizeConfig,
)
from tasks.evaluation.generate import generate_text, generate_texts
from tasks.evaluation.quantize import BESIDE, quantize_folder
from tasks.evaluation.stage import evaluate_model
from tasks.tokenizer.encoder import load_tokenizer
from tests.support.data.trained_run import Run, make_run

SCORING = EvaluateConfig(
    windows="disjoint", bootstrap_samples=100, sample_prompts=("Hello",), num_document_prompts=0
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("run"), num_documents=12)


def quantize(run: Run, out: Path, format: Any, folder: Path | None = None) -> dict[str, Any]:
    evaluated = (run.documents, run.tokenizer, run.shards, run.train)
    config = QuantizeConfig(format, "cpu")
    model = run.train.path / "model"
    return quantize_folder(folder or model, out, config, None if folder else evaluated, SCORING)


@pytest.mark.parametrize("format", ["int8", "int4", "fp8"])
def test_bits_per_byte_are_those_of_the_evaluation_and_of_the_written_folder(
    run: Run, format: str, tmp_path: Path
) -> None:
    report = quantize(run, tmp_path / "out", format)
    (tmp_path / "evaluated").mkdir()
    both = EvaluateStageConfig(SCORING, GenerateConfig(max_new_tokens=1))
    artifacts = run.documents, run.tokenizer, run.shards, run.train
    evaluated = evaluate_model(*artifacts, tmp_path / "evaluated", both)
    before = evaluated.metrics["val_bpb"]["value"]
    assert report["bits_per_byte_before"] == pytest.approx(before, abs=1e-5)
    after, change = report["bits_per_byte_after"], report["more_bits_frac"]
    assert after == pytest.approx(before * (1 + change), abs=1e-5) and 0 < abs(change) < 0.05
    assert report["stored_bytes_after"] < report["stored_bytes_before"] * 0.45
    assert report["documents"] == evaluated.metrics["counts"]["documents"]
    assert load_model(tmp_path / "out", weights=report["format"]).config.num_layers > 0


def test_a_written_folder_generates_what_the_model_in_memory_does(run: Run, tmp_path: Path) -> None:
    (run.train.path / "model/generation_config.json").write_text('{"eos_token_id": 0}', "utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        content = (run.tokenizer.path / name).read_bytes()
        (run.train.path / "model" / name).write_bytes(content)
    quantize(run, tmp_path / "out", "int8")
    beside = {file.name for file in (tmp_path / "out").iterdir()} & {*BESIDE}
    assert beside == {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    tokenizer = load_tokenizer(tmp_path / "out")
    model = load_model(run.train.path / "model", weights="int8")
    prompt = tokenizer.encode("The first").tolist()
    expected = generate_texts(model, tokenizer, [prompt], GREEDY, 24, [tokenizer.eos_id])[0]
    found = generate_text(tmp_path / "out", tmp_path / "out", "The first", GREEDY, 24, device="cpu")
    assert found == expected and found.num_tokens > 0
    # What the server asks for before it reads a model.
    assert read_shape(tmp_path / "out") == read_config(run.train.path / "model")


def test_what_cannot_be_quantized_is_refused_in_one_line(run: Run, tmp_path: Path) -> None:
    report = quantize(run, tmp_path / "int8", "int8", run.train.path / "model")
    assert "bits_per_byte_before" not in report and report["weight_bytes"] > 0
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for out, folder, line in (
        ("int8", run.train.path / "model", "exists already; name a new folder"),
        ("a/b", run.train.path / "model", "is not a folder; make it"),
        ("new", tmp_path / "int8", "are already quantized; give the original model"),
        ("new", damaged, "has no config.json"),
    ):
        with pytest.raises(ConfigError, match=line) as found:
            quantize(run, tmp_path / out, "int4", folder)
        assert "\n" not in str(found.value)
    assert not (tmp_path / "new").exists()


def test_weights_that_are_no_numbers_are_refused_before_anything_is_written(
    run: Run, tmp_path: Path
) -> None:
    from llm_core.huggingface.export import export_model

    model = load_model(run.train.path / "model")
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state["blocks.0.ffn.down.weight"][0, 0] = torch.inf
    export_model(model.config, state, tmp_path / "infinite")
    with pytest.raises(ConfigError, match="infinite or undefined"):
        quantize(run, tmp_path / "out", "int8", tmp_path / "infinite")
    assert not (tmp_path / "out").exists()
