"""Training with weights on a disk is training with them in memory, to the bit, and holds two blocks
of them."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from llm_core.checkpoint.checkpoints import Checkpoints
from llm_core.checkpoint.state import collect_state
from llm_core.config import ConfigError
from llm_core.memory.config import MemoryConfig
from llm_core.memory.paging import Pager
from llm_core.memory.resting import RestingWeights
from llm_core.model.adapter import AdapterConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.training.train import run
from llm_core.training.trainer import Trainer
from tests.support.distributed.cases import layout
from tests.support.distributed.exactness import LR, make_trainer, precision, ranks_of
from tests.support.distributed.problem import Problem
from tests.support.engine.optimized_runs import in_folder, make_config
from tests.support.engine.small_optimizers import copies, same
from tests.support.engine.small_runs import MODEL, OPTIM, TRAIN, result_bytes, run_config

ON_DISK = MemoryConfig(weights_in="disk")
IN_MEMORY = MemoryConfig(weights_in="host")


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trainer_with(memory: MemoryConfig, folder: Path, kind: str, problem: Problem) -> Trainer:
    """Two micro batches a step on one process, moments on a disk in either case."""
    parallel = layout(1, kind)
    problem = dataclasses.replace(problem, state_in="disk")
    return make_trainer(problem, parallel, problem.rows // 2, ranks_of(parallel), folder, memory)


def resting(trainer: Trainer) -> RestingWeights:
    assert trainer.layout.resting is not None
    return trainer.layout.resting


def state_of(trainer: Trainer) -> dict[str, Tensor]:
    return copies(collect_state(trainer.layout, trainer.optimizer))


@pytest.mark.parametrize("dtype", ["fp64", "bf16"])
@pytest.mark.parametrize("kind", ["fsdp", "zero2"])
def test_weights_on_a_disk_learn_as_those_in_main_memory_to_the_bit(
    kind: str, dtype: Any, group_of_one: None, tmp_path: Path
) -> None:
    problem = Problem(dtype=dtype, layers=3, tied=kind == "fsdp", masks="empty")
    found = []
    with precision(dtype):
        for memory in (IN_MEMORY, ON_DISK):
            trainer = trainer_with(memory, tmp_path, kind, problem)
            for step in range(3):
                found.append(trainer.train_step(step, LR))
            sums = trainer.validation_sums()
            assert sums is not None
            found += [sums, *state_of(trainer).values()]
    half = len(found) // 2
    assert half > 8 and all(map(torch.equal, found[:half], found[half:]))
    assert list(tmp_path.iterdir()) == [], "what rests on the disk has no name"


def test_a_pass_finds_each_unit_read_ahead_and_memory_holds_the_rest_and_two_blocks(
    group_of_one: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, bool]] = []
    turn_to = RestingWeights._turn_to

    def see(self: RestingWeights, number: int) -> None:
        asked.append((number, number in [held[0] for held in self._held if held is not None]))
        turn_to(self, number)

    monkeypatch.setattr(RestingWeights, "_turn_to", see)
    trainer = trainer_with(ON_DISK, tmp_path, "fsdp", Problem(dtype="bf16", layers=5))
    for step in range(2):
        trainer.train_step(step, LR)
    up_and_down = [0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1]
    assert [number for number, _ in asked] == 4 * up_and_down
    assert all(is_there for _, is_there in asked[1:])
    bytes_of = [end - begin for begin, end in resting(trainer)._extents]
    assert resting(trainer).num_bytes == bytes_of[0] + 2 * max(bytes_of[1:])


def test_an_update_reads_weights_and_writes_them_and_their_copies(
    group_of_one: None, tmp_path: Path
) -> None:
    trainer = trainer_with(ON_DISK, tmp_path, "fsdp", Problem(dtype="bf16", vocab=512))
    trainer.train_step(0, LR)
    traffic = resting(trainer).backing.traffic
    before = traffic.read_bytes, traffic.written_bytes
    with torch.no_grad():  # as by a step, whose gradients are no longer there
        method = trainer.optimizer.methods[0]
        method._methods = [Nothing()] * len(method._methods)  # type: ignore[attr-defined]
        method.update(None)  # type: ignore[arg-type]
    resting(trainer)._read(0).result()
    weights = sum(weight.numel() for weight in trainer.layout.bare.parameters())
    first, end = resting(trainer)._extents[0]
    read, written = traffic.read_bytes - before[0], traffic.written_bytes - before[1]
    # Norms take whole pages of the disk.
    padding = 2 * 4096 * len(list(trainer.layout.bare.parameters()))
    assert 4 * weights <= read - (end - first) <= 4 * weights + padding
    assert 6 * weights <= written <= 6 * weights + padding


class Nothing:
    def update(self, _step: object) -> None:
        pass


@pytest.mark.parametrize(("saver", "loader"), [(ON_DISK, IN_MEMORY), (IN_MEMORY, ON_DISK)])
def test_a_checkpoint_does_not_tell_where_weights_rested(
    saver: MemoryConfig, loader: MemoryConfig, group_of_one: None, tmp_path: Path
) -> None:
    problem = Problem(dtype="bf16")
    one, other = (trainer_with(memory, tmp_path, "fsdp", problem) for memory in (saver, loader))
    for step in range(2):
        one.train_step(step, LR)
        other.train_step(5 + step, LR)
    with Checkpoints(tmp_path / "saved", one.ranks) as checkpoints:
        checkpoints.save(2, one.layout, one.optimizer)
        assert checkpoints.load(other.layout, other.optimizer) == 2
    assert same(state_of(one), state_of(other))
    assert torch.equal(one.train_step(2, LR), other.train_step(2, LR))
    assert same(state_of(one), state_of(other))


def test_a_run_that_ends_in_the_middle_of_an_update_resumes_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(tmp_path, {"dtype": "bf16"}, state_in="disk")
    config = dataclasses.replace(
        config, parallel=dataclasses.replace(config.parallel, kind="fsdp"), memory=IN_MEMORY
    )
    whole = in_folder(config, tmp_path / "whole")
    turns, count = Pager.turns, []

    def break_off(self: Pager) -> Iterator[int]:
        for number in turns(self):
            yield number
            count.append(number)
            if len(count) == 12:  # of state and of weights in turn, so in the sixth step
                raise KeyboardInterrupt

    config = dataclasses.replace(config, memory=ON_DISK)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Pager, "turns", break_off)
        in_folder(config, tmp_path / "broken")
    run(config, tmp_path / "broken")
    assert result_bytes(tmp_path / "broken") == result_bytes(whole)


def test_a_full_disk_and_a_folder_that_cannot_be_are_told_in_one_line(
    group_of_one: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"state_folder \(.*file\) cannot take .* of weights"):
        trainer_with(ON_DISK, tmp_path / "file", "fsdp", Problem())

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ConfigError, match="No space left.*use memory.weights_in=host") as error:
        trainer_with(ON_DISK, tmp_path, "fsdp", Problem())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optim": OPTIM}, r"optim.state_in is device; set optim.state_in=disk"),
        ({"train": dataclasses.replace(TRAIN, ema=0.5)}, r"train.ema is 0.5; set memory"),
        ({"adapter": AdapterConfig("lora", rank=2)}, r"adapter.kind is not none; set memory"),
        ({"parallel": ParallelConfig()}, r"weights_in \(disk\) needs parallel.kind=zero1"),
    ],
)
def test_what_does_not_go_with_weights_on_a_disk_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = run_config(tmp_path, parallel={"kind": "fsdp"})
    on_disk = {"optim": dataclasses.replace(OPTIM, state_in="disk"), "memory": ON_DISK}
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(config, **(on_disk | changes))
    assert dataclasses.replace(config, **on_disk).model == MODEL
