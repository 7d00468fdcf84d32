"""Devices and threads are counted on the machine that has them, however many machines a run has."""

import pytest
import torch

from llm_core import device
from llm_core.config import ConfigError
from llm_core.device import SMALL_PARAMETERS, decode_threads, pick_device, set_threads

PROCESSES = 16
"""Of two machines."""


@pytest.fixture
def eight_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)


def test_each_of_two_machines_gives_its_processes_its_own_gpus(
    eight_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert pick_device("auto", PROCESSES, 7) == torch.device("cuda", 7)


@pytest.mark.parametrize("here", [None, "16"])
def test_more_processes_on_a_machine_than_gpus_are_refused(
    eight_gpus: None, monkeypatch: pytest.MonkeyPatch, here: str | None
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if here:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
    with pytest.raises(
        ConfigError,
        match=r"16 processes on this machine need as many GPUs, it shows 8; .*num_processes",
    ):
        pick_device("auto", PROCESSES, 0)


def test_processes_of_one_machine_share_its_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "num_processors", lambda: 16)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert set_threads(0, PROCESSES) == 2
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert set_threads(0, PROCESSES) == 1
    assert set_threads(3, PROCESSES) == 3


@pytest.mark.parametrize(("num_parameters", "inside"), [(SMALL_PARAMETERS, 1), (10**9, 2)])
def test_a_small_model_decodes_on_one_thread_and_others_on_those_that_are_set(
    num_parameters: int, inside: int
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with decode_threads(num_parameters):
            assert torch.get_num_threads() == inside
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
