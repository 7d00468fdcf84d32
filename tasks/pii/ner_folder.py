"""Reads what a folder with a named-entity model says of itself, before anything is loaded.

A folder is one that Transformers writes for token classification: `config.json`, `tokenizer.json`
and safetensors. Its labels become types of personal data by their names (`LABELS`), as published
models call them, or as `pii.ner_labels` says. Weights in pickles and code in the folder are
refused.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from llm_core.config import ConfigError, nearest

CONFIG_FILE, TOKENIZER_FILE = "config.json", "tokenizer.json"
LIBRARIES = ("tokenizers", "torch", "transformers")
"""Distributions whose version changes what a model finds."""
LABELS = {
    "NAME": (
        *("PER", "PERSON", "NAME", "PERSONNAME", "FULLNAME", "FIRSTNAME", "GIVENNAME"),
        *("MIDDLENAME", "LASTNAME", "SURNAME", "FAMILYNAME"),
    ),
    "POSTAL_ADDRESS": (
        *("ADDRESS", "POSTALADDRESS", "STREETADDRESS", "STREET", "STREETNAME", "BUILDING"),
        *("BUILDINGNUM", "BUILDINGNUMBER", "SECADDRESS", "SECONDARYADDRESS", "CITY", "STATE"),
        *("COUNTY", "ZIP", "ZIPCODE", "POSTCODE", "POSTALCODE"),
    ),
    "DATE_OF_BIRTH": ("DATEOFBIRTH", "DOB", "BIRTHDATE", "BIRTHDAY", "DATE"),
}
"""{type: labels}, in capitals without signs and numbers. Places (LOC, GPE) are not addresses."""
_PLACE_IN_ENTITY = re.compile("[BIESLU]-")


def model_files(folder: Path) -> dict[str, Path]:
    """{name: file} of what decides a model's results.

    Raises ConfigError for a missing extra, folder or file, and for weights that are pickled.
    """
    if importlib.util.find_spec("transformers") is None:
        raise ConfigError(
            "ner needs the package transformers; run pip install 'textmill[ner]', or leave ner out"
        )
    if not folder.is_dir():
        raise ConfigError(
            f"ner ({folder}) is not a folder; give one with {CONFIG_FILE}, {TOKENIZER_FILE} and"
            " model.safetensors, as save_pretrained of Transformers writes it"
        )
    for name, way in (
        (CONFIG_FILE, "copy the whole folder of the model"),
        (TOKENIZER_FILE, "save the tokenizer there as a fast one"),
    ):
        if not (folder / name).is_file():
            raise ConfigError(f"ner ({folder}) has no {name}; {way}")
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise ConfigError(
            f"ner ({folder}) has no safetensors, and pickled weights are never read; save the model"
            " again with save_pretrained of Transformers"
        )
    index = sorted(folder.glob("*.safetensors.index.json"))
    files = [folder / CONFIG_FILE, folder / TOKENIZER_FILE, *weights, *index]
    return {f"ner/{file.name}": file for file in files}


def label_types(folder: Path, types: Sequence[str], given: Mapping[str, str]) -> list[str | None]:
    """For each label of the model, in order of its numbers, the type in `types` that it stands for.

    Raises ConfigError where the folder holds another kind of model, code of its own, or no label
    for a type.
    """
    labels = _bare_labels(folder)
    found = known_types(folder, given)
    for kind in types:
        if kind not in found:
            raise ConfigError(
                f"ner_types ({kind}) has no label in the model {folder}; name one with"
                f" ner_labels={{LABEL: {kind}}}, or leave the type out; labels:"
                f" {', '.join(sorted(set(labels)))}"
            )
    return [kind if kind in types else None for kind in found]


def known_types(folder: Path, given: Mapping[str, str]) -> list[str | None]:
    """The same for all types."""
    labels = _bare_labels(folder)
    for label in given:
        if label not in labels:
            raise ConfigError(
                f"ner_labels ({label}) is not a label of the model {folder};"
                f" {nearest(label, sorted(set(labels)))}"
            )
    known = {label: kind for kind, several in LABELS.items() for label in several}
    return [given.get(label, known.get(re.sub("[^A-Z]", "", label.upper()))) for label in labels]


def _bare_labels(folder: Path) -> list[str]:
    """Labels without their place in an entity."""
    try:
        config = json.loads((folder / CONFIG_FILE).read_bytes())
        architecture = str(config["architectures"][0])
        numbered = {int(number): str(label) for number, label in config["id2label"].items()}
        labels = [numbered[number] for number in range(len(numbered))]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ConfigError(
            f"ner ({folder}): {CONFIG_FILE} does not name an architecture and labels ({error!r});"
            " copy the model again"
        ) from error
    if not architecture.endswith("ForTokenClassification"):
        raise ConfigError(
            f"ner ({folder}) is a {architecture}; give a model for token classification"
        )
    if "auto_map" in config:
        raise ConfigError(
            f"ner ({folder}) brings code of its own (auto_map), which is never run; give a model"
            " that Transformers has the code for"
        )
    return [_PLACE_IN_ENTITY.sub("", label, count=1) for label in labels]
