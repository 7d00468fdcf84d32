"""The processes of a run: who am I, and the few things all of them must agree on.

With one process every call is the identity and no process group exists, so a single run needs no
network.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous

from llm_core.config import ConfigError
from llm_core.device import pick_device
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.hosts.exchange import Hosts, hosts_of_group
from llm_core.parallel.hosts.flight import set_up_recorder
from llm_core.parallel.hosts.restarts import store_of_this_start


@dataclass(frozen=True)
class Ranks:
    """This process among its peers."""

    rank: int
    world: int
    device: torch.device
    mesh: DeviceMesh | None = None
    """Processes by tokens: axes pp, dp, cp, tp; None: there is only data parallelism."""
    weights: DeviceMesh | None = None
    """Processes by weights: axes pp, dp_replicate, dp_shard, tp, and of a grid, whose columns are
    tp, also tp_row and tp_depth; None: one process."""

    @functools.cached_property
    def hosts(self) -> Hosts:
        """All processes, for exchanges between main memories."""
        return hosts_of_group() if self.world > 1 else Hosts(dist.HashStore(), 0, 1)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def data_rank(self) -> int:
        """Whose sequences this process reads, of `data_world`."""
        return self.rank if self.mesh is None else self.mesh.get_local_rank("dp")

    @property
    def data_world(self) -> int:
        return self.world if self.mesh is None else self.mesh.size(1)

    @property
    def counts_losses(self) -> bool:
        """Whether this process's losses count: all tensor-parallel ranks have the same ones."""
        return self.mesh is None or self.mesh.get_local_rank("tp") == 0

    def sum_targets(self, count: Tensor) -> Tensor:
        """The sum of a count over the processes that hold different tokens, in place."""
        if self.mesh is None:
            return self.sum(count)
        for axis in ("dp", "cp"):
            dist.all_reduce(count, group=self.mesh.get_group(axis))
        return count

    def sum(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all ranks, in place, on this device."""
        if self.world > 1:
            dist.all_reduce(value, op=dist.ReduceOp.SUM)
        return value

    def any(self, flag: bool) -> bool:
        """Whether the flag is up on any rank. Hosts wait, devices do not; `Vote` never waits."""
        return self.hosts.ask("yes" if flag else None).count > 0

    def barrier(self) -> None:
        """Go on once all hosts are here; their devices may still compute."""
        self.any(False)


@contextmanager
def open_ranks(config: ParallelConfig, flight: Path | None = None) -> Iterator[Ranks]:
    """Join the process group that the launcher's environment describes; leave it at the end.

    flight: folder that NCCL dumps its flight records to after a time-out.
    """
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world != config.num_processes:
        raise ConfigError(
            f"parallel.num_processes ({config.num_processes}) must equal the processes started"
            f" ({world}); set it to {world}, or start as many"
        )
    device = pick_device(
        config.device, config.num_processes, int(os.environ.get("LOCAL_RANK", "0"))
    )
    if config.kind == "none":
        yield Ranks(0, 1, device)
        return
    backend = (
        config.backend if config.backend != "auto" else "nccl" if device.type == "cuda" else "gloo"
    )
    if flight is not None:
        set_up_recorder(config.flight_records, flight)
    store, timeout = None, timedelta(seconds=config.timeout_s)
    if "RANK" not in os.environ:  # a layout of one process needs no launcher and no address
        store = dist.HashStore()
    elif "TORCHELASTIC_RUN_ID" in os.environ:
        whole, _, _ = next(rendezvous("env://", rank, world, timeout=timeout))
        store = store_of_this_start(whole, rank, world, timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
    try:
        yield Ranks(rank, world, device, *make_meshes(config, device))
    finally:
        dist.destroy_process_group()


def make_meshes(
    config: ParallelConfig, device: torch.device
) -> tuple[DeviceMesh | None, DeviceMesh | None]:
    """(by tokens, by weights), as in `Ranks`. Neighbours on the innermost axis, tp, talk most."""
    if config.kind == "none":
        return None, None
    # Context ranks hold the same weights, so they count as replicas here.
    replicas = config.dp * config.cp
    share = config.dp_shard or replicas
    names: tuple[str, ...] = ("pp", "dp_replicate", "dp_shard", "tp")
    sizes: tuple[int, ...] = (config.pp, replicas // share, share, config.columns)
    if (grid := config.grid) is not None:
        names, sizes = (*names, "tp_row", "tp_depth"), (*sizes, grid.side, grid.depth)
    weights = init_device_mesh(device.type, sizes, mesh_dim_names=names)
    if config.pp * config.cp * config.tp == 1:
        return None, weights
    shape = (config.pp, config.dp, config.cp, config.tp)
    return init_device_mesh(device.type, shape, mesh_dim_names=("pp", "dp", "cp", "tp")), weights
