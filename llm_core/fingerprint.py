"""Identifies this machine as far as speed is concerned. Standard library only: every plan of a run
asks for it.

Processor model, usable processors, and GPU models with their count. Not in it: clock, load, memory,
driver: they are recorded with a measurement and do not require a new measurement.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
from collections import Counter
from pathlib import Path


@functools.cache
def device_fingerprint() -> str:
    """For example `AMD EPYC 9R14 x2` or `Intel(R) Xeon(R) 8480C x64 + NVIDIA H100 80GB HBM3 x8`."""
    gpus = Counter(gpu_names())
    parts = [
        f"{processor_name()} x{num_processors()}",
        *(f"{name} x{count}" for name, count in sorted(gpus.items())),
    ]
    return " + ".join(parts)


def num_processors() -> int:
    """Processors this process may run on, which in a container or under Slurm is less than the
    machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    if cpuinfo.exists():
        for line in cpuinfo.read_text("utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def gpu_names(driver: Path = Path("/proc/driver/nvidia/gpus")) -> list[str]:
    """Models of all NVIDIA GPUs: from the driver's files in no time, else from nvidia-smi, which
    takes long to start."""
    if driver.exists():
        lines = [
            line
            for file in sorted(driver.glob("*/information"))
            for line in file.read_text("utf-8").splitlines()
        ]
        return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(
        ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    # A driver that cannot be asked has no GPU to measure on.
    return [line.strip() for line in listed.stdout.splitlines()] if listed.returncode == 0 else []
