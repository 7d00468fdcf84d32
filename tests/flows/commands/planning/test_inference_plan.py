"""`textmill plan folder=DIR hardware=NAME` says what inference with a model needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.cli import main
from llm_core.huggingface.export import read_config
from tests.support.served_models import publish_model


def test_a_folder_is_planned_for_inference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = publish_model(tmp_path / "model", max_seq_len=4096)
    assert main(["plan", f"folder={folder}", "hardware=a100", "generate.tensor_parallel=2"]) == 0
    shown = capsys.readouterr().out
    values = json.loads(shown.splitlines()[-1])
    assert values["weights"] == read_config(folder).num_parameters()
    assert {(each["weights"], each["cache"]) for each in values["inference"]} == {
        (weights, cache) for weights in ("bf16", "int8", "int4") for cache in ("model", "int8")
    }
    assert "inference on 2 x A100" in shown
    for plan in values["inference"]:
        assert [at["context_tokens"] for at in plan["contexts"]] == [2048, 4096]
        for at in plan["contexts"]:
            assert f"{at['static_sequences']:,}" in shown
            assert f"{at['alone_tokens_per_s']:,.0f} … {at['most_tokens_per_s']:,.0f}" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["folder=a", "folder=b", "hardware=a100"], "folder is given twice"),
        (["folder=nowhere", "hardware=a100"], "has no config.json"),
        (["folder=nowhere"], "hardware is not set"),
    ],
)
def test_a_plan_without_model_or_device_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words]) == 2
    assert said in capsys.readouterr().err
