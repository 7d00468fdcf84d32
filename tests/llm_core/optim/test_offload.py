"""Training with the optimizer's state elsewhere is training, to the bit, and leaves nothing
there."""

from __future__ import annotations

import dataclasses
import math
import signal
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from llm_core.checkpoint.checkpoints import Checkpoints
from llm_core.checkpoint.state import collect_state
from llm_core.config import ConfigError
from llm_core.memory.paging import Pager
from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer
from llm_core.optim import offload
from llm_core.optim.build import build_optimizer
from llm_core.optim.config import GuardConfig, LossScaleConfig, OptimConfig
from llm_core.optim.offload import GRAIN, Offloaded, cut
from llm_core.optim.optimizer import Optimizer
from llm_core.parallel.layout import Layout
from llm_core.parallel.ranks import Ranks
from llm_core.training.train import run
from tests.support.engine.live_bytes import LiveBytes
from tests.support.engine.optimized_runs import events, in_folder, make_config
from tests.support.engine.small_optimizers import ONE, copies, make_optimizer, same, set_gradients
from tests.support.engine.small_runs import MODEL, OPTIM, kill_trainer, result_bytes

PLACES = ("device", "host", "disk")


@pytest.fixture(autouse=True)
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small model has several, and its matrices lie in some each."""
    monkeypatch.setattr(offload, "PAGE", GRAIN)


def make(
    kind: str, where: str, folder: Path, **values: Any
) -> tuple[dict[str, Tensor], Optimizer, OptimConfig]:
    values |= {"state_in": where, "state_folder": folder if where == "disk" else None}
    return make_optimizer(kind, torch.float32, **values)


def pager_of(optimizer: Optimizer) -> Pager:
    method = optimizer.methods[0]
    assert isinstance(method, Offloaded)
    return method.pager


@pytest.mark.parametrize("state_dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["adamw", "lion"])
def test_updates_and_skips_are_those_of_state_beside_the_weights_to_the_bit(
    kind: str, state_dtype: str, tmp_path: Path
) -> None:
    found = []
    for where in PLACES:
        weights, optimizer, config = make(
            kind, where, tmp_path, state_dtype=state_dtype, clip_norm=0.3
        )
        for seed, loss in enumerate((1.0, math.nan, 1.0, 1.0)):
            set_gradients(weights, seed, loss)
            optimizer.step(config.lr, ONE * loss, ONE * 2)
            found.append(copies(weights) | copies(optimizer.state_views()))
        if where != "device":
            assert len(pager_of(optimizer).pages) > 5
    by_place = [found[begin : begin + 4] for begin in range(0, 12, 4)]
    assert all(
        same(one, other) for step in zip(*by_place, strict=True) for one, other in pairwise(step)
    )
    assert list(tmp_path.iterdir()) == []


def test_pages_hold_each_element_once_and_no_more_than_they_may(tmp_path: Path) -> None:
    _, optimizer, _ = make("adamw", "host", tmp_path)
    pieces = [state.weight for state in optimizer.states() if state.kind == "exp_avg"]
    for page in (GRAIN, 2 * GRAIN, 1 << 23):
        pages = cut(pieces, page)
        with torch.no_grad():
            assert all(sum(run.data.numel() for _, run in members) <= page for members in pages)
            for index, piece in enumerate(pieces):
                runs = [run.data.flatten() for members in pages for i, run in members if i == index]
                assert torch.equal(torch.cat(runs), piece.data.flatten())
                assert [run.untyped_storage().data_ptr() for run in runs] == [
                    piece.data.untyped_storage().data_ptr()
                ] * len(runs)
    assert len(cut(pieces, 1 << 23)) == 1


def test_an_update_on_disk_holds_three_pages_and_no_more_of_its_own_than_one_in_memory(
    tmp_path: Path,
) -> None:
    peaks = {}
    for where in ("device", "disk"):
        weights, optimizer, config = make("adamw", where, tmp_path, state_dtype="bf16")
        set_gradients(weights, 0)
        kept = [
            *optimizer.state_views().values(),
            *weights.values(),
            *(w.grad for w in weights.values() if w.grad is not None),
        ]
        with LiveBytes(kept) as live:
            optimizer.step(config.lr, ONE, ONE)
        peaks[where] = live.peak
    pager = pager_of(optimizer)
    # Norms take a whole 4096 bytes each here, so the state of this model is not much more than
    # three pages.
    assert (
        pager.device_bytes
        <= 3 * max(page.num_bytes for page in pager.pages)
        < len(pager.backing.bytes_N) / 2
    )
    assert peaks["disk"] <= peaks["device"] + pager.device_bytes


class Trained:
    """A model and its optimizer, which gradients are made up for."""

    def __init__(self, where: str, folder: Path) -> None:
        self.layout = Layout(Transformer(MODEL))
        init_weights(self.layout.bare, 1)
        self.config = dataclasses.replace(OPTIM, state_in=where)  # type: ignore[arg-type]
        self.optimizer = build_optimizer(self.layout, self.config, scratch=folder)

    def step(self, seed: int) -> None:
        set_gradients(dict(self.layout.bare.named_parameters()), seed)
        self.optimizer.step(self.config.lr, ONE, ONE)

    def values(self) -> dict[str, Tensor]:
        return copies(collect_state(self.layout, self.optimizer))


@pytest.mark.parametrize(
    ("saver", "loader", "in_background"), [("device", "disk", True), ("disk", "host", False)]
)
def test_a_checkpoint_does_not_tell_where_state_was(
    saver: str, loader: str, in_background: bool, tmp_path: Path
) -> None:
    one, other = Trained(saver, tmp_path / "scratch"), Trained(loader, tmp_path / "scratch")
    with Checkpoints(
        tmp_path / "saved", Ranks(0, 1, torch.device("cpu")), in_background=in_background
    ) as checkpoints:
        for seed in range(2):
            one.step(seed)
            other.step(5 + seed)
        checkpoints.save(2, one.layout, one.optimizer)
        saved = one.values()
        one.step(2)  # while the checkpoint is written, where it is so in the background
        assert checkpoints.load(other.layout, other.optimizer) == 2
    assert same(other.values(), saved)
    other.step(2)
    assert same(other.values(), one.values())


def test_a_run_that_ends_in_the_middle_of_a_page_goes_on_from_its_checkpoint(
    tmp_path: Path, poison: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = LossScaleConfig(initial=2.0**30, hysteresis=1)
    config = make_config(tmp_path, {"dtype": "fp16", "num_steps": 10}, loss_scale=scale)
    poison(config, {6: float("nan")})
    whole = in_folder(config, tmp_path / "whole")
    assert {row["reason"] for row in events(whole)} == {"loss_scale_overflow", "not_finite"}
    paged = dataclasses.replace(config, optim=dataclasses.replace(config.optim, state_in="disk"))
    turns, count = Pager.turns, []

    def break_off(self: Pager) -> Iterator[int]:
        for number in turns(self):
            yield number
            count.append(number)
            if len(count) == 6 * len(self.pages) + 3:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Pager, "turns", break_off)
        in_folder(paged, tmp_path / "broken")
    names = {path.name for path in (tmp_path / "broken").iterdir()}
    run(paged, tmp_path / "broken")
    assert result_bytes(tmp_path / "broken") == result_bytes(whole)
    assert names <= {path.name for path in whole.iterdir()}, "state on disk has no name"


@pytest.mark.slow
def test_a_run_goes_back_with_its_state_on_disk_as_with_state_beside_the_weights(
    tmp_path: Path, poison: Callable[..., None]
) -> None:
    config = make_config(
        tmp_path,
        kind="lion",
        guard=GuardConfig(rollback_skips=2, rollback_window_steps=6, rollback_every_steps=3),
    )
    poison(config, {4: float("nan"), 5: float("nan")})
    whole = in_folder(config, tmp_path / "whole")
    assert any(row["event"] == "rollback" for row in events(whole))
    paged = dataclasses.replace(
        config,
        optim=dataclasses.replace(config.optim, state_in="disk", state_folder=tmp_path / "disk"),
    )
    assert result_bytes(in_folder(paged, tmp_path / "paged")) == result_bytes(whole)


@pytest.mark.slow
def test_a_killed_run_leaves_nothing_on_the_disk_and_resumes_to_the_same_bytes(
    tmp_path: Path,
) -> None:
    config = make_config(tmp_path, {"num_steps": 40, "checkpoint_every": 3})
    whole = in_folder(config, tmp_path / "whole")
    scratch, work = tmp_path / "scratch", tmp_path / "work"
    paged = dataclasses.replace(
        config, optim=dataclasses.replace(config.optim, state_in="disk", state_folder=scratch)
    )
    trainer = kill_trainer(tmp_path, paged)
    assert trainer.returncode == -signal.SIGKILL and list(scratch.iterdir()) == []
    run(paged, work)
    assert result_bytes(work) == result_bytes(whole) and list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"kind": "muon", "state_in": "host"},
            r"state_in \(host\) serves adamw and lion, muon needs whole .* state_in=device",
        ),
        (
            {"kind": "adafactor", "state_in": "disk"},
            r"state_in \(disk\) serves adamw and lion, adafactor keeps little state",
        ),
        (
            {"state_in": "host", "state_folder": Path("disk")},
            r"state_folder \(disk\) belongs to state_in=disk, not host",
        ),
    ],
)
def test_what_cannot_lie_elsewhere_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(OPTIM, **values)


def test_a_disk_without_a_folder_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"optim.state_folder \(null\) must name a folder"):
        make_optimizer(state_in="disk")
