"""Muon (Jordan et al., 2024): momentum of a matrix, made orthogonal by Newton-Schulz iterations.

For the matrices of blocks alone; embeddings, head, routers and vectors have AdamW. Updates are
scaled to the root mean square that AdamW's have, 0.2 sqrt(max(rows, columns)) times the orthogonal
matrix, so lr and decay mean the same for both (Liu et al., 2025).

Query, key, value, gate and up are orthogonalised each by itself, although they are stored as one
matrix: that they are fused is a matter of speed, and the published results are of separate ones.
The order of rows does not matter: permuting them commutes with the iteration.

A whole matrix is needed. Where processes share the rows of weights (FSDP), each owns some
matrices: momentum goes to the owners and updates come back, in two exchanges that together send
twice the pieces; tensor-parallel processes then gather theirs and all do the same. Equal matrices
are iterated as one stack. With plain replicas every process does all.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from llm_core.model.config import ModelConfig, block_of
from llm_core.model.fused import (
    join_blocks,
    join_gate_up,
    join_qkv,
    split_blocks,
    split_gate_up,
    split_qkv,
)
from llm_core.optim.config import OptimConfig
from llm_core.optim.groups import is_hidden
from llm_core.optim.method import State, Update
from llm_core.optim.owners import Owners
from llm_core.optim.pieces import Piece, empty_state, write_unless

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration: steepest at zero, after which singular values lie about 1, not at 1."""
RMS = 0.2
"""Root mean square of AdamW's updates, in units of the learning rate."""
STACK = 1 << 26
"""Elements of matrices that are iterated at once."""


def is_hidden_matrix(piece: Piece) -> bool:
    """Whether Muon has this weight."""
    return is_hidden(piece.name, len(piece.place.shape))


class Muon:
    def __init__(
        self, pieces: Sequence[Piece], config: OptimConfig, model: ModelConfig, owners: Owners
    ) -> None:
        self._pieces, self._config, self._model, self._owners = pieces, config.muon, model, owners
        self._momenta = empty_state(
            pieces, torch.bfloat16 if config.state_dtype == "bf16" else None
        )

    def states(self) -> Iterator[State]:
        for piece, momentum in zip(self._pieces, self._momenta, strict=True):
            yield State(piece, "momentum", momentum, piece.place)

    def update(self, step: Update) -> None:
        config, directions = self._config, []
        for piece, kept in zip(self._pieces, self._momenta, strict=True):
            grad = piece.grad / step.divisor
            momentum = kept.to(grad.dtype).lerp(grad, 1 - config.momentum)
            # Nesterov's look-ahead for a momentum that is a running mean: the mean once more.
            directions.append(
                grad.lerp_(momentum, config.momentum) if config.nesterov else momentum
            )
            write_unless(step.bad, kept, momentum)
        changes = self._owners.apply(self._orthogonalise_all, directions)
        for piece, change in zip(self._pieces, changes, strict=True):
            data, lr = piece.data, step.lr * piece.treatment.lr_factor
            decayed = data * (1 - lr * piece.treatment.weight_decay)
            write_unless(step.bad, data, decayed.sub_(change, alpha=lr))

    def _orthogonalise_all(self, whole: dict[int, Tensor]) -> dict[int, Tensor]:
        """Changes for a learning rate of 1, of the whole matrices by the index of their piece."""
        sections: dict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
        parts: dict[int, list[Tensor]] = {}
        for index, matrix in whole.items():
            parts[index] = list(self._sections(index)[0](matrix))
            for number, part in enumerate(parts[index]):
                sections[tuple(part.shape)].append((index, number))
        for shape, places in sections.items():
            at_once = max(1, STACK // math.prod(shape))
            for begin in range(0, len(places), at_once):
                chosen = places[begin : begin + at_once]
                stack = torch.stack([parts[index][number] for index, number in chosen])
                done = orthogonalise(
                    stack, self._config.num_iterations, self._config.dtype == "bf16"
                )
                for (index, number), matrix in zip(
                    chosen, done.mul_(RMS * math.sqrt(max(shape))), strict=True
                ):
                    parts[index][number] = matrix
        return {index: self._sections(index)[1](*found) for index, found in parts.items()}

    def _sections(
        self, index: int
    ) -> tuple[Callable[[Tensor], Sequence[Tensor]], Callable[..., Tensor]]:
        """(split, join) of the matrices that a weight is made of."""
        name, model = self._pieces[index].name, self._model
        if name.endswith("attention.qkv.weight"):
            return (lambda fused: split_qkv(model, fused)), (lambda *parts: join_qkv(model, *parts))
        if name.endswith("ffn.gate_up.weight"):
            return (lambda fused: split_gate_up(model, fused)), (
                lambda *parts: join_gate_up(model, *parts)
            )
        if ".ffn.experts." in name and model.experts is not None:
            parts = model.experts.number * (2 if ".gate_up." in name else 1)
            return (lambda stacked: stacked.chunk(parts)), (lambda *parts: torch.cat(parts))
        if name.endswith("ffn.shared.gate_up.weight") and model.experts is not None:
            block = block_of(model.experts.shared_dim)
            return (lambda fused: split_blocks(fused, block)), (
                lambda gate, up: join_blocks(gate, up, block)
            )
        return (lambda matrix: [matrix]), (lambda matrix: matrix)


# N matrices · R rows · C columns · S the smaller of both
def orthogonalise(stack_NRC: Tensor, num_iterations: int, in_bfloat16: bool) -> Tensor:
    """Matrices with these singular vectors, and singular values about 1; in the input's dtype."""
    a, b, c = COEFFICIENTS
    x = stack_NRC.to(torch.bfloat16) if in_bfloat16 else stack_NRC
    # The Gram matrix of the shorter side is the smaller one.
    is_tall = x.shape[1] > x.shape[2]
    x = x.mT if is_tall else x
    # Row by row, as a norm of all at once loses digits on CPUs (llm_core.parallel.square_sums).
    norms_NR1 = torch.linalg.vector_norm(
        x, dim=2, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32)
    )
    x = x / torch.linalg.vector_norm(norms_NR1, dim=1, keepdim=True).clamp(min=1e-7).to(x.dtype)
    for _ in range(num_iterations):
        gram_NSS = x @ x.mT
        x = torch.baddbmm(
            x, torch.baddbmm(gram_NSS, gram_NSS, gram_NSS, beta=b, alpha=c), x, beta=a
        )
    return (x.mT if is_tall else x).to(stack_NRC.dtype)
