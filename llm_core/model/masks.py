"""Decides which keys a query attends to: one rule, from which every attention kernel makes the form
it needs.

A mask is causal, keeps documents of a packed row apart where it knows them (Krell et al. 2021,
"Efficient Sequence Packing without Cross-contamination"), and may be sparse, by a pattern
(`llm_core.model.sparse.patterns`).

The rule is written once, as a function of index tensors: over broadcast ranges it gives the dense
mask, and FlexAttention compiles it. Distances are counted in columns of the row, global tokens and
blocks from the start of each document.

Cost: the dense mask takes rows x queries x keys bytes; it is made once per batch and pattern, not
once per layer. Left out: attention to later tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from llm_core.model.sparse.patterns import ALL, Pattern, rule_of

# B rows · Q queries · K keys: columns of a row of which the queries may be a part · S segments:
# documents of all rows

MaskRule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(row, head, query, key) indices → whether the query may attend; as FlexAttention's `mask_mod`."""


@dataclass(frozen=True, eq=False)
class AttentionMask:
    """A pattern over the documents of a batch; kernels' forms of it are made when first asked for,
    and kept.

    documents_BK: which document of its row each token belongs to, in runs; None: a row is one
    document. columns_Q: int64 columns of the queries among the keys; None: queries and keys are the
    same tokens.
    """

    pattern: Pattern = ALL
    documents_BK: Tensor | None = None
    columns_Q: Tensor | None = None
    made: dict[tuple[object, ...], object] = field(default_factory=dict, repr=False)
    """What kernels made of this mask, by their own names and the sizes it was made for."""

    @property
    def is_plainly_causal(self) -> bool:
        """Whether kernels with a causal switch need nothing else."""
        return self.pattern == ALL and self.documents_BK is None and self.columns_Q is None

    def rule(self) -> MaskRule:
        """Whether a query, counted among the queries, may attend a key."""
        named, documents_BK, columns_Q = rule_of(self.pattern), self.documents_BK, self.columns_Q
        positions_BK = None if documents_BK is None else restarting_positions(documents_BK)

        def may_attend(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            column = query if columns_Q is None else columns_Q[query]
            allowed = key <= column
            query_position, key_position = column, key
            if documents_BK is not None and positions_BK is not None:
                allowed = allowed & (documents_BK[row, column] == documents_BK[row, key])
                query_position, key_position = positions_BK[row, column], positions_BK[row, key]
            return allowed if named is None else allowed & named(query_position, key_position)

        return may_attend

    def dense(self, num_queries: int, num_keys: int, device: torch.device) -> Tensor:
        """allowed_B1QK, or 11QK where all rows are alike. Every query sees at least itself."""
        name = ("dense", num_queries, num_keys, device)
        if name not in self.made:
            rows = 1 if self.documents_BK is None else len(self.documents_BK)
            row, head, query, key = (
                torch.arange(n, device=device).view([-1 if axis == i else 1 for axis in range(4)])
                for i, n in enumerate((rows, 1, num_queries, num_keys))
            )
            self.made[name] = self.rule()(row, head, query, key)
        return cast(Tensor, self.made[name])


CAUSAL = AttentionMask()
"""Every token and all before it, in rows that are one document each."""


def restarting_positions(documents_BT: Tensor) -> Tensor:
    """int64 positions_BT: the place of each token in its own document, for documents in runs."""
    columns_T = torch.arange(documents_BT.shape[1], device=documents_BT.device)
    first_BT = torch.ones_like(documents_BT, dtype=torch.bool)
    first_BT[:, 1:] = documents_BT[:, 1:] != documents_BT[:, :-1]
    # The latest column so far in which a document begins.
    return columns_T - torch.where(first_BT, columns_T, 0).cummax(dim=1).values


def segment_bounds(documents_BT: Tensor) -> Tensor:
    """int32 bounds (S + 1,) of documents in rows laid end to end; each row begins a new one."""
    first_BT = restarting_positions(documents_BT) == 0
    return F.pad(first_BT.flatten().nonzero().flatten(), (0, 1), value=documents_BT.numel()).int()
