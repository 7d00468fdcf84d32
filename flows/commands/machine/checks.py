"""Checks what a run needs of this machine: each gives one finding.

Nothing is loaded that takes long: torch only where there are GPUs, to see whether it finds them.
"""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import psutil

from flows.run_config import RunConfig
from flows.services.processes import free_port
from flows.services.registry import Registry
from llm_core.fingerprint import gpu_names, num_processors
from llm_core.memory_limit import memory_limit_bytes

State = Literal["ok", "costs", "broken"]
GB = 1e9
WRITTEN_BYTES = 64 << 20
DISK_S = 1.0
"""Of writing, at most."""


@dataclass(frozen=True)
class Finding:
    """What a check found. costs: a run works, and what it loses is said; broken: none can work."""

    check: str
    state: State
    found: str
    advice: str = ""


def examine(config: RunConfig) -> Iterator[Finding]:
    """All checks, in the order in which a run needs things."""
    yield packages()
    yield from gpus(config)
    yield memory()
    yield shared_memory()
    for name in ("store", "state"):
        yield disk(name, getattr(config, name))
    yield clock(config.store)
    yield from limits()
    yield service_ports(config.state)
    yield port("serve.port", config.serve.port)


def _graded(
    check: str, value: float, least: float, good: float, found: str, advice: str
) -> Finding:
    """By how much there is of something."""
    state: State = "broken" if value < least else "costs" if value < good else "ok"
    return Finding(check, state, found, "" if state == "ok" else advice)


def packages() -> Finding:
    """Whether every package that textmill names is there, in a version that it names."""
    from packaging.requirements import Requirement

    missing, other = [], []
    for line in metadata.requires("textmill") or ():
        wanted = Requirement(line)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            missing.append(wanted.name)
            continue
        if not wanted.specifier.contains(version, prereleases=True):
            other.append(f"{wanted.name} {version} (needs {wanted.specifier})")
    advice = "install textmill again: make setup, or pip install textmill"
    if missing:
        return Finding("packages", "broken", f"missing: {', '.join(missing)}", advice)
    if other:
        return Finding("packages", "costs", ", ".join(other), advice + "; untested versions")
    return Finding("packages", "ok", f"torch {metadata.version('torch')}, all within their ranges")


def gpus(config: RunConfig) -> Iterator[Finding]:
    """GPUs of the driver, and whether torch can use them."""
    names, build = gpu_names(), metadata.version("torch")
    if not names:
        state: State = "broken" if config.parallel.device == "cuda" else "costs"
        found = f"no NVIDIA GPU; torch {build}, {num_processors()} processors"
        yield Finding("GPU", state, found, "training runs on the CPU; use a small model")
        return
    import torch

    driver = Path("/sys/module/nvidia/version")
    version = driver.read_text("ascii").strip() if driver.exists() else "unknown"
    found = f"{len(names)} x {names[0]}, driver {version}, torch {torch.__version__}"
    if not torch.cuda.is_available():
        advice = "install a build of torch for CUDA that this driver can run, see pytorch.org"
        yield Finding("GPU", "costs", f"{found}: torch finds no GPU", advice)
        return
    yield Finding("GPU", "ok", f"{found}, CUDA {torch.version.cuda}")
    if torch.distributed.is_nccl_available():
        yield Finding("NCCL", "ok", ".".join(map(str, torch.cuda.nccl.version())))
    else:
        yield Finding("NCCL", "costs", "not in this torch", "one GPU only; install torch for CUDA")


def memory() -> Finding:
    there, limit = psutil.virtual_memory(), memory_limit_bytes()
    room = min(there.available, limit or there.available)
    found = f"{room / GB:.1f} GB available of {there.total / GB:.1f}"
    if limit is not None and limit < there.total:
        found += f", limit of this container {limit / GB:.1f}"
    return _graded(
        "memory",
        room,
        1 * GB,
        4 * GB,
        found,
        "raise it, or use num_workers=1 and model=tiny",
    )


def shared_memory(place: Path = Path("/dev/shm")) -> Finding:
    """Where processes of torch and NCCL share tensors; containers have 64 MB of it by default."""
    if not place.is_dir():
        return Finding("shared memory", "costs", f"no {place}", "processes cannot share tensors")
    size = shutil.disk_usage(place).free
    found, advice = f"{size / GB:.2f} GB free in {place}", "docker run --shm-size=2g, or --ipc=host"
    return _graded("shared memory", size, 16e6, 1 * GB, found, f"several GPUs may fail: {advice}")


