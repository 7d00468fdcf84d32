"""One update of the weights from gradients that are there: judge → unscale and clip → update.

Clipping and skipping happen inside the update rules, from scalars on the device, so nothing waits
for the host. A skipped step leaves weights, moments and the count of updates bitwise as they were.
Everything that must survive a restart, the guard's and the loss scale's state too, is given to
checkpoints as tensors by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from llm_core.optim.balance import Balance
from llm_core.optim.guard import NO_TARGETS, NOT_FINITE, OVERFLOW, UPDATED, Guard
from llm_core.optim.loss_scale import LossScaler
from llm_core.optim.method import AVERAGE, Method, State, Update
from llm_core.parallel.places import local
from llm_core.parallel.servers.shares import Servers

NORM_EPS = 1e-6
"""Added to the norm before it is compared, as in torch.nn.utils.clip_grad_norm_."""


class Optimizer:
    """Update rules over all weights of this process, which are `weights`."""

    def __init__(
        self,
        weights: Sequence[nn.Parameter],
        methods: Sequence[Method],
        clip_norm: float,
        guard: Guard,
        scaler: LossScaler | None = None,
        balance: Balance | None = None,
        servers: Servers | None = None,
    ) -> None:
        """balance: of experts by a bias; None: there is none. servers: which process updates which
        weight; None: every process updates all that it has."""
        self._weights, self.methods, self._clip_norm = list(weights), methods, clip_norm
        self.guard, self.scaler, self._balance = guard, scaler, balance
        self._servers = servers
        self.num_updates = torch.zeros((), dtype=torch.float64, device=guard.device)
        self._gradient_bytes = 0

    @property
    def loss_scale(self) -> Tensor | None:
        """What the loss is multiplied by before backward; None: nothing."""
        return None if self.scaler is None else self.scaler.scale

    @torch.no_grad()
    def step(
        self,
        lr: float,
        loss: Tensor,
        norm: Tensor,
        num_targets: Tensor | None = None,
        loads_LE: Tensor | None = None,
    ) -> Tensor:
        """Update from the gradients of the weights, or skip; a `StepReport` as a tensor. Every
        process must call it.

        loss, norm: of the unscaled loss, scalars that are the same on all processes. num_targets:
        of the global batch, which is skipped without one; None: it has some. loads_LE: of experts,
        in the global batch.
        """
        scale = self.loss_scale
        reason = self.guard.judge(
            loss, norm, None if self.scaler is None else self.scaler.can_fall, num_targets
        )
        bad = reason != UPDATED
        divisor = ((norm.float() + NORM_EPS) / self._clip_norm).clamp(min=1)
        report = self.guard.report(loss, norm, reason, scale)
        self.num_updates += ~bad
        # The number stays positive in a skipped first step, where corrections divide by 1 - beta^0.
        scalars = self.num_updates.clamp(min=1), divisor if scale is None else divisor * scale, bad
        # Where weights are in main memory this waits for the device, as the update of them must.
        where = self._weights[0].device if self._weights else self.guard.device
        update = Update(lr, *(scalar.to(where) for scalar in scalars))
        for method in self.methods:
            method.update(update)
        if self._balance is not None and loads_LE is not None:
            self._balance.update(loads_LE, bad)
            if self._balance.average is not None:
                self._balance.average.update(Update(lr, *scalars))
        if self.scaler is not None:
            self.scaler.observe((reason == OVERFLOW) | (reason == NOT_FINITE), reason == NO_TARGETS)
        return report

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within, weights are their averages, if there are any. Every process must enter it, and
        between steps; it waits for the device."""
        self._receive()
        # Before the first update there is nothing to average.
        own = [state for state in self.states() if state.kind == AVERAGE and self.num_updates > 0]
        self._exchange(own)
        try:
            yield
        finally:
            self._exchange(own)

    @torch.no_grad()
    def _exchange(self, averages: Sequence[State]) -> None:
        """Put averages where weights are and weights where averages are; once more, back."""
        for state in averages:
            weight = state.weight.data
            average = state.piece.to(weight.device, copy=True)
            state.piece.copy_(weight)
            weight.copy_(average)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        if not self._gradient_bytes:
            self._gradient_bytes = self._num_bytes([weight.grad for weight in self._weights])
        for weight in self._weights:
            weight.grad = None

    def held_bytes(self) -> dict[str, int]:
        """Of the weights of this process, the gradients of its first step and the state of its
        update rules, on the device it computes on."""
        return {
            "weights": self._num_bytes(self._weights),
            "gradients": self._gradient_bytes,
            "optimizer": self._num_bytes([state.piece for state in self._states_of_rules()]),
        }

    def _num_bytes(self, tensors: Sequence[Tensor | None]) -> int:
        here = self.guard.device.type
        pieces = [local(each) for each in tensors if each is not None]
        return sum(piece.nbytes for piece in pieces if piece.device.type == here)

    def states(self) -> list[State]:
        """What the update rules keep, weight by weight, and averages of biases of routers."""
        average = None if self._balance is None else self._balance.average
        return self._states_of_rules() + ([] if average is None else list(average.states()))

    def _states_of_rules(self) -> list[State]:
        return [state for method in self.methods for state in method.states()]

    def state_views(self) -> dict[str, Tensor]:
        """All state by names that no layout changes, as parts of whole tensors to read into. With
        servers every process must call it: each receives what the others have updated."""
        self._receive()
        views = {"optimizer.num_updates": self.num_updates}
        views |= {f"guard.{name}": tensor for name, tensor in self.guard.state.items()}
        if self.scaler is not None:
            views |= {f"loss_scale.{name}": tensor for name, tensor in self.scaler.state.items()}
        for state in self.states():
            # A tied weight that a pipeline has twice is saved once.
            views.setdefault(
                f"optimizer.{state.weight.name}.{state.kind}", state.place.view(state.piece)
            )
        return views

    def _receive(self) -> None:
        if self._servers is None:
            return
        of_dtype: dict[torch.dtype, list[list[Tensor]]] = {}
        for weight, tensor in self._served():
            parts = of_dtype.setdefault(tensor.dtype, [[] for _ in range(self._servers.size)])
            parts[0 if weight is None else self._servers.owner(weight)].append(tensor)
        for parts in of_dtype.values():
            self._servers.spread(parts)

    def _served(self) -> Iterator[tuple[nn.Parameter | None, Tensor]]:
        """(weight, state of it); what belongs to no weight is that of the first process."""
        yield None, self.num_updates
        for tensor in self.guard.state.values():
            yield None, tensor
        for state in self.states():
            weight = getattr(state.weight, "weight", None)
            assert isinstance(weight, nn.Parameter)
            yield weight, state.piece

    def fill_copies(self) -> None:
        """After reading into `state_views`: fill second copies of tied weights from the first."""
        read: dict[tuple[str, str], State] = {}
        for state in self.states():
            source = read.setdefault((state.weight.name, state.kind), state)
            if source is not state:
                state.piece.copy_(source.piece)
