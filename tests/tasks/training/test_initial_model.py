"""Trains from the weights of an existing model."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_core.config import ConfigError
from llm_core.huggingface.export import export_model, load_model
from llm_core.huggingface.growth import read_grown_weights
from llm_core.model.config import ModelConfig, RopeScaling
from llm_core.parallel.config import ParallelConfig
from llm_core.training.metric_log import read_rows
from tasks.runtime.artifact import Artifact
from tasks.runtime.keys import key_config
from tasks.training.config import TrainStageConfig
from tasks.training.stage import resolve, train_model
from tests.support.engine.small_runs import MODEL, OPTIM, TRAIN, VOCAB_SIZE
from tests.support.engine.staged_training import CONFIG
from tests.support.engine.uneven_model import make_model


def save(folder: Path, config: ModelConfig = MODEL, seed: int = 3) -> Path:
    export_model(config, make_model(config, seed).state_dict(), folder)
    return folder


def going_on_from(folder: Path, lr: float = OPTIM.lr) -> TrainStageConfig:
    train = dataclasses.replace(TRAIN, num_steps=2, validate_every=1, init_from=folder)
    return dataclasses.replace(CONFIG, train=train, optim=dataclasses.replace(OPTIM, lr=lr))


def test_training_starts_from_the_weights_of_the_folder(
    parents: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    folder = save(tmp_path / "there")
    (tmp_path / "out").mkdir()
    config = going_on_from(folder, lr=1e-30)  # too small to change a weight
    train_model(
        *parents,
        tmp_path / "out",
        dataclasses.replace(config, parallel=ParallelConfig(device="cpu", num_threads=1)),
    )
    before, after = (load_model(f).state_dict() for f in (folder, tmp_path / "out/model"))
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert read_rows(tmp_path / "out/metrics.jsonl")[0]["step"] == 1


def test_the_key_holds_the_contents_of_the_folder_and_not_its_place(tmp_path: Path) -> None:
    here, there, other = (
        save(tmp_path / name, seed=seed) for name, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    contents = [
        [file.read_bytes() for file in going_on_from(f).input_files().values()]
        for f in (here, there, other)
    ]
    assert contents[0] == contents[1] != contents[2]
    assert key_config(going_on_from(here)) == key_config(going_on_from(there))
    assert CONFIG.input_files() == {}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"dim": 64}, r"model.dim \(32\) must be 64.*set model.dim=64"),
        ({"qk_norm": True}, r"model.qk_norm \(False\) must be True"),
        (
            {"rope_scaling": RopeScaling()},
            r"rope_scaling \(null\) must be \{factor:8.0,.*set model.rope_scaling=\{factor:8.0,",
        ),
        (
            {"vocab_size": 40},
            rf"tokenizer has {VOCAB_SIZE} ids, but the model .* only 40; set tokenizer=import",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_refused_in_one_line(
    parents: tuple[Artifact, Artifact], change: dict[str, Any], line: str, tmp_path: Path
) -> None:
    config = going_on_from(save(tmp_path / "there", dataclasses.replace(MODEL, **change)))
    with pytest.raises(ConfigError, match=line):
        config.input_files()
        resolve(config, *parents)


def test_longer_sequences_slower_rotation_and_spare_ids_are_no_misfit(
    parents: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    there = save(tmp_path / "there", dataclasses.replace(MODEL, max_seq_len=16, vocab_size=64))
    config = going_on_from(there)
    yarn = RopeScaling(4.0, original_max_seq_len=16, kind="yarn")
    longer = dataclasses.replace(config.model, rope_scaling=yarn)
    assert dataclasses.replace(config, model=longer).input_files() == config.input_files()
    assert set(config.input_files()) == {"config.json", "model.safetensors"}
    run = resolve(config, *parents)
    assert (run.model.vocab_size, run.model.max_seq_len) == (64, MODEL.max_seq_len)


def test_a_grown_model_is_exported_with_its_new_ids(
    parents: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    there = dataclasses.replace(MODEL, vocab_size=VOCAB_SIZE - 6)
    config = going_on_from(save(tmp_path / "there", there), lr=1e-30)
    config = dataclasses.replace(
        config,
        train=dataclasses.replace(config.train, init_vocab="grow"),
        parallel=ParallelConfig(device="cpu", num_threads=1),
    )
    (tmp_path / "out").mkdir()
    train_model(*parents, tmp_path / "out", config)
    after = load_model(tmp_path / "out/model")
    assert after.config.vocab_size == 56  # the next multiple of 8
    expected = read_grown_weights(tmp_path / "there", after.config)
    assert all(torch.equal(value, expected[name]) for name, value in after.state_dict().items())


def test_a_vocabulary_grows_only_behind_the_ids_that_the_model_knows(
    parents: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    folder = save(tmp_path / "there", dataclasses.replace(MODEL, vocab_size=40))
    config = going_on_from(folder)
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, init_vocab="grow"))

    def write(place: Path, pieces: str, *added: str) -> None:
        vocabulary = {piece: number for number, piece in enumerate(pieces)}
        tokens = [{"content": t, "id": len(pieces) + n} for n, t in enumerate(added)]
        text = json.dumps({"model": {"vocab": vocabulary}, "added_tokens": tokens})
        (place / "tokenizer.json").write_text(text, "utf-8")

    write(folder, "abc", "<end>")
    write(parents[0].path, "abc", "<end>", "<new>")
    assert resolve(config, *parents).model.vocab_size == 56
    write(parents[0].path, "abcd", "<end>")
    with pytest.raises(ConfigError, match=r"1 of the 4 pieces of the tokenizer have other ids"):
        resolve(config, *parents)


def test_growth_needs_a_model_to_grow() -> None:
    with pytest.raises(ConfigError, match=r"init_vocab \(grow\) is for a model that is loaded"):
        dataclasses.replace(TRAIN, init_vocab="grow")


def test_a_tokenizer_whose_ids_mean_other_pieces_is_refused(
    parents: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    folder = save(tmp_path / "there")
    for place, pieces in ((folder, ["a", "b", "c"]), (parents[0].path, ["a", "c", "b"])):
        vocabulary = {piece: number for number, piece in enumerate(pieces)}
        (place / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}), "utf-8")
    with pytest.raises(ConfigError, match=r"2 of the 3 pieces of the tokenizer have other ids"):
        resolve(going_on_from(folder), *parents)
