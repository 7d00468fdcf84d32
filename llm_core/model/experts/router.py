"""Chooses the experts of each token and their gates, and says how far load is from balance.

Load is balanced by a loss of each sequence (DeepSeek-V3, section 2.1.2) or by a bias that no
gradient moves (Wang et al., 2024). Both are sums over sequences and tokens, so they do not depend
on how a batch is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from llm_core.model.config import ModelConfig
from llm_core.model.expert_config import ExpertsConfig
from llm_core.model.loss import precise

# B batch · T tokens · N tokens of all rows · E experts · K experts of a token · D model width

Exchange = Callable[[Tensor], Tensor]
Choice = tuple[Tensor, Tensor, Tensor, Tensor]
"""(logits_NE, scores_NE, chosen_NK, gates_NK)."""

ROUTER_BIAS = "ffn.router.bias"
"""End of the name of the bias that balances the load of a router's experts."""


def router_biases(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """(name, bias) of each router that has one: float32 buffers without a gradient."""
    return (found for found in model.named_buffers() if found[0].endswith(ROUTER_BIAS))


class Router(nn.Module):
    """Chooses experts and their gates. `bias`, where there is one, affects the choice alone. Its
    dtype stays float32 whatever the model is cast to: in fewer bits its steps would be lost."""

    bias: Tensor | None

    def __init__(self, config: ModelConfig, experts: ExpertsConfig) -> None:
        super().__init__()
        self.config = experts
        self.weight = nn.Parameter(torch.empty(experts.number, config.dim))
        bias = torch.zeros(experts.number, dtype=torch.float32) if experts.has_bias else None
        self.register_buffer("bias", bias)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Router:
        before = self.bias
        super()._apply(fn, recurse)
        if before is not None and self.bias is not None:
            has_numbers = not before.is_meta and not self.bias.is_meta
            self.bias = (before if has_numbers else self.bias).to(self.bias.device, torch.float32)
        return self

    def forward(self, x_ND: Tensor) -> Choice:
        return choose(x_ND, self.weight, self.bias, self.config)


def as_it_is(x: Tensor) -> Tensor:
    """The exchange of a process that shares nothing."""
    return x


def route(
    x_ND: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    config: ExpertsConfig,
    counted_BT: Tensor | None,
    adds_losses: bool,
    sum_context: Exchange,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """(chosen_NK, gates_NK, loss, load_E): `choose` and `balance`. counted_BT None: no balance."""
    logits_NE, scores_NE, chosen_NK, gates_NK = choose(x_ND, weight, bias, config)
    if counted_BT is None:
        return chosen_NK, gates_NK, None, None
    found = balance(logits_NE, scores_NE, chosen_NK, config, counted_BT, adds_losses, sum_context)
    return chosen_NK, gates_NK, *found


def choose(x_ND: Tensor, weight: Tensor, bias: Tensor | None, config: ExpertsConfig) -> Choice:
    # In 16 bits close scores are equal, and the choice between them is arbitrary.
    with torch.autocast(x_ND.device.type, enabled=False):
        logits_NE = F.linear(precise(x_ND), precise(weight).to(precise(x_ND).dtype))
    is_softmax = config.score == "softmax"
    scores_NE = logits_NE.softmax(dim=-1) if is_softmax else logits_NE.sigmoid()
    ranked_NE = scores_NE.detach() if bias is None else scores_NE.detach() + bias
    chosen_NK = ranked_NE.topk(config.top_k, dim=-1).indices
    gates_NK = scores_NE.gather(1, chosen_NK)
    if config.normalised:
        gates_NK = gates_NK / (gates_NK.sum(dim=-1, keepdim=True) + 1e-20)
    return logits_NE, scores_NE, chosen_NK, gates_NK * config.scale


def balance(
    logits_NE: Tensor,
    scores_NE: Tensor,
    chosen_NK: Tensor,
    config: ExpertsConfig,
    counted_BT: Tensor,
    adds_losses: bool = True,
    sum_context: Exchange = as_it_is,
) -> tuple[Tensor | None, Tensor]:
    """(sum of the balance loss and the z-loss, None where neither is added; load_E, pairs of each
    expert), of tokens that count.

    Balance: a sequence with c_i of its T k pairs at expert i adds T E sum_i (c_i / (T k)) P_i, with
    P_i the mean of scores that sum to 1. The factor T is there because backward divides by the
    number of tokens. sum_context: sums counts over processes with other tokens of the same
    sequences.
    """
    rows, tokens = counted_BT.shape
    hot_NE = torch.zeros_like(scores_NE).scatter_(1, chosen_NK, 1)
    counts_BE = (hot_NE * counted_BT.flatten()[:, None]).view(rows, tokens, -1).sum(1)
    loss = None
    if config.balance_loss and adds_losses:
        shares_NE = scores_NE / scores_NE.sum(dim=-1, keepdim=True)
        mass_BE = (shares_NE * counted_BT.flatten()[:, None]).view(rows, tokens, -1).sum(1)
        whole_BE = sum_context(counts_BE)
        pairs_B1 = whole_BE.sum(dim=1, keepdim=True).clamp(min=1)
        loss = config.balance_loss * config.number * (whole_BE / pairs_B1 * mass_BE).sum()
    if config.z_loss and adds_losses:
        normalizers_N = logits_NE.logsumexp(dim=-1) * counted_BT.flatten()
        z_loss = config.z_loss * normalizers_N.square().sum()
        loss = z_loss if loss is None else loss + z_loss
    return loss, counts_BE.sum(0)
