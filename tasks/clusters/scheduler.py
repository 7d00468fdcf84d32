"""Picks the scheduler that the settings name."""

from __future__ import annotations

from tasks.clusters.config import ClusterConfig
from tasks.clusters.job import Scheduler
from tasks.clusters.kubernetes import Kubernetes
from tasks.clusters.slurm import Slurm


def scheduler_of(cluster: ClusterConfig) -> Scheduler:
    return Slurm(cluster) if cluster.kind == "slurm" else Kubernetes(cluster)
