"""A run that its device cannot hold is refused with settings that really make it fit."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from llm_core.config import ConfigError
from llm_core.memory.config import MemoryConfig
from llm_core.optim.config import OptimConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.planner.fit import predict_memory
from llm_core.planner.hardware import HardwareConfig
from llm_core.planner.step import Work, plan_memory
from llm_core.training.run_config import check_layout
from tests.support.distributed.cases import layout
from tests.support.engine.small_runs import MODEL, OPTIM, TRAIN

HARDWARE = HardwareConfig(reserve_gb=0)
LONG = replace(TRAIN, global_batch_sequences=64, micro_batch_sequences=16, seq_len=64)
LAYOUTS = (ParallelConfig(), layout(2, "ddp"), layout(4, "ddp", tp=2), layout(4, "fsdp"))


def work_in(parallel: ParallelConfig = LAYOUTS[0], recompute: str = "none") -> Work:
    memory = MemoryConfig(recompute=recompute)  # type: ignore[arg-type]
    return Work(MODEL, OPTIM, LONG, parallel, memory)


def with_words(work: Work, words: str) -> Work:
    for word in words.split():
        path, value = word.split("=")
        group, name = path.split(".")
        old = getattr(work, group)
        new = type(getattr(old, name))(value)
        work = replace(work, **{group: replace(old, **{name: new})})
    return work


@given(
    st.sampled_from(LAYOUTS), st.sampled_from(["none", "selective", "full"]), st.floats(0.05, 0.999)
)
def test_what_is_said_to_fit_can_run_and_fits(
    parallel: ParallelConfig, recompute: str, share: float
) -> None:
    work = work_in(parallel, recompute)
    room_bytes = share * plan_memory(work, HARDWARE).total
    with pytest.raises(ConfigError) as refused:
        predict_memory(work, HARDWARE).require_room(room_bytes, "a device", "refuse")
    named = re.search("would fit: ([^;]+);", str(refused.value))
    assume(named)
    assert named is not None
    for words in named[1].split(" or "):
        other = with_words(work, words)
        check_layout(other.model, other.train, other.parallel, other.memory, other.optim.kind)
        assert plan_memory(other, HARDWARE).total <= room_bytes


def test_the_mildest_setting_is_named_first_and_several_only_where_none_does_alone() -> None:
    predicted = predict_memory(work_in(), HARDWARE)
    assert predicted.peak_bytes == plan_memory(work_in(), HARDWARE).total

    def refusal(room_bytes: float) -> str:
        with pytest.raises(ConfigError) as refused:
            predicted.require_room(room_bytes, "a device", "refuse")
        return str(refused.value)

    mildest = "would fit: train.micro_batch_sequences=8 or memory.recompute=selective"
    assert mildest in refusal(predicted.peak_bytes - 1)
    alone = [size for words, size in predicted.smaller.items() if " " not in words]
    assert re.search("would fit: [^ ]+ [^ ]+", refusal(min(alone) - 1))
    assert "use more devices or a smaller model" in refusal(1)


def test_a_refusal_says_what_takes_the_memory_in_one_line() -> None:
    predicted = predict_memory(work_in(), HARDWARE)
    with pytest.raises(ConfigError) as refused:
        predicted.require_room(1e5, "the device", "refuse")
    said = str(refused.value)
    assert "\n" not in said and "activations" in said and "weights" in said
    assert "the device has 0.0001 GB" in said and "memory.if_too_large=warn" in said


def test_a_run_is_started_where_it_fits_or_is_asked_to_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    predicted = predict_memory(work_in(), HARDWARE)
    predicted.require_room(predicted.peak_bytes, "a device", "refuse")
    predicted.require_room(None, "cpu", "refuse")
    predicted.require_room(1, "a device", "ignore")
    assert not capsys.readouterr().err
    predicted.require_room(1, "a device", "warn")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: training needs ")


def test_settings_that_an_optimizer_or_a_layout_refuses_are_not_named() -> None:
    muon = replace(work_in(), optim=OptimConfig(lr=1e-3, kind="muon"))
    assert not [words for words in predict_memory(muon, HARDWARE).smaller if "state_in" in words]
    assert any("state_in" in words for words in predict_memory(work_in(), HARDWARE).smaller)
