"""Takes the loss of pairs of answers (DPO: Rafailov et al., 2023, eq. 7).

    reward = beta x (log p - log p of the reference), of each answer, summed over its tokens
    margin = reward of the chosen - reward of the rejected answer
    loss   = -(1 - e) log sigmoid(margin) - e log sigmoid(-margin)

e is `label_smoothing` (Mitchell, 2023, "cDPO"). A row holds both branches of one pair as its
documents 0 and 1 (`packing=pairs`), so every layout that keeps rows whole takes the same loss. Sums
are in float64: differences of long answers would lose digits in float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from llm_core.data.batch import IGNORED
from llm_core.training.preference.config import PreferenceConfig

BRANCHES = (0, 1)
"""Documents of a row: the chosen and the rejected branch."""


# B pairs · T tokens of a row · 2 answers, the chosen one first
class Pairs(NamedTuple):
    """What is known of the rows of a step besides tokens."""

    config: PreferenceConfig
    documents_BT: Tensor
    references_B2: Tensor
    sums_4: Tensor
    """Float64: pairs, those whose margin is positive, and the rewards of both answers."""

    def losses(self, nats_BT: Tensor, targets_BT: Tensor, rows: slice) -> Tensor:
        """loss_B, with the gradient of nats_BT, of some of the rows; adds what they are to
        `sums_4`. Rows without targets count for nothing."""
        nats_B2 = of_branches(nats_BT, self.documents_BT[rows])
        rewards_B2 = self.config.beta * (-nats_B2 - self.references_B2[rows])
        counts_B = has_targets(targets_BT)
        margin_B = rewards_B2[:, 0] - rewards_B2[:, 1]
        smoothing = self.config.label_smoothing
        loss_B = -(1 - smoothing) * F.logsigmoid(margin_B) - smoothing * F.logsigmoid(-margin_B)
        with torch.no_grad():
            right = ((margin_B > 0) & counts_B).sum()
            rewards_2 = (rewards_B2 * counts_B[:, None]).sum(dim=0)
            self.sums_4.add_(torch.stack([counts_B.sum(), right, *rewards_2]))
        return loss_B * counts_B


def pairs_of(
    config: PreferenceConfig, documents_BT: Tensor | None, references_B2: Tensor | None
) -> Pairs:
    """Of the rows of a batch, whose documents are on their device."""
    assert documents_BT is not None and references_B2 is not None, "rows are not pairs"
    device = documents_BT.device
    sums_4 = torch.zeros(4, dtype=torch.float64, device=device)
    return Pairs(config, documents_BT, references_B2.to(device), sums_4)


def of_branches(nats_BT: Tensor, documents_BT: Tensor) -> Tensor:
    """Float64 nats_B2 of each answer; those of ignored targets are 0."""
    wide_BT = nats_BT.double()
    return torch.stack([(wide_BT * (documents_BT == each)).sum(dim=1) for each in BRANCHES], dim=1)


def has_targets(targets_BT: Tensor) -> Tensor:
    """Which rows count, as bool."""
    return (targets_BT != IGNORED).any(dim=1)


def of_chosen(targets_BT: Tensor, documents_BT: Tensor) -> Tensor:
    """The targets of chosen answers; the others are ignored."""
    return targets_BT.masked_fill(documents_BT != BRANCHES[0], IGNORED)


def metrics_of(sums: list[float], prefix: str = "") -> dict[str, Any]:
    """Means over pairs, from `Pairs.sums_4` of all ranks."""
    number, right, *rewards = sums
    chosen, rejected = (reward / max(1.0, number) for reward in rewards)
    return {
        f"{prefix}pair_accuracy": right / max(1.0, number),
        f"{prefix}reward_margin": chosen - rejected,
        f"{prefix}chosen_reward": chosen,
        f"{prefix}rejected_reward": rejected,
    }
