"""Lets all ranks agree on an action at the same step, such as stopping, without waiting for each
other or for a device.

A rank puts its yes or no to the store of the run, and reads what the turn before found: so the
answer is one turn late, the same on every rank, and costs no wait (with one process it is there at
once). Devices take no part: a sum on a GPU, whose result the host then reads, would let the GPU run
dry at every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from llm_core.parallel.hosts.exchange import Question
from llm_core.parallel.ranks import Ranks


@dataclass
class Vote:
    """One question that is put again and again: does any rank say yes? Every rank has one and asks
    as often.

    at_first: the answer while nothing was asked before.
    """

    ranks: Ranks
    at_first: bool = False
    _question: Question | None = field(default=None, repr=False)
    _is_open: bool = field(default=False, repr=False)

    def ask(self, mine: bool) -> bool:
        """Put the question; what the turn before found, or with one process `mine`."""
        if self.ranks.world == 1:
            return mine
        answer = self.settle()
        if self._question is None:
            self._question = self.ranks.hosts.question()
        self._question.put("yes" if mine else None)
        self._is_open = True
        return answer

    def settle(self) -> bool:
        """What the last turn found; the next answer is `at_first` again. A run must end so."""
        if self._question is None or not self._is_open:
            return self.at_first
        self._is_open = False
        return self._question.answer().count > 0
