"""Configures where jobs run and what they ask for."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from llm_core.config import ConfigError, check_bounds

OPTION_NAME = re.compile(r"[a-z][a-z0-9-]*")
OWN_OPTIONS = frozenset(
    (
        *("job-name", "chdir", "output", "error", "open-mode", "requeue", "no-requeue", "parsable"),
        *("nodes", "ntasks", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "mem", "time"),
        *("signal", "wrap", "array", "wait", "test-only"),
    )
)
"""Options of sbatch that follow from other settings, or that a followed job cannot have."""


@dataclass(frozen=True)
class SlurmConfig:
    """Jobs of Slurm."""

    options: dict[str, str | int | bool] = field(default_factory=dict)
    """More options of sbatch, by their long names: {partition: gpu, account: lab}. true: an option
    without a value."""
    setup: tuple[str, ...] = ()
    """Lines of bash that run on the first node before the program, such as `module load cuda`."""

    def __post_init__(self) -> None:
        for name, value in self.options.items():
            if not OPTION_NAME.fullmatch(name):
                raise ConfigError(
                    f"options ({name}) must be long options of sbatch without leading dashes, such"
                    " as partition"
                )
            if name in OWN_OPTIONS:
                raise ConfigError(
                    f"options ({name}) is set by textmill; leave it out, and see cluster.num_nodes"
                    " and the settings beside it"
                )
            if value is False or (isinstance(value, str) and not value.isprintable()):
                raise ConfigError(f"options.{name} ({value!r}) must be one line of text, or true")


@dataclass(frozen=True)
class KubernetesConfig:
    """Jobs of Kubernetes."""

    image: str = "textmill"
    """Image with the same version of textmill; the Dockerfile builds one."""
    namespace: str = "default"
    """Namespace of the jobs."""
    claim: str = "textmill"
    """PersistentVolumeClaim that all nodes can write (ReadWriteMany); it holds the store."""
    mount: Path = Path("/work")
    """Where the claim is mounted, in the pods and here; `store` lies below it."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables of the container."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels of the job, such as {kueue.x-k8s.io/queue-name: gpus}."""
    pod: dict[str, Any] = field(default_factory=dict)
    """Fields laid over the pod's spec, such as {nodeSelector: {gpu: h100}}."""

    def __post_init__(self) -> None:
        if not self.mount.is_absolute():
            raise ConfigError(f"mount ({self.mount}) must be an absolute path, such as /work")


@dataclass(frozen=True)
class ClusterConfig:
    """Where the train stage or a whole flow runs, and what its job asks for."""

    kind: Literal["local", "slurm", "kubernetes"] = "local"
    """Who starts the processes. local: this process, on this machine. slurm, kubernetes: a job,
    submitted and followed from here."""
    submits: Literal["train", "flow"] = "train"
    """What becomes a job. train: the train stage; all others run here. flow: the whole flow, on one
    node."""
    num_nodes: int = 1
    """Nodes of a training. Each runs an equal share of parallel.num_processes."""
    gpus_per_node: int | None = None
    """GPUs asked for on each node. Null: one for each process of the node, none where
    parallel.device is cpu."""
    cpus_per_node: int | None = None
    """Processors asked for on each node. Null: the scheduler's default."""
    memory_gb_per_node: float | None = None
    """Main memory (10^9 bytes) asked for on each node. Null: the scheduler's default."""
    time_limit_min: int | None = None
    """Time limit of a job. Slurm starts counting again after each requeue; Kubernetes counts all
    tries together."""
    max_requeues: int = 20
    """How often Slurm may requeue a job that was asked to stop and has saved. Kubernetes has no
    limit."""
    poll_s: float = 5.0
    """Seconds between two checks of the job."""
    patience_s: float = 900.0
    """How long the scheduler may fail to answer before the command gives up. The job continues."""
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    kubernetes: KubernetesConfig = field(default_factory=KubernetesConfig)

    def __post_init__(self) -> None:
        check_bounds(
            self,
            num_nodes=(1, None),
            gpus_per_node=(0, None),
            cpus_per_node=(1, None),
            memory_gb_per_node=(0.001, None),
            time_limit_min=(1, None),
            max_requeues=(0, None),
            poll_s=(0.01, None),
            patience_s=(0, None),
        )
        if self.kind == "local" and self.num_nodes > 1:
            raise ConfigError(
                f"num_nodes ({self.num_nodes}) needs a scheduler; add cluster=slurm or"
                " cluster=kubernetes"
            )
        if self.kind == "local" and self.submits == "flow":
            raise ConfigError(
                "submits (flow) needs a scheduler; add cluster=slurm or cluster=kubernetes"
            )
        if self.submits == "flow" and self.num_nodes > 1:
            raise ConfigError(
                f"num_nodes ({self.num_nodes}) must be 1 with submits=flow, which is a job of one"
                " node; submit the training alone (submits=train)"
            )

    def require_shared(self, folder: Path, name: str) -> None:
        """Raise ConfigError for a folder that the pods of a Kubernetes cluster would not see."""
        mount = self.kubernetes.mount
        if self.kind == "kubernetes" and not folder.resolve().is_relative_to(mount):
            raise ConfigError(
                f"{name} ({folder}) must lie below cluster.kubernetes.mount ({mount}), the volume"
                f" that the pods have; set {name}={mount / folder.name}"
            )


def check_nodes(cluster: ClusterConfig, num_processes: int) -> None:
    """Raise ConfigError where the processes of a training do not fit its nodes."""
    if num_processes % cluster.num_nodes:
        raise ConfigError(
            f"parallel.num_processes ({num_processes}) must be a multiple of cluster.num_nodes"
            f" ({cluster.num_nodes}); it is the total over all nodes"
        )
