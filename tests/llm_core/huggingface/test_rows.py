"""Rows of a weight are those of the whole weight, and a process reads no others from files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.huggingface.export import export_model, read_weights
from llm_core.huggingface.growth import read_grown_weights
from llm_core.model.config import ComputeConfig, ModelConfig
from llm_core.model.transformer import Transformer
from llm_core.parallel.apply import build_layout
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.places import local, placed_weights
from llm_core.parallel.weights import box_of, write_weights
from tests.support.distributed.alone import as_process
from tests.support.distributed.cases import layout, layout_name
from tests.support.distributed.problem import Problem
from tests.support.engine.live_bytes import LiveBytes
from tests.support.engine.small_runs import MODEL
from tests.support.engine.uneven_model import make_model

FAMILIES = ("llama", "qwen2", "qwen3", "gemma", "gpt2", "gpt_neox")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, ModelConfig]]:
    found = {}
    for family in FAMILIES:
        config = Problem(family=family, tied=False).model()
        folder = tmp_path_factory.mktemp(family)
        export_model(config, make_model(config, 3).state_dict(), folder)
        found[family] = folder, config
    return found


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(FAMILIES), st.integers(0, 80), st.integers(0, 80))
def test_rows_are_those_of_the_whole(
    folders: dict[str, tuple[Path, ModelConfig]], family: str, begin: int, end: int
) -> None:
    folder, config = folders[family]
    rows = slice(min(begin, end), max(begin, end))
    for weights in (
        read_weights(folder, config),
        read_grown_weights(folder, dataclasses.replace(config, vocab_size=56)),
    ):
        for name, whole in weights.items():
            assert torch.equal(weights.rows(name, rows), whole[rows]), name


@pytest.mark.parametrize(
    "parallel",
    [
        layout(4, "fsdp"),
        layout(4, "ddp", tp=4),
        layout(8, "fsdp", pp=2, tp=2),
        layout(8, "hsdp", dp_shard=2, tp=2),
    ],
    ids=layout_name,
)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_process_gets_its_own_pieces(
    folders: dict[str, tuple[Path, ModelConfig]], family: str, parallel: ParallelConfig
) -> None:
    folder, config = folders[family]
    weights = read_weights(folder, config)
    for rank in range(parallel.num_processes):
        with as_process(rank, parallel) as ranks:
            built = build_layout(config, parallel, ComputeConfig(), ranks, fill=False)
            write_weights(built, weights)
            for name, weight, place in placed_weights(built):
                box = box_of(built, name, weight, place.shape)
                inside = tuple(slice(run.start, run.stop) for run in box)
                assert torch.equal(local(weight.detach()), weights[name][inside])


def test_a_saved_head_that_differs_from_a_tied_embedding_is_refused_by_whoever_reads_it(
    tmp_path: Path,
) -> None:
    from safetensors.torch import load_file, save_file

    export_model(MODEL, make_model(MODEL).state_dict(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    head = tensors["model.embed_tokens.weight"].clone()
    head[40] += 1
    save_file(tensors | {"lm_head.weight": head}, tmp_path / "model.safetensors")
    weights = read_weights(tmp_path, MODEL)
    weights.rows("embedding.weight", slice(0, 40))
    with pytest.raises(ConfigError, match=r"lm_head.weight differs from the embedding"):
        weights.rows("embedding.weight", slice(40, 51))


def test_a_process_of_sixteen_makes_nothing_larger_than_its_pieces(tmp_path: Path) -> None:
    config = ModelConfig(512, 64, 2, 8, 8, 256, 64, tied_embeddings=False)
    export_model(config, Transformer(config).state_dict(), tmp_path)
    parallel = layout(16, "fsdp", tp=2)
    with as_process(9, parallel) as ranks:
        built = build_layout(config, parallel, ComputeConfig(), ranks, fill=False)
        pieces = {name: local(weight.detach()).numel() for name, weight, _ in placed_weights(built)}
        weights, asked = read_weights(tmp_path, config), {}
        rows = weights.rows

        def seen(name: str, some: slice) -> Tensor:
            with LiveBytes() as live:
                found = rows(name, some)
            asked[name] = live.largest
            return found

        weights.rows = seen  # type: ignore[method-assign]
        write_weights(built, weights)
    assert asked.keys() == pieces.keys()
    # Of a cut column its rows are made whole.
    assert all(0 < asked[name] <= 2 * pieces[name] for name in asked)
    assert max(asked.values()) <= 512 * 64 / 8
