"""Settings of experts that nothing computes, or that do not go with others, are one line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from llm_core.config import ConfigError
from llm_core.memory.config import NO_SAVINGS, MemoryConfig
from llm_core.model.config import ModelConfig
from llm_core.model.expert_config import ExpertsConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.outer import OuterConfig
from llm_core.training.combinations.settings import check_settings
from llm_core.training.config import TrainConfig

SHAPE = ModelConfig(51, 16, 1, 2, 2, 12, 32)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"top_k": 6}, r"top_k \(6\) must be from 1 to number \(5\)"),
        ({"top_k": 1}, r"normalised \(true\) makes the only gate"),
        ({"shared_gate": True}, r"shared_dim \(0\) must be positive"),
        ({"bias_rate": 0.001}, r"experts.bias_rate \(0.001\) and scale .*score=sigmoid"),
        ({"normalised": False}, "are neither Mixtral"),
        ({"score": "sigmoid", "shared_dim": 20}, "are neither Mixtral"),
        ({"z_loss": -1.0}, r"z_loss \(-1.0\) must be a number of at least 0"),
    ],
)
def test_what_no_model_of_hugging_face_computes_is_refused_in_one_line(
    values: dict[str, object], line: str
) -> None:
    with pytest.raises(ConfigError, match=line):
        dataclasses.replace(
            SHAPE,
            experts=ExpertsConfig(**({"number": 5, "top_k": 2} | values)),  # type: ignore[arg-type]
        )


TRAIN = TrainConfig(num_steps=4, global_batch_sequences=8, micro_batch_sequences=2, seq_len=16)


@pytest.mark.parametrize(
    ("train", "parallel", "memory", "line"),
    [
        ({"float8": True, "dtype": "bf16"}, {}, NO_SAVINGS, r"train.float8 \(true\)"),
        ({}, {}, MemoryConfig("selective"), r"memory.recompute \(selective\).*=full"),
        ({}, {}, MemoryConfig(ffn_tiles=2), r"memory.ffn_tiles \(2\)"),
        (
            {},
            {"num_processes": 2, "kind": "ddp", "pp": 2, "pp_schedule": "zero_bubble"},
            NO_SAVINGS,
            "pp_schedule=zero_bubble takes two",
        ),
        (
            {},
            {"num_processes": 2, "kind": "ddp", "compress": "powersgd"},
            NO_SAVINGS,
            r"parallel.compress \(powersgd\).*=int8",
        ),
    ],
)
def test_settings_for_dense_feed_forwards_are_refused_with_experts(
    train: dict[str, object], parallel: dict[str, object], memory: MemoryConfig, line: str
) -> None:
    model = dataclasses.replace(SHAPE, dim=32, ffn_dim=32, experts=ExpertsConfig(4, 2))
    with pytest.raises(ConfigError, match=line):
        check_settings(
            model,
            dataclasses.replace(TRAIN, **train),  # type: ignore[arg-type]
            ParallelConfig(**parallel),  # type: ignore[arg-type]
            memory,
            "adamw",
        )


def test_biases_that_members_do_not_exchange_are_refused(tmp_path: Path) -> None:
    experts = ExpertsConfig(4, 2, score="sigmoid", bias_rate=0.01)
    model = dataclasses.replace(SHAPE, dim=32, ffn_dim=32, experts=experts)
    train = TrainConfig(100, 4, 16, 4)
    meeting = ParallelConfig(outer=OuterConfig("diloco", folder=tmp_path))
    with pytest.raises(ConfigError, match=r"bias_rate \(0.01\).*outer.kind \(diloco\)"):
        check_settings(model, train, meeting, NO_SAVINGS, "adamw")
    alone = dataclasses.replace(experts, bias_rate=0.0, balance_loss=0.01)
    check_settings(dataclasses.replace(model, experts=alone), train, meeting, NO_SAVINGS, "adamw")
