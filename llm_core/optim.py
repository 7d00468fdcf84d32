"""AdamW over whole or sharded parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from llm_core.parallel.layout import Layout
from llm_core.parallel.places import local
from llm_core.parallel.zero import SharedAdamW
from llm_core.train_config import OptimConfig

MOMENTS = ("exp_avg", "exp_avg_sq")


def build_optimizer(layout: Layout, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW with decay on matrices only. Its state exists at once, so that a checkpoint can be read into it."""
    parameters = [p for p in layout.model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (config.beta1, config.beta2)
    if not layout.shares_state:
        optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True)
    else:
        assert layout.mesh is not None
        optimizer = SharedAdamW(groups, layout.mesh["dp_shard"], lr=config.lr, betas=betas, eps=config.eps)
    for p in (p for group in optimizer.param_groups for p in group["params"]):
        optimizer.state[p] = {name: torch.zeros_like(p) for name in MOMENTS}
    set_step(optimizer, 0)
    return optimizer


def moment(optimizer: torch.optim.AdamW, parameter: nn.Parameter, name: str) -> Tensor:
    """This process's piece of a moment of a weight of the model; writing to it changes the state."""
    owned = optimizer.rows[parameter] if isinstance(optimizer, SharedAdamW) else parameter
    return local(optimizer.state[owned][name])


def set_step(optimizer: torch.optim.AdamW, step: int) -> None:
    """Say how many updates were made, for the bias correction."""
    for p, state in optimizer.state.items():
        state["step"] = torch.tensor(float(step), device=p.device)


def clip_gradients(model: nn.Module, max_norm: float, norm: Tensor) -> None:
    """Shorten a gradient of this norm to `max_norm`. No host synchronisation."""
    nn.utils.clip_grads_with_norm_(list(model.parameters()), max_norm, norm)
