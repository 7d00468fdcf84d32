"""Runs the CUDA text of the decode step on a CPU, lane by lane: `decode_on_cpu`.

The text is that of the product; `messages.h` takes the place of the instructions of a GPU, and
`lanes.h` of its threads. What only a GPU shows is the order of memory between blocks, and speed.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from llm_core.kernels.decode import step

FOLDER = Path(__file__).parent
can_run = bool(shutil.which("g++")) and platform.machine() == "x86_64"

START = """
extern "C" int start(void* layers, void* model, void* state, int blocks, int shared_bytes) {
  static void *l, *m, *s;
  l = layers, m = model, s = state;
  return run_lanes([] { decode_step((Layer*)l, (Model*)m, (State*)s); }, blocks, shared_bytes);
}
"""


def decode_on_cpu(patch: pytest.MonkeyPatch, folder: Path, processors: int) -> None:
    """Lets `DecodeStep` take tensors of the CPU. folder: for what is compiled."""
    device = SimpleNamespace(multi_processor_count=processors, shared_memory_per_block_optin=232448)
    patch.setattr(torch.cuda, "get_device_properties", lambda _: device)
    patch.setattr(torch.cuda, "current_stream", lambda _: None)
    patch.setattr(step, "source", _source)
    patch.setattr(step, "compile_kernel", lambda text, name, device: _Kernel(text, folder))


def _source(parts: Sequence[str], numbers: Mapping[str, int | str]) -> str:
    texts = [f"#define {name} {value}" for name, value in numbers.items()]
    texts.append((FOLDER / "lanes.h").read_text("utf-8"))
    for part in parts:
        own = FOLDER / f"{part}.h"
        text = (own if own.exists() else step.FOLDER / f"{part}.cu").read_text("utf-8")
        # Registers of warps and hints of caches, which a CPU has not.
        text = re.sub(r"asm volatile\(.*?\);", ";", text, flags=re.DOTALL)
        texts.append(
            re.sub(r"extern __shared__ .*?(\w+)\[\];", r"char* \1 = now->of->shared;", text)
        )
    return "\n".join([*texts, START])


class _Kernel:
    def __init__(self, text: str, folder: Path) -> None:
        library = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
        if not library.exists():
            command = ["g++", "-std=c++17", "-O1", "-w", "-fno-strict-aliasing", "-shared", "-fPIC"]
            subprocess.run(
                [*command, "-x", "c++", "-", "-o", library], input=text, text=True, check=True
            )
        self._start = ctypes.CDLL(str(library)).start

    def set_shared_memory_config(self, num_bytes: int) -> None:
        pass

    def __call__(self, grid: Any, args: Sequence[torch.Tensor], shared_mem: int, **_: Any) -> None:
        addresses = [ctypes.c_void_p(part.data_ptr()) for part in args]
        assert not self._start(*addresses, grid[0], shared_mem), "lanes wait for ever"
