"""Folders of models: what is asked of them before a run begins, and how damage is told."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_core.config import ConfigError, key_config
from tasks.pii.config import PiiConfig
from tasks.runtime.inputs import InputDigests
from tasks.runtime.plan import make_nodes

pytest.importorskip("transformers")

from flows.compose import compose
from tasks.pii.ner_model import model_of
from tests.support.data.entity_models import LABELS, write_word_model

WORDS = {"Jane": "B-PER", "12": "B-ADDRESS", "1980": "B-DATE", "the": "O"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_word_model(tmp_path / "model", WORDS)


def change_config(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps(config))


def pickle_alone(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda f: f.rename(f.with_name("other")), "not a folder"),
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer.json; save"),
        (pickle_alone, "pickled weights are never read"),
        (lambda f: (f / "config.json").write_text("{"), "does not name an architecture"),
        (lambda f: (f / "config.json").write_text("[]"), "does not name an architecture"),
        (lambda f: change_config(f, id2label=None), "does not name an architecture"),
        (lambda f: change_config(f, id2label={"0": "O", "7": "B-PER"}), "does not name"),
        (
            lambda f: change_config(f, architectures=["BertForMaskedLM"]),
            "is a BertForMaskedLM; give a model for token classification",
        ),
        (lambda f: change_config(f, auto_map={"AutoConfig": "x.X"}), "code of its own"),
    ],
)
def test_a_folder_that_is_not_a_model_is_refused_before_a_run_begins(
    damage: Callable[[Path], Any], told: str, folder: Path
) -> None:
    damage(folder)
    with pytest.raises(ConfigError, match=told) as raised:
        PiiConfig(ner=folder).input_files()
    assert str(folder) in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, r"ner_types \(DATE_OF_BIRTH\) has no label .*; labels: LOC, MISC, O, PER"),
        ({"ner_types": ("NAME",), "ner_labels": {"PERS": "NAME"}}, "did you mean PER"),
    ],
)
def test_a_label_that_is_missing_is_named_with_those_that_are_there(
    values: dict[str, Any], told: str, tmp_path: Path
) -> None:
    labels = ("O", "B-PER", "I-PER", "B-LOC", "B-MISC")
    folder = write_word_model(tmp_path / "model", {"Jane": "B-PER"}, labels)
    given = {"POSTAL_ADDRESS": "LOC"} if not values else {}
    config = PiiConfig(ner=folder, **({"ner_labels": {v: k for k, v in given.items()}} | values))
    with pytest.raises(ConfigError, match=told):
        config.input_files()
    PiiConfig(ner=folder, ner_types=("NAME",)).input_files()


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"types": ("POSTAL_ADDRESS",)}, "has no form to find it by; give ner"),
        ({"ner_types": ("EMAIL",)}, "ner_types .EMAIL. is not what a model finds"),
        ({"ner_types": ()}, "names no type"),
        ({"ner_labels": {"PER": "PERSON"}}, "ner_labels .PERSON. is not what a model finds"),
        ({"ner_min_score": 1.5}, "ner_min_score .1.5. must be from 0 to 1"),
        (
            {"ner": Path("x"), "actions": {"DATE_OF_BIRTH": "pseudonym"}},
            "needs a secret key",
        ),
    ],
)
def test_settings_of_the_model_are_checked(values: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        PiiConfig(**values)


def test_without_the_extra_one_line_says_how_to_install_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'textmill\[ner\]'"):
        PiiConfig(ner=folder).input_files()
    assert PiiConfig().input_files() == {}


@pytest.mark.parametrize(
    "damage",
    [
        lambda f: (f / "tokenizer.json").write_text("{}"),
        lambda f: (f / "model.safetensors").write_bytes(b"\0" * 99),
        lambda f: (f / "model.safetensors").write_bytes(
            (f / "model.safetensors").read_bytes()[:-9]
        ),
        lambda f: change_config(f, model_type="nothing"),
        lambda f: change_config(f, hidden_size=24),
    ],
)
def test_damage_that_shows_when_the_model_is_loaded_is_one_line(
    damage: Callable[[Path], Any], folder: Path
) -> None:
    damage(folder)
    with pytest.raises(ConfigError, match="cannot be loaded") as raised:
        model_of(PiiConfig(ner=folder), str(folder))
    assert "\n" not in str(raised.value)


def test_weights_without_a_classifier_are_refused_and_not_invented(folder: Path) -> None:
    from safetensors.numpy import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["classifier.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"has no weights classifier\.weight"):
        model_of(PiiConfig(ner=folder), str(folder))


def test_a_model_that_gives_nan_is_refused(folder: Path) -> None:
    from safetensors.numpy import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights["classifier.bias"] = weights["classifier.bias"] * float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match="gives NaN"):
        model_of(PiiConfig(ner=folder), str(folder)).tokens_of("Jane")


def test_settings_left_alone_are_not_in_the_key() -> None:
    assert not [name for name in key_config(PiiConfig()) if name.startswith("ner")]
    assert PiiConfig().libraries == ()
    assert "NAME" not in PiiConfig().found_types


def test_another_model_makes_another_artifact(folder: Path, tmp_path: Path) -> None:
    ingest = compose(["run=demo"]).source

    def key_of(config: PiiConfig) -> tuple[str, dict[str, Any]]:
        digests = InputDigests(tmp_path / "digests.json")
        made = make_nodes("pii", {"ingest": ingest, "pii": config}, digests, "none")["pii"]
        return made.key, dict(made.identity)

    off, identity = key_of(PiiConfig())
    assert identity["inputs"] == {} and "transformers" not in identity["libraries"]
    first, identity = key_of(PiiConfig(ner=folder))
    assert {"torch", "transformers", "tokenizers"} <= set(identity["libraries"])
    moved = folder.rename(tmp_path / "moved")
    assert key_of(PiiConfig(ner=moved))[0] == first != off, "the path is not in the key"
    assert key_of(PiiConfig(ner=moved, ner_min_score=0.9))[0] != first
    assert key_of(PiiConfig(ner=moved, ner_types=("NAME",)))[0] != first
    write_word_model(moved, WORDS | {"the": LABELS[1]})
    assert key_of(PiiConfig(ner=moved))[0] not in (first, off)
