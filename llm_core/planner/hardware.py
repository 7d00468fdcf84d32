"""Describes the machines that a run is planned for. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_core.config import ConfigError, check_bounds
from llm_core.json_files import UnreadableJson, read_json


@dataclass(frozen=True)
class LinkConfig:
    """How one collective runs among the processes of a node."""

    start_us: float
    """Time without content, for each hop of a ring or tree."""
    gb_s: float
    """Bus bandwidth as nccl-tests defines it, in 1e9 bytes per second: what a ring would send of
    each process, over the time."""

    def __post_init__(self) -> None:
        check_bounds(self, start_us=(0, None))
        if not self.gb_s > 0:
            raise ConfigError(f"gb_s ({self.gb_s}) must be positive; calibrate again")


@dataclass(frozen=True)
class HardwareConfig:
    """One kind of device, the node around it, and its price. Bandwidths count one direction, which
    is half of what makers print of NVLink."""

    name: str = ""
    """As it is printed; empty: nothing is known, and nothing is planned."""
    memory_gb: float = 0.0
    """Memory of a device, in 1e9 bytes."""
    memory_gb_s: float = 0.0
    """Its bandwidth, in 1e9 bytes per second."""
    tflops: float = 0.0
    """Stated dense peak of 16-bit products, in 1e12 operations per second."""
    tflops_fp32: float = 0.0
    """Peak of products of float32."""
    tflops_fp8: float = 0.0
    """Peak of 8-bit products; 0: there are none."""
    devices_per_node: int = 8
    """Devices that reach each other by `node_gb_s`."""
    node_gb_s: float = 0.0
    """Between two devices of a node. 0: as over PCIe, 25."""
    network_gb_s: float = 0.0
    """Between nodes, for each device. 0: as over 10 Gb/s Ethernet that a node shares."""
    hop_us: float = 8.0
    """Time of one message without content."""
    matmul_share: float = 0.65
    """Part of the peak that large products reach."""
    memory_share: float = 0.88
    """Part of the bandwidth that passes over memory reach."""
    attention_share: float = 0.7
    """Part of the rate of large products that attention reaches."""
    link_share: float = 0.8
    """Part of the bandwidth that collectives reach."""
    links: dict[str, LinkConfig] = field(default_factory=dict)
    """Measured collectives by name: all_reduce, all_gather, reduce_scatter, all_to_all, send. Where
    one is absent, `node_gb_s` and `hop_us` stand for it."""
    overlap: float = 1.0
    """Part of the traffic that computation may hide: 0 where the same processors do both."""
    passes: float = 0.0
    """How often a step moves what blocks keep. 0: as measured on H200, by kernels."""
    loss_passes: float = 0.0
    """Bytes that a step moves for each logit. 0: as measured on H200."""
    launch_ms: float = 6.2
    """Time in which the host launches a block's operations, forward and backward, one by one.
    Measured on a server with H200."""
    step_ms: float = 0.0
    """Time of a step that no size changes: the loop, the norm, the optimizer's launches."""
    launches_ahead: bool = True
    """Whether the host launches while the device computes; false where the host is the device."""
    reserve_gb: float = 1.5
    """Memory that drivers and communicators take."""
    fragmentation: float = 0.04
    """Memory that the allocator cannot use, as a part of what is allocated."""
    watts: float = 0.0
    """Power of a device at work."""
    price_per_hour: float = 0.0
    """Of a device, in US dollars; 0: not known."""
    price_source: str = ""
    """Where and when the price was read."""
    file: Path | None = None
    """Record of `textmill calibrate`, whose values stand where this group gives none.
    hardware=this reads that of this machine."""

    def __post_init__(self) -> None:
        for name in ("memory_gb", "memory_gb_s", "tflops", "tflops_fp32", "devices_per_node"):
            if self.name and not getattr(self, name) > 0:
                raise ConfigError(
                    f"{name} ({getattr(self, name)}) must be positive for {self.name}; see its"
                    " data sheet"
                )
        for name in ("matmul_share", "memory_share", "attention_share", "link_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"{name} ({getattr(self, name)}) must be above 0 and at most 1")
        for name in (
            "tflops_fp8", "node_gb_s", "network_gb_s", "hop_us", "reserve_gb", "fragmentation",
            "passes", "loss_passes", "launch_ms", "step_ms", "watts", "price_per_hour",
        ):  # fmt: skip
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} ({getattr(self, name)}) must not be negative")
        if not 0 <= self.overlap <= 1:
            raise ConfigError(f"overlap ({self.overlap}) must be from 0 to 1")

    @property
    def in_node(self) -> float:
        """Bytes per second between two devices of a node."""
        return (self.node_gb_s or 25.0) * 1e9 * self.link_share

    @property
    def between_nodes(self) -> float:
        """Bytes per second of one device to another node."""
        return (self.network_gb_s or 1.25 / self.devices_per_node) * 1e9 * self.link_share

    def peak(self, dtype: str, float8: bool = False) -> float:
        """Operations per second that makers state."""
        if float8 and self.tflops_fp8:
            return self.tflops_fp8 * 1e12
        return (self.tflops_fp32 if dtype == "fp32" else self.tflops) * 1e12

    def group_bandwidth(self, size: int, span: int) -> float:
        """Bytes per second and device of a ring over `size` devices that lie within `span`
        neighbouring ones.

        Where a ring crosses nodes, its devices of one node share their network cards: so it is as
        fast as those together, or as the node's own links.
        """
        if span <= self.devices_per_node:
            return self.in_node
        on_a_node = max(1, self.devices_per_node * size // span)
        return min(self.in_node, on_a_node * self.between_nodes)


def read_record(file: Path) -> dict[str, Any]:
    """The values of `HardwareConfig` that `textmill calibrate` wrote. Raises ConfigError."""
    try:
        found = read_json(file)
    except FileNotFoundError as error:
        raise ConfigError(
            f"hardware.file ({file}) does not exist; measure this machine with textmill calibrate,"
            " with the same parallel.num_processes and state"
        ) from error
    except (UnreadableJson, OSError) as error:
        raise ConfigError(
            f"hardware.file ({file}) cannot be read ({error}); write it again with textmill"
            " calibrate"
        ) from error
    values = found.get("hardware") if isinstance(found, dict) else None
    if not isinstance(values, dict):
        raise ConfigError(
            f"hardware.file ({file}) is not a record of textmill calibrate; name one, or leave it"
            " out"
        )
    return values
