"""Recomputes activations in backward instead of keeping them: all of a block, of some blocks, or
what is cheap to make.

| recompute | kept of a block for its backward pass | recomputed |
|---|---|---|
| none | everything | nothing |
| selective | its input, attention, two products (queries, keys and values; gate and up) | norms, gates, one product, factors of adapters |
| every | of one block in `every_k` its input, everything of the others | those blocks |
| full | its input | the block, a third more work in all (Chen et al., 2016) |

Selective is the choice of Korthikanti et al. (2022) turned round: attention is not kept as scores
anyhow, so what pays is to keep what takes long and to drop what is wide. Gradients are those of the
plain run to the bit where kernels are deterministic: nothing in a block is random, so no generator
has to be wound back.

Recomputing repeats what a block sends to other processes, in the same order on all of them. Left
out: a budget of bytes.
"""  # noqa: E501

from __future__ import annotations

from functools import partial
from typing import Any

from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from llm_core.memory.config import MemoryConfig
from llm_core.model.adapter import AdaptedModelConfig, layers_of
from llm_core.model.config import ModelConfig
from llm_core.model.transformer import Transformer

PRODUCTS = frozenset(
    {
        "aten::mm",
        "aten::addmm",
        "aten::_scaled_mm",
        "llm_core::swiglu_product",
        "llm_core::coded_product",
    }
)
"""Products of linear layers. Those of attention without a kernel of its own are `aten::bmm`."""
KEPT = frozenset(
    {
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_scaled_dot_product_fused_attention_overrideable",
        "torch_attn::_varlen_attn",
        "llm_core::flash4",
        "_c10d_functional::all_gather_into_tensor",
        "_c10d_functional::reduce_scatter_tensor",
        "_c10d_functional::all_reduce",
        "_c10d_functional::all_to_all_single",
        "textmill::gather_product",
    }
)
"""Attention, and exchanges that give their result back; those into a buffer run again."""


def apply_recompute(model: Transformer, config: MemoryConfig) -> None:
    """Let the blocks of this process that are chosen recompute."""
    selective = partial(_selective, products_kept(model.config))
    options = {"context_fn": selective} if config.recompute == "selective" else {}
    run = partial(checkpoint, use_reentrant=False, preserve_rng_state=False, **options)
    for block in model.own_blocks:
        # By the layer's place in the whole model, so that pipelines recompute what one process
        # would.
        if config.recompute in ("selective", "full") or (
            config.recompute == "every" and block.attention.layer % config.every_k == 0
        ):
            block.recompute = run


def products_kept(config: ModelConfig) -> tuple[bool, ...]:
    """Which products of a block's linear layers are kept, in the order they are computed.

    The second of each pair leads back into the residual stream. It is narrow, and that of the last
    pair is not needed at all. The two products of a layer's factors are cheap, and their result is
    as wide as the layer's own, so they are recomputed.
    """
    factored = config.factored if isinstance(config, AdaptedModelConfig) else {}
    found: list[bool] = []
    for number, name in enumerate(layers_of(config)):
        found += [number % 2 == 0, *([False, False] if name in factored else [])]
    return tuple(found)


def _selective(kept: tuple[bool, ...]) -> Any:
    return create_selective_checkpoint_contexts(_Policy(kept))


class _Policy:
    """Keep or recompute, for the operations of one pass through one block."""

    def __init__(self, kept: tuple[bool, ...]) -> None:
        self.kept = kept
        # Of the first pass and of its repetition, which must decide alike.
        self.num_products = {False: 0, True: 0}
        self.num_in_attention = {False: 0, True: 0}

    def __call__(
        self, context: Any, operation: Any, *_inputs: Any, **_named: Any
    ) -> CheckpointPolicy:
        name, again = operation.name(), context.is_recompute
        keep = name in KEPT
        if name in PRODUCTS:
            keep = self.kept[self.num_products[again] % len(self.kept)]
            self.num_products[again] += 1
        elif name == "aten::bmm":  # scores, then the values they mix; these are kept
            self.num_in_attention[again] += 1
            keep = self.num_in_attention[again] % 2 == 0
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE
