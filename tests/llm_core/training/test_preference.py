"""Training on pairs of answers is direct preference optimisation, from a reference that is computed
once."""

from __future__ import annotations

import copy
import dataclasses
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from llm_core.config import ConfigError
from llm_core.data.batch import IGNORED
from llm_core.data.config import DataConfig
from llm_core.data.loader import Loader
from llm_core.data.shards import open_shards
from llm_core.huggingface.export import read_config
from llm_core.memory.config import MemoryConfig
from llm_core.model.adapter import AdapterConfig
from llm_core.optim.config import OptimConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.training import references
from llm_core.training.metric_log import read_rows
from llm_core.training.preference.config import PreferenceConfig
from llm_core.training.preference.pairs import pairs_of
from llm_core.training.run_config import RunConfig
from llm_core.training.train import run_in
from tests.support.engine.pair_shards import write_pairs
from tests.support.engine.published_models import reference
from tests.support.engine.small_runs import result_bytes, run_config, signal_when

PAIRED = DataConfig(packing="pairs", mask_documents=True, loss_on="assistant")
LORA = AdapterConfig(kind="lora", rank=4, alpha=8)
NUM_STEPS = 50


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    folder = tmp_path_factory.mktemp("inputs")
    reference("llama", folder / "base")
    train = {
        "init_from": folder / "base",
        "seq_len": 24,
        "data": PAIRED,
        "preference": PreferenceConfig("dpo", references=folder / "references"),
        "num_steps": 6,
        "validate_every": 3,
        "checkpoint_every": 2,
        "global_batch_sequences": 4,
    }
    config = run_config(folder, train=train)
    model = dataclasses.replace(read_config(folder / "base"), max_seq_len=64)
    optim = OptimConfig(lr=1e-3, warmup_steps=0, schedule="constant", weight_decay=0.0)
    shards = write_pairs(folder / "pairs")
    return dataclasses.replace(config, model=model, optim=optim, shards=shards)


def with_train(config: RunConfig, **values: Any) -> RunConfig:
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **values))


def losses_of(workdir: Path) -> list[float]:
    return [row["train_loss"] for row in read_rows(workdir / "metrics.jsonl") if "lr" in row]


@pytest.mark.parametrize(("smoothing", "expected"), [(0.0, 0.598139), (0.1, 0.618139)])
def test_the_loss_of_a_pair_is_that_of_the_paper(smoothing: float, expected: float) -> None:
    # Log-probabilities of -1 and -4 where the reference has -2 and -3: h = 2.
    nats_BT, documents_BT = torch.tensor([[1.0, 4.0]]), torch.tensor([[0, 1]])
    preference = PreferenceConfig("dpo", label_smoothing=smoothing)
    pairs = pairs_of(preference, documents_BT, torch.tensor([[-2.0, -3.0]]))
    loss_B = pairs.losses(nats_BT, torch.tensor([[7, 8]]), slice(None))
    assert float(loss_B) == pytest.approx(expected, abs=1e-6)
    assert pairs.sums_4.tolist() == pytest.approx([1, 1, 0.1, -0.1])


def log_probability(model: Any, ids_T: Tensor, targets_T: Tensor) -> Tensor:
    logs_TV = model(ids_T[None]).logits[0].log_softmax(dim=-1)
    counts_T = targets_T != IGNORED
    return logs_TV[counts_T].gather(1, targets_T[counts_T][:, None]).sum()


def test_fifty_steps_are_those_of_the_paper_over_transformers(
    config: RunConfig, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    config = with_train(config, num_steps=NUM_STEPS)
    config = dataclasses.replace(config, optim=dataclasses.replace(config.optim, clip_norm=1e9))
    run_in(tmp_path, config)
    policy = transformers.AutoModelForCausalLM.from_pretrained(
        config.train.init_from, attn_implementation="eager"
    )
    frozen = copy.deepcopy(policy).requires_grad_(False)
    optim, train = config.optim, config.train
    optimizer = torch.optim.AdamW(
        policy.parameters(), optim.lr, (optim.beta1, optim.beta2), optim.eps, weight_decay=0.0
    )
    shards = open_shards(config.shards, "train")
    loader = Loader(shards, train.seq_len, 4, train.seed, data=PAIRED)
    expected = []
    for step in range(NUM_STEPS):
        batch = loader.batch(step)
        assert batch.documents_BT is not None
        losses = []
        for row in zip(batch.ids_BT, batch.targets_BT, batch.documents_BT, strict=True):
            ids_T, targets_T, documents_T = row
            ratios = [
                log_probability(policy, ids_T[own], targets_T[own])
                - log_probability(frozen, ids_T[own], targets_T[own])
                for own in (documents_T == 0, documents_T == 1)
            ]
            losses.append(-F.logsigmoid(0.1 * (ratios[0] - ratios[1])))
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert losses_of(tmp_path) == pytest.approx(expected, abs=1e-5)
    assert expected[-1] < 0.9 * math.log(2)


def test_training_begins_at_the_logarithm_of_two_and_tells_of_rewards(
    config: RunConfig, tmp_path: Path
) -> None:
    run_in(tmp_path, config)
    rows = read_rows(tmp_path / "metrics.jsonl")
    first, last = (next(row for row in some if "lr" in row) for some in (rows, rows[::-1]))
    assert first["train_loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert first["reward_margin"] == pytest.approx(0, abs=1e-5)
    assert last["pair_accuracy"] > 0.5
    assert last["reward_margin"] == pytest.approx(last["chosen_reward"] - last["rejected_reward"])
    validation = [row for row in rows if "val_loss" in row][-1]
    assert 0 <= validation["val_pair_accuracy"] <= 1 and validation["val_bpb"] > 0


def test_the_reference_is_computed_once_for_each_base(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = []
    compute = references.log_probabilities
    monkeypatch.setattr(
        references, "log_probabilities", lambda *some: computed.append(1) or compute(*some)
    )
    folder = tmp_path / "references"
    short = with_train(config, num_steps=1)

    def with_beta(config: RunConfig, beta: float) -> RunConfig:
        preference = dataclasses.replace(config.train.preference, beta=beta, references=folder)
        return with_train(config, preference=preference)

    run_in(tmp_path / "fresh", with_beta(short, 0.1))
    assert len(computed) == 2  # both splits
    run_in(tmp_path / "kept", with_beta(short, 0.1))
    run_in(tmp_path / "stronger", with_beta(short, 0.5))
    run_in(tmp_path / "lora", dataclasses.replace(with_beta(short, 0.1), adapter=LORA))
    assert len(computed) == 2
    assert result_bytes(tmp_path / "kept") == result_bytes(tmp_path / "fresh")
    torch.manual_seed(1)
    other = reference("llama", tmp_path / "other")
    with torch.no_grad():
        other.lm_head.weight.add_(1)
    other.save_pretrained(tmp_path / "other")
    run_in(tmp_path / "another", with_train(with_beta(short, 0.1), init_from=tmp_path / "other"))
    assert len(computed) == 4
    (file, *_) = folder.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-8])
    run_in(tmp_path / "again", with_beta(short, 0.1))
    run_in(tmp_path / "again too", with_train(with_beta(short, 0.1), init_from=tmp_path / "other"))
    assert len(computed) == 6


@pytest.mark.parametrize("adapter", [AdapterConfig(), LORA], ids=["all weights", "factors"])
def test_a_stopped_run_resumes_to_the_same_bytes(
    config: RunConfig, adapter: AdapterConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(config, adapter=adapter)
    run_in(tmp_path / "whole", config)
    # Its references are gone when it resumes, and are computed from the base once more.
    alone = dataclasses.replace(config.train.preference, references=tmp_path / "references")
    config = with_train(config, preference=alone)
    with monkeypatch.context() as patch:
        signal_when(3, signal.SIGTERM, patch)
        assert run_in(tmp_path / "stopped", config) == "preempted"
    for file in alone.references.iterdir():
        file.unlink()
    run_in(tmp_path / "stopped", config)
    assert result_bytes(tmp_path / "stopped") == result_bytes(tmp_path / "whole")


def test_the_reference_of_an_adapter_is_its_base(config: RunConfig, tmp_path: Path) -> None:
    config = dataclasses.replace(config, adapter=LORA)
    run_in(tmp_path / "first", config)
    begun = dataclasses.replace(LORA, init_from=tmp_path / "first" / "model" / "adapter")
    alone = dataclasses.replace(config.train.preference, references=None)
    again = dataclasses.replace(with_train(config, preference=alone), adapter=begun)
    run_in(tmp_path / "second", again)
    (own,) = (tmp_path / "second" / "references").glob("*.safetensors")
    kept = config.train.preference.references / own.name
    assert own.read_bytes() == kept.read_bytes()
    assert abs(losses_of(tmp_path / "second")[0] - math.log(2)) > 1e-3


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"parallel": ParallelConfig(kind="ddp", pp=2, num_processes=2)}, r"parallel\.pp \(2\)"),
        ({"parallel": ParallelConfig(kind="ddp", cp=2, num_processes=2)}, r"parallel\.cp \(2\)"),
        (
            {"parallel": ParallelConfig(kind="server", num_processes=2, device="cpu")},
            r"parallel\.kind \(server\)",
        ),
        ({"memory": MemoryConfig(loss_chunk_tokens=8)}, r"memory\.loss_chunk_tokens \(8\)"),
        ({"train": {"z_loss": 1e-4}}, r"train\.z_loss"),
        ({"train": {"init_from": None}}, r"set train\.init_from=FOLDER"),
        ({"train": {"data": DataConfig()}}, "use train=dpo"),
        ({"train": {"preference": PreferenceConfig()}}, "use train=dpo"),
    ],
)
def test_what_does_not_go_with_pairs_is_refused(
    config: RunConfig, changed: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        if "train" in changed:
            with_train(config, **changed["train"])
        dataclasses.replace(config, **changed)


@pytest.mark.parametrize("values", [{"beta": 0.0}, {"label_smoothing": 0.5}])
def test_numbers_that_prefer_nothing_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=rf"preference\.{next(iter(values))}"):
        PreferenceConfig("dpo", **values)
