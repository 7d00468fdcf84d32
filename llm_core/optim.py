"""AdamW over whole or sharded parameters, and the norm of the whole gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from llm_core.parallel.zero import SharedAdamW
from llm_core.train_config import OptimConfig

MOMENTS = ("exp_avg", "exp_avg_sq")


def build_optimizer(model: nn.Module, config: OptimConfig, mesh: DeviceMesh | None = None) -> torch.optim.AdamW:
    """AdamW with decay on matrices only. Its state exists at once, so that a checkpoint can be read into it.

    mesh: processes with the same weights that share the state among them, each updating its rows (ZeRO-1).
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (config.beta1, config.beta2)
    if mesh is None:
        optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True)
    else:
        optimizer = SharedAdamW(groups, mesh, lr=config.lr, betas=betas, eps=config.eps)
    for p in (p for group in optimizer.param_groups for p in group["params"]):
        optimizer.state[p] = {name: torch.zeros_like(p) for name in MOMENTS}
    set_step(optimizer, 0)
    return optimizer


def moment(optimizer: torch.optim.AdamW, parameter: nn.Parameter, name: str) -> Tensor:
    """A moment of a weight of the model, whole or as a DTensor of this process's part; writing to it changes the state."""
    if isinstance(optimizer, SharedAdamW):
        return optimizer.moment(parameter, name)
    found: Tensor = optimizer.state[parameter][name]
    return found


def set_step(optimizer: torch.optim.AdamW, step: int) -> None:
    """Say how many updates were made, for the bias correction."""
    for p, state in optimizer.state.items():
        state["step"] = torch.tensor(float(step), device=p.device)


def clip_gradients(model: nn.Module, max_norm: float) -> Tensor:
    """Shorten the gradient to `max_norm`; the norm it had, the same on every rank. No host synchronisation."""
    parameters = list(model.parameters())
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm
