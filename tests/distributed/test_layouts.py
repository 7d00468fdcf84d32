"""Every layout gives the answer of one process, on batches where ranks and micro batches count unequally."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from llm_core.checkpoint.checkpoints import Checkpoints
from llm_core.parallel.ranks import Ranks
from tests.distributed.layout_run import MODEL, NUM_STEPS, OPTIM, UNTIED, main, make_trainer
from tests.distributed.processes import run_ranks

LAYOUTS = ["ddp", "fsdp"]
SINGLE = Ranks(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process computes here, then two processes compute both layouts, all on the same batches."""
    path = tmp_path_factory.mktemp("layouts")
    threads = torch.get_num_threads()
    main(path, ["none"])
    torch.set_num_threads(threads)
    run_ranks("tests.distributed.layout_run", 2, [str(path), *LAYOUTS], path)
    return path


def results(folder: Path, kind: str, part: str) -> dict[str, Tensor]:
    return {k: v for k, v in load_file(folder / f"{kind}.safetensors").items() if f".{part}" in k}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_initial_weights_are_those_of_a_single_process_bit_for_bit(folder: Path, kind: str) -> None:
    single, parallel = results(folder, "none", "init."), results(folder, kind, "init.")
    assert single.keys() == parallel.keys() and len(single) > 10
    assert all(torch.equal(single[name], parallel[name]) for name in single)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_parallel_loss_and_gradients_match_single_process(folder: Path, kind: str) -> None:
    for part in ("loss_and_norm", "gradient."):
        single, parallel = results(folder, "none", part), results(folder, kind, part)
        assert single.keys() == parallel.keys()
        for name, value in single.items():
            error = (parallel[name] - value).norm() / value.norm()
            assert error < 1e-6, f"{name} differs by {error}"


@pytest.mark.parametrize("kind", LAYOUTS)
def test_parallel_steps_and_validation_match_single_process(folder: Path, kind: str) -> None:
    for part in ("steps", "validation"):
        single, parallel = results(folder, "none", part), results(folder, kind, part)
        for name in (name for name in single if "bf16" not in name):
            torch.testing.assert_close(parallel[name], single[name], rtol=2e-6, atol=1e-7)
    assert results(folder, "none", "validation")["tied.validation"].min() > 0


@pytest.mark.parametrize("kind", LAYOUTS)
def test_checkpoint_of_one_process_loads_into_a_layout_bit_for_bit(folder: Path, kind: str) -> None:
    saved, loaded = results(folder, "none", "final."), results(folder, kind, "loaded.")
    assert len(saved) == len(loaded) > 10
    assert all(torch.equal(value, loaded[name.replace(".final.", ".loaded.")]) for name, value in saved.items())
    # The optimizer came along: the step after it is the step of one process.
    for name, value in results(folder, kind, "next").items():
        config = MODEL if name.startswith("tied") else UNTIED
        trainer = make_trainer(SINGLE, "none", folder, model_config=config)
        Checkpoints(folder / "none" / name.split(".")[0], SINGLE).load(trainer.model, trainer.optimizer)
        torch.testing.assert_close(value, trainer.train_step(NUM_STEPS, OPTIM.lr), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("name", ["tied", "untied"])
def test_checkpoint_of_a_layout_loads_into_one_process_bit_for_bit(folder: Path, kind: str, name: str) -> None:
    trainer = make_trainer(SINGLE, "none", folder, model_config=MODEL if name == "tied" else UNTIED)
    assert Checkpoints(folder / kind / name, SINGLE).load(trainer.model, trainer.optimizer) == NUM_STEPS
    saved = results(folder, kind, "final.")
    for key, value in trainer.model.state_dict().items():
        assert torch.equal(value, saved[f"{name}.final.{key}"]), key
    assert all(float(state["step"]) == NUM_STEPS for state in trainer.optimizer.state.values())


@pytest.mark.parametrize("kind", ["none", *LAYOUTS])
def test_bfloat16_follows_float32(folder: Path, kind: str) -> None:
    precise = results(folder, "none", "steps")["tied.steps"]
    rough = results(folder, kind, "steps")["bf16.steps"]
    # Clipping is active at these norms, so weights move alike though the gradients are rounded.
    torch.testing.assert_close(rough[:, 0], precise[:, 0], rtol=5e-3, atol=0)
    torch.testing.assert_close(rough[:, 1], precise[:, 1], rtol=5e-2, atol=0)


def test_accumulated_steps_match_one_large_micro_batch(folder: Path) -> None:
    steps = []
    for micro in (1, 2, 8):
        trainer = make_trainer(SINGLE, "none", folder, micro=micro)
        steps.append(torch.stack([trainer.train_step(i, OPTIM.lr) for i in range(NUM_STEPS)]))
    torch.testing.assert_close(steps[0], steps[2], rtol=2e-6, atol=0)
    torch.testing.assert_close(steps[1], steps[2], rtol=2e-6, atol=0)
