"""The plan of a training on eight H200 in a pipeline of four, beside made-up measurements."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from llm_core.model.config import ModelConfig
from llm_core.optim.config import OptimConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.planner.hardware import HardwareConfig
from llm_core.planner.step import memory_of
from llm_core.planner.weights import Coordinates
from llm_core.training.config import TrainConfig
from llm_core.training.run_config import RunConfig
from tasks.training.planned import STATES, beside_measured, work_of

H200 = HardwareConfig("H200", 141, 4800, 989, 67, 1979, node_gb_s=450, network_gb_s=50)
RUN = RunConfig(
    ModelConfig(32768, 2048, 16, 16, 8, 8192, 4096, tied_embeddings=False),
    OptimConfig(lr=1e-4),
    TrainConfig(
        num_steps=600,
        global_batch_sequences=64,
        seq_len=4096,
        micro_batch_sequences=4,
        dtype="bf16",
    ),
    ParallelConfig(kind="ddp", num_processes=8, pp=4),
    Path("shards"),
    Path("bytes_per_token.npy"),
)
METRICS = {"device": "NVIDIA H200", "tokens_per_s": 241_000.0, "max_memory_bytes": 41_200_000_000}


@functools.cache
def plan_of_training() -> dict[str, Any]:
    """As the train stage leaves it."""
    first = memory_of(work_of(RUN), H200, Coordinates())
    held = {part: getattr(first, part) for part in STATES}
    return beside_measured(RUN, H200, METRICS, held)