def disk(name: str, folder: Path) -> Finding:
    """Room and speed where a folder is, or will be; nothing is left there."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    advice = f"free some (textmill gc), or set {name} to another disk"
    free = shutil.disk_usage(place).free
    if free < 2 * WRITTEN_BYTES:
        return Finding(f"disk of {name}", "broken", f"{free / GB:.2f} GB free in {place}", advice)
    try:
        speed = _write_speed(place)
    except OSError as error:
        found = f"{place} takes no file: {os.strerror(error.errno or 0)}"
        return Finding(f"disk of {name}", "broken", found, f"allow it, or set {name} elsewhere")
    found = f"{free / GB:.1f} GB free, written at {speed / 1e6:.0f} MB/s, in {place}"
    if speed < 50e6:
        return Finding(f"disk of {name}", "costs", found, f"checkpoints wait; set {name} elsewhere")
    return _graded(f"disk of {name}", free, 0, 5 * GB, found, advice)


def _write_speed(place: Path) -> float:
    """Bytes per second to the disk itself. Raises OSError."""
    piece = os.urandom(1 << 20) * 4
    with tempfile.TemporaryFile(dir=place) as stream:
        began, written = time.perf_counter(), 0
        while written < WRITTEN_BYTES and time.perf_counter() - began < DISK_S:
            written += stream.write(piece)
            stream.flush()
            os.fsync(stream.fileno())
        return written / (time.perf_counter() - began)


def clock(folder: Path) -> Finding:
    """Whether time here is that of the files: leases and ages of runs compare them."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    installed = Path(__file__).stat().st_mtime
    if (behind_s := installed - time.time()) > 60:
        found = f"{behind_s:,.0f} s before this program was installed"
        return Finding("clock", "costs", found, "set it; runs would be ordered wrongly")
    try:
        with tempfile.TemporaryFile(dir=place) as stream:
            off_s = abs(os.fstat(stream.fileno()).st_mtime - time.time())
    except OSError:
        return Finding("clock", "ok", "not held against the disk of store, which takes no file")
    found = f"{off_s:.1f} s off that of the disk of store"
    return _graded("clock", -off_s, -3600, -2, found, "run a time service here and on the server")


def limits() -> Iterator[Finding]:
    """Of this process, as `ulimit` shows them."""
    for check, kind, least, good, option, unit, why in (
        ("open files", resource.RLIMIT_NOFILE, 128, 1024, "-n", 1, "workers hold many files"),
        ("processes", resource.RLIMIT_NPROC, 64, 1024, "-u", 1, "workers and ranks are processes"),
        ("locked memory", resource.RLIMIT_MEMLOCK, 0, 64 << 10, "-l", 1024, "GPUs copy from it"),
    ):
        soft, _ = resource.getrlimit(kind)
        endless = soft == resource.RLIM_INFINITY
        value = float("inf") if endless else soft
        found = "no limit" if endless else f"{soft // unit:,}{' KiB' * (unit > 1)}"
        yield _graded(check, value, least, good, found, f"{why}; raise it with ulimit {option}")


def service_ports(state: Path) -> Finding:
    """Those of the local Prefect and MLflow servers, on the loopback interface."""
    try:
        port_found = free_port()
        registry = Registry(state)
    except (OSError, RuntimeError) as error:
        return Finding("ports of services", "broken", str(error), "free some ports from 20,000 on")
    taken = [
        f"{name} {known}"
        for name in ("server", "mlflow")
        if (known := registry.port(name)) and not registry.alive(name) and free_port(known) != known
    ]
    if taken:
        found = f"{', '.join(taken)} of {state} taken by another program"
        return Finding("ports of services", "costs", found, "they get other ports; reopen pages")
    return Finding("ports of services", "ok", f"free on loopback, such as {port_found}")


def port(setting: str, number: int) -> Finding:
    if number and free_port(number) != number:
        advice = f"set {setting} to another, or 0 for any, before textmill serve"
        return Finding(setting, "costs", f"{number} is taken", advice)
    return Finding(setting, "ok", f"{number} is free")
