"""On GPUs, in bf16, every layout trains along the curve of one process over 50 steps of real text."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
import torch

from tests.distributed.curves import STEPS
from tests.distributed.processes import run_program

pytestmark = pytest.mark.gpu


@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", [2, 4])
def test_layouts_follow_one_process_within_the_noise_of_bf16(world: int, tmp_path: Path) -> None:
    if torch.cuda.device_count() < world:
        pytest.skip(f"needs {world} GPUs")
    run_program("tests.distributed.curves", [str(tmp_path), str(STEPS), "cuda", str(world)], tmp_path, timeout_s=800)
    curves = json.loads((tmp_path / "curves.json").read_text("utf-8"))
    single = curves.pop("single")
    assert len(single) == STEPS and single[-1] < single[0] - 1 and len(curves) > world
    apart = {name: [abs(a - b) for a, b in zip(curve, single, strict=True)] for name, curve in curves.items()}
    far = {name: (max(of), statistics.mean(of)) for name, of in apart.items() if max(of) > 0.002 or statistics.mean(of) > 0.0005}
    assert not far, f"(largest, mean) difference of the losses: {far}"
