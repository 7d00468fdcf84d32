"""Samples processor, memory, disk, network and GPUs of this machine, by MLflow's own monitors.

MLflow's thread for it loses what a server does not take, so samples go through the journal instead.
GPUs are sampled where `nvidia-ml-py` is installed.
"""

from __future__ import annotations

from typing import Any

EVERY_S = 15.0


class Machine:
    """A sample is {name: value}, named as MLflow's page of system metrics expects."""

    def __init__(self) -> None:
        from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
        from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
        from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
        from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

        self._monitors: list[Any] = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
        try:
            self._monitors.append(GPUMonitor())
        except (ImportError, RuntimeError):  # no package, no driver
            return

    def sample(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for monitor in self._monitors:
            monitor.collect_metrics()
            values = monitor.aggregate_metrics()
            found |= {f"system/{name}": float(value) for name, value in values.items()}
            monitor.clear_metrics()
        return found
