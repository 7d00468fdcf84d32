"""A parameter server in parts: each weight has one process that serves it, adds up its gradients and
updates it (Li et al. 2014, "Scaling distributed machine learning with the parameter server").

Every process is a worker, and the first `num_servers` of them serve as well. In a synchronous step
workers push the gradient of each weight to its server, servers add them up in the order of
processes and update, and workers pull the new weights. That is the step of DDP.

Bytes sent in a step of n processes and S bytes of weights: each worker pushes what it does not serve,
and a server of s bytes sends (n - 1) s. With one server that is 2 (n - 1) S at its link, with n
servers 2 (n - 1) / n S at each, as DDP sends.

All traffic is send and receive between pairs. Weights go to servers whole, the largest first, each
to the server that has least: a large embedding may leave servers uneven.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn


def shared_out(sizes: Mapping[str, int], num_servers: int) -> dict[str, int]:
    """{weight: its server}, alike on all processes. sizes: elements of each weight."""
    loads, found = [0] * num_servers, {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        server = min(range(num_servers), key=loads.__getitem__)
        loads[server] += sizes[name]
        found[name] = server
    return {name: found[name] for name in sizes}


class Servers:
    """The trained weights of a model, which every process holds, by their servers.

    model: with equal weights on all processes of `group`. num_servers: 0: all of them serve.
    sent_bytes: of this process, in all.
    """

    def __init__(self, model: nn.Module, group: dist.ProcessGroup, num_servers: int = 0) -> None:
        self.group, self.size, self.rank = group, dist.get_world_size(group), dist.get_rank(group)
        weights = {name: w for name, w in model.named_parameters() if w.requires_grad}
        sizes = {name: weight.numel() for name, weight in weights.items()}
        owners = shared_out(sizes, num_servers or self.size)
        self.names: list[list[str]] = [[] for _ in range(self.size)]
        for name, owner in owners.items():
            self.names[owner].append(name)
        self._weights: list[list[nn.Parameter]] = [
            [weights[name] for name in names] for names in self.names
        ]
        self._own = {id(weight) for weight in self._weights[self.rank]}
        self._owners = {id(weights[name]): owner for name, owner in owners.items()}
        self.sent_bytes = 0

    def serves(self, weight: nn.Parameter) -> bool:
        """Whether this process updates a trained weight."""
        return id(weight) in self._own

    def owner(self, weight: nn.Parameter) -> int:
        """The process that updates a trained weight."""
        return self._owners[id(weight)]

    @torch.no_grad()
    def push(self) -> None:
        """Replace the gradients of the weights served here by their sums over processes; others
        have none afterwards. Every process must call it."""
        parts = [joined(gradients_of(weights)) for weights in self._weights]
        own = parts[self.rank]
        arrived = {rank: torch.empty_like(own) for rank in self._others()}
        self._exchange(dict(enumerate(parts)), arrived)
        summed = torch.zeros_like(own)
        for rank in range(self.size):
            summed += arrived.get(rank, own)
        for weight in (weight for weights in self._weights for weight in weights):
            weight.grad = None
        for weight, piece in pieces_of(self._weights[self.rank], summed):
            weight.grad = piece

    @torch.no_grad()
    def pull(self) -> None:
        """Fill the weights that others serve. Every process must call it."""
        self.spread([[weight.data for weight in weights] for weights in self._weights])

    @torch.no_grad()
    def spread(self, tensors: Sequence[Sequence[Tensor]]) -> None:
        """Fill tensors with those of other processes; tensors: of process 0, of process 1 and so
        on, of one dtype. Every process must call it."""
        own = joined(tensors[self.rank])
        arrived = {rank: joined(tensors[rank]) for rank in self._others()}
        self._exchange(dict.fromkeys(self._others(), own), arrived)
        for rank, flat in arrived.items():
            for tensor, piece in pieces_of(tensors[rank], flat):
                tensor.copy_(piece)

    def _others(self) -> Iterator[int]:
        return (rank for rank in range(self.size) if rank != self.rank)

    def _exchange(self, sent: Mapping[int, Tensor], arrived: Mapping[int, Tensor]) -> None:
        """Send to some processes and receive from some; nothing moves where there is nothing."""
        messages = []
        for rank in self._others():
            for send, flat in ((dist.isend, sent[rank]), (dist.irecv, arrived[rank])):
                if flat.numel():
                    messages.append(dist.P2POp(send, flat, group=self.group, group_peer=rank))
            self.sent_bytes += sent[rank].nbytes
        for work in dist.batch_isend_irecv(messages) if messages else []:
            work.wait()


def gradients_of(weights: Iterable[nn.Parameter]) -> list[Tensor]:
    found = [weight.grad for weight in weights]
    assert all(grad is not None for grad in found)
    return [grad for grad in found if grad is not None]


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """A flat copy of all, one after another."""
    return torch.cat([tensor.flatten() for tensor in tensors]) if tensors else torch.empty(0)


def pieces_of(tensors: Sequence[Tensor], flat: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """(tensor, its piece of `flat` in its shape) of each."""
    pieces = flat.split([tensor.numel() for tensor in tensors]) if tensors else ()
    for tensor, piece in zip(tensors, pieces, strict=True):
        yield tensor, piece.view_as(tensor)
