"""On GPUs, in bf16, every layout trains along the curve of one process over 50 steps of real text,
however it is computed."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
import torch

from tests.support.distributed.curves import STEPS, WAYS, layouts
from tests.support.distributed.processes import run_program

pytestmark = pytest.mark.gpu


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("world", [1, 2, 4])
def test_layouts_follow_one_process_within_a_few_times_the_noise_of_bf16(
    world: int, tmp_path: Path
) -> None:
    num_devices = torch.cuda.device_count()
    if num_devices < world and world != 2:
        pytest.skip(f"needs {world} GPUs")
    run_program(
        "tests.support.distributed.curves",
        [str(tmp_path), str(STEPS), "cuda", str(world)],
        tmp_path,
        timeout_s=2300,
    )
    curves = json.loads((tmp_path / "curves.json").read_text("utf-8"))
    single = curves.pop("single")
    assert len(single) == STEPS and single[-1] < single[0] - 1
    apart = {
        name: [abs(a - b) for a, b in zip(curve, single, strict=True)]
        for name, curve in curves.items()
    }
    noise = apart.pop("noise")
    # Pipelines that take backward apart are neither compiled nor have kernels.
    assert len(apart) >= (len(WAYS) - 1) * len(layouts(world, "cuda", num_devices))
    largest, mean = (
        max(5 * of_noise, floor)
        for of_noise, floor in ((max(noise), 0.001), (statistics.mean(noise), 0.0002))
    )
    far = {
        name: (max(of), statistics.mean(of))
        for name, of in apart.items()
        if max(of) > largest or statistics.mean(of) > mean
    }
    assert not far, f"(largest, mean) difference of the losses: {far}"
