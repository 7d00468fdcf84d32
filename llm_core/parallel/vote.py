"""Lets all ranks agree on an action at the same step, such as stopping, without waiting for each
other or for a device.

A rank puts its yes or no into an exchange between hosts that runs beside the next step, and reads
what the turn before found: so the answer is one turn late, the same on every rank, and costs no
wait (with one process it is there at once). Devices take no part: a sum on a GPU, whose result the
host then reads, would let the GPU run dry at every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from llm_core.parallel.ranks import Ranks


@dataclass
class Vote:
    """One question that is put again and again: does any rank say yes? Every rank has one and asks
    as often.

    at_first: the answer while nothing was asked before.
    """

    ranks: Ranks
    at_first: bool = False
    _turn: tuple[Tensor, Any] | None = field(default=None, repr=False)

    def ask(self, mine: bool) -> bool:
        """Put the question; what the turn before found, or with one process `mine`."""
        if self.ranks.world == 1:
            return mine
        answer = self.settle()
        flag = torch.tensor(int(mine))
        work = dist.all_reduce(flag, dist.ReduceOp.MAX, group=self.ranks.hosts, async_op=True)
        self._turn = flag, work
        return answer

    def settle(self) -> bool:
        """What the last turn found; the next answer is `at_first` again. A run must end so."""
        if self._turn is None:
            return self.at_first
        (flag, work), self._turn = self._turn, None
        work.wait()
        return bool(flag)
