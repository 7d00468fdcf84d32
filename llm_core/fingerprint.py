"""Identifies this machine as far as speed is concerned. Standard library only: every plan of a run
asks for it.

Processor model, usable processors, and GPU models with their count. Not in it: clock, load, memory,
driver: they are recorded with a measurement and do not require a new measurement.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path


@functools.cache
def device_fingerprint() -> str:
    """For example `AMD EPYC 9R14 x2` or `Intel(R) Xeon(R) 8480C x64 + NVIDIA H100 80GB HBM3 x8`."""
    gpus = sorted(Counter(gpu_names()).items())
    parts = [(processor_name(), num_processors()), *gpus]
    return " + ".join(f"{name} x{count}" for name, count in parts)


def num_processors() -> int:
    """Processors this process may use: in a container or under Slurm fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    if cpuinfo.exists():
        for line in cpuinfo.read_text("utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def gpu_names(driver: Path = Path("/proc/driver/nvidia/gpus")) -> list[str]:
    """Models of all NVIDIA GPUs: from the driver's files, else from nvidia-smi, which is slow."""
    if driver.exists():
        texts = (file.read_text("utf-8") for file in sorted(driver.glob("*/information")))
        return [model.strip() for text in texts for model in re.findall("^Model:(.*)", text, re.M)]
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    # A driver that cannot be asked has no GPU to measure on.
    return [line.strip() for line in listed.stdout.splitlines()] if listed.returncode == 0 else []
