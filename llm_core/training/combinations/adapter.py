"""Refuses settings that do not go with an adapter."""

from __future__ import annotations

from llm_core.config import ConfigError
from llm_core.memory.config import MemoryConfig
from llm_core.model.adapter import CODED_BLOCK, AdaptedModelConfig, layers_of
from llm_core.optim.config import OptimizerKind
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.cuts import cut_dim
from llm_core.training.combinations.refusal import refuse_others
from llm_core.training.config import TrainConfig


def check_adapter(
    model: AdaptedModelConfig,
    train: TrainConfig,
    parallel: ParallelConfig,
    memory: MemoryConfig,
    optimizer: OptimizerKind,
) -> None:
    """Raises ConfigError where something takes the place of layers, and would pass over factors."""
    values = (
        ("optim.kind", optimizer, optimizer if optimizer != "muon" else "adamw"),
        ("parallel.tp_overlap", parallel.tp_overlap, "none"),
        ("memory.ffn_tiles", memory.ffn_tiles, 1),
        ("train.float8", train.float8, False),
        ("train.kernels", train.kernels, train.kernels if train.kernels != "quack" else "triton"),
        ("train.init_vocab", train.init_vocab, "keep"),
    )
    refuse_others(values, "an adapter", ", or adapter=none")
    if model.adapter.decomposed:
        check_decomposed(model, train, parallel)
    if model.adapter.base_dtype == "bf16" and train.dtype != "bf16":
        raise ConfigError(
            f"adapter.base_dtype (bf16) is for products in bf16, train.dtype is {train.dtype}; set"
            " train.dtype=bf16, or adapter.base_dtype=fp32"
        )
    if model.adapter.base_codes == "nf4":
        check_codes(model, parallel)
    if "attention.qkv" in model.factored and parallel.tp > model.num_kv_heads:
        raise ConfigError(
            f"parallel.tp ({parallel.tp}) must not exceed model.num_kv_heads"
            f" ({model.num_kv_heads}) with an adapter on qkv, whose factors are cut by key/value"
            f" heads; try parallel.tp={model.num_kv_heads}, or leave qkv out of adapter.targets"
        )


def check_decomposed(
    model: AdaptedModelConfig, train: TrainConfig, parallel: ParallelConfig
) -> None:
    """Raises ConfigError where rows of a matrix are not whole numbers on one process."""
    values = (
        ("parallel.tp", parallel.tp, 1),
        ("adapter.base_codes", model.adapter.base_codes, "none"),
        ("train.preference.kind", train.preference.kind, "none"),
    )
    choice = "adapter.decomposed, which takes lengths of whole rows"
    refuse_others(values, choice, ", or adapter.decomposed=false")


def check_codes(model: AdaptedModelConfig, parallel: ParallelConfig) -> None:
    """Raises ConfigError where matrices in 4 bits cannot be cut as the layout asks for."""
    if parallel.shards_weights:
        raise ConfigError(
            f"parallel.kind ({parallel.kind}) shards numbers, and adapter.base_codes (nf4) keeps"
            " codes; set parallel.kind=ddp, with parallel.tp or parallel.pp to share them"
        )
    if parallel.tp > model.num_kv_heads:
        raise ConfigError(
            f"parallel.tp ({parallel.tp}) must not exceed model.num_kv_heads"
            f" ({model.num_kv_heads}) with adapter.base_codes=nf4, as rows in codes are not"
            f" gathered; try parallel.tp={model.num_kv_heads}"
        )
    for name, layer in layers_of(model).items():
        of_process = layer.columns // (parallel.tp if cut_dim(f"{name}.weight") == 1 else 1)
        if of_process % CODED_BLOCK:
            raise ConfigError(
                f"adapter.base_codes (nf4) takes blocks of {CODED_BLOCK} inputs, and {name} has"
                f" {of_process} of {layer.columns} on a process; set adapter.base_codes=none, or"
                f" another width or parallel.tp"
            )
