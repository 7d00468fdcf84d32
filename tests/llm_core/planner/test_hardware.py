"""What was measured of a machine takes the place of what makers state."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flows.compose import compose
from llm_core.config import ConfigError
from llm_core.model.config import ModelConfig
from llm_core.optim.config import OptimConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.planner.hardware import HardwareConfig, LinkConfig
from llm_core.planner.step import TimePlan, Work, plan_time
from llm_core.training.config import TrainConfig

STATED = HardwareConfig("X", 10, 20, 0.2, 0.1, node_gb_s=10)
WORK = Work(
    ModelConfig(1024, 128, 4, 4, 4, 384, 512),
    OptimConfig(lr=1e-3),
    TrainConfig(num_steps=10, global_batch_sequences=8, seq_len=128, micro_batch_sequences=4),
    ParallelConfig("ddp", 2),
)


def time_of(hardware: HardwareConfig, parallel: ParallelConfig = WORK.parallel) -> TimePlan:
    return plan_time(replace(WORK, parallel=parallel), hardware)


def test_a_measured_collective_takes_the_place_of_the_links_bandwidth() -> None:
    before = time_of(STATED).traffic[0]
    slow = replace(STATED, links={"all_reduce": LinkConfig(100, 0.1), "send": LinkConfig(1, 1)})
    found = time_of(slow).traffic[0]
    assert found.num_bytes == before.num_bytes
    assert found.elapsed_s == pytest.approx(100e-6 + found.num_bytes / 0.1e9)
    across = time_of(replace(slow, devices_per_node=1)).traffic[0]
    assert across == time_of(replace(STATED, devices_per_node=1)).traffic[0]


def test_each_axis_takes_the_collectives_that_it_uses() -> None:
    def exposed_s(parallel: ParallelConfig, kind: str) -> float:
        return time_of(replace(STATED, links={kind: LinkConfig(1e6, 1)}), parallel).exposed_s

    for parallel, kinds in {
        ParallelConfig("ddp", 2): ["all_reduce"],
        ParallelConfig("fsdp", 2): ["all_gather", "reduce_scatter"],
        ParallelConfig("zero1", 2): ["all_gather", "reduce_scatter"],
        ParallelConfig("ddp", 2, tp=2): ["all_gather", "reduce_scatter"],
        ParallelConfig("ddp", 2, pp=2, pp_schedule="gpipe"): ["send"],
        ParallelConfig("ddp", 2, cp=2, cp_kind="ulysses"): ["all_reduce", "all_to_all"],
    }.items():
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"):
            assert (exposed_s(parallel, kind) > 1) == (kind in kinds), (parallel.product, kind)


def test_traffic_is_exposed_where_the_processors_that_compute_also_send() -> None:
    links = {"all_gather": LinkConfig(0, 1), "reduce_scatter": LinkConfig(0, 1)}
    hidden, shown = (
        time_of(replace(STATED, links=links, overlap=share), ParallelConfig("fsdp", 2)).traffic[0]
        for share in (1.0, 0.0)
    )
    assert shown.exposed_s == shown.elapsed_s == hidden.elapsed_s > hidden.exposed_s


def test_launches_add_up_where_the_host_is_the_device() -> None:
    slow = replace(STATED, launch_ms=50.0)
    device, host = time_of(slow), time_of(replace(slow, launches_ahead=False))
    assert host.host_s == pytest.approx(4 * 50e-3)
    assert 0 < device.host_s < host.host_s
    assert time_of(replace(slow, step_ms=7.0)).host_s == pytest.approx(device.host_s + 7e-3)


def test_values_given_win_over_those_of_a_record(tmp_path: Path) -> None:
    file = tmp_path / "hardware-2.json"
    values = {"name": "mine", "memory_gb": 4, "memory_gb_s": 20, "tflops": 1, "tflops_fp32": 1}
    values["links"] = {"send": {"start_us": 3, "gb_s": 2}}  # type: ignore[assignment]
    file.write_text(json.dumps({"hardware": values}))
    words = ["source=sample", f"state={tmp_path}", "parallel=ddp", "parallel.num_processes=2"]
    found = compose([*words, "hardware=this", "hardware.memory_gb=5"]).hardware
    assert (found.name, found.memory_gb, found.memory_gb_s) == ("mine", 5, 20)
    assert found.links == {"send": LinkConfig(3, 2)}
    assert compose([*words, f"hardware.file={file}"]).hardware.name == "mine"


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (None, "does not exist; measure this machine with textmill calibrate"),
        ("{", "cannot be read"),
        ("[1]", "is not a record of textmill calibrate"),
        ('{"hardware": {"speed": 3}}', "hardware.speed is not a known setting"),
        ('{"hardware": {"links": {"send": {"start_us": 1, "gb_s": 0}}}}', "gb_s (0.0) must be pos"),
    ],
)
def test_a_record_that_cannot_serve_is_refused(
    content: str | None, rule: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "hardware-1.json").write_text(content)
    with pytest.raises(ConfigError) as refused:
        compose(["source=sample", "hardware=this", f"state={tmp_path}"])
    assert rule in str(refused.value)
