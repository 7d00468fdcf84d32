"""Writes a model with rounded weights as a folder, and reads one.

`config.json` is that of the model before, with

    "quantization_config": {
        "quant_method": "textmill", "version": 1,
        "formats": {"embedding.weight": "int8", "blocks.0.attention.qkv.weight": "int4", …}
    }

which other readers refuse by its name. Tensors have our names (`Transformer.state_dict()`): plain
ones that of the weight, rounded ones `NAME.numbers`, `NAME.scale` and, in int4, `NAME.offset`;
`llm_core.quantize.formats` says what they hold. A tied head is stored once, as the embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.huggingface.config import model_config
from llm_core.huggingface.files import CONFIG_FILE, PART_BYTES, read_tensors, write_folder
from llm_core.huggingface.names import NUMBERS
from llm_core.model.config import ModelConfig
from llm_core.model.transformer import Transformer
from llm_core.quantize.formats import FORMATS, Format, Rounded, stored_shapes
from llm_core.quantize.model import Formats, assemble, formats_of, rounded_weights, shapes

KEY = "quantization_config"
METHOD, VERSION = "textmill", 1


def is_rounded(values: Any) -> bool:
    """Whether a `config.json` is that of a folder written here."""
    about = values.get(KEY) if isinstance(values, Mapping) else None
    return isinstance(about, Mapping) and about.get("quant_method") == METHOD


def write_rounded(
    model: Transformer, values: Mapping[str, Any], folder: Path, part_bytes: int = PART_BYTES
) -> None:
    """Write a model of which weights are rounded. values: the `config.json` of the model before.

    part_bytes: what a file holds at most, but for a tensor that is larger.
    """
    rounded, state = rounded_weights(model), model.state_dict()
    tensors = {name: state[name] for name in shapes(model.config) if name not in rounded}
    for name, weight in rounded.items():
        tensors |= {f"{name}.{part}": tensor for part, tensor in weight.tensors().items()}
    formats = {name: weight.format for name, weight in rounded.items()}
    about = {"quant_method": METHOD, "version": VERSION, "formats": formats}
    write_folder(folder, tensors, {**values, KEY: about}, part_bytes)


def read_rounded(
    folder: Path,
    values: Mapping[str, Any],
    dtype: torch.dtype,
    device: torch.device | str,
    weights: Format | None = None,
) -> Transformer:
    """The model of a folder, as `export.load_model`. Raises ConfigError, also for `weights` in
    another format than the folder has."""
    try:
        config = model_config({name: value for name, value in values.items() if name != KEY})
        tensors = read_tensors(folder)
        formats = _formats(values[KEY], config, len(tensors))
        if weights is not None and weights not in formats.values():
            raise ConfigError(
                f"its weights are in {' and '.join(sorted(set(formats.values())))}, and are not"
                f" rounded again to {weights}; give the original model"
            )
        shapes_of = shapes(config)
        _check(tensors, shapes_of, formats)
    except ConfigError as error:
        raise ConfigError(f"{folder}: {error}") from error
    except KeyError as error:
        raise ConfigError(
            f"{folder / CONFIG_FILE} has no {error.args[0]}; write the folder again with textmill"
            " quantize"
        ) from error

    def rounded(name: str, format: Format) -> Rounded:
        parts = {part: tensors.get(f"{name}.{part}") for part in ("numbers", "scale", "offset")}
        return Rounded(format, shapes_of[name][1], **parts)

    return assemble(config, formats, rounded, tensors.__getitem__, dtype, device)


def _formats(about: Mapping[str, Any], config: ModelConfig, num_tensors: int) -> dict[str, Format]:
    """Formats by name of weight, checked."""
    if about["version"] != VERSION:
        raise ConfigError(
            f"{KEY}.version ({str(about['version'])[:20]}) must be {VERSION}; write the folder"
            " again with this version of textmill quantize"
        )
    if config.num_layers > num_tensors:
        raise ConfigError(
            f"num_hidden_layers ({config.num_layers:,}) is wrong, the files hold {num_tensors}"
            " tensors; give the folder of one whole model"
        )
    formats = about["formats"]
    known = formats_of(config, "int8").keys()
    if not isinstance(formats, Mapping) or not formats:
        raise ConfigError(f"{KEY}.formats must map names of weights to formats")
    for name, format in formats.items():
        if name not in known or format not in FORMATS:
            raise ConfigError(
                f"{KEY}.formats has {str(name)[:80]}: {str(format)[:20]}, which is not one of"
                f" {', '.join(FORMATS)} for a matrix of this model; write the folder again with"
                " textmill quantize"
            )
    if formats.get("embedding.weight", "int8") == "int4":
        raise ConfigError(
            f"{KEY}.formats has the embedding in int4, which has no scales of rows; write the"
            " folder again with textmill quantize"
        )
    return dict(formats)


def _check(
    tensors: Mapping[str, Tensor], shapes_of: Mapping[str, torch.Size], formats: Formats
) -> None:
    """Raises ConfigError where tensors are missing, left over, or of another shape or dtype."""
    wanted: dict[str, tuple[tuple[int, ...], tuple[torch.dtype, ...]]] = {}
    for name, shape in shapes_of.items():
        if name in formats:
            parts = stored_shapes(formats[name], *shape)
            wanted |= {f"{name}.{part}": (size, (dtype,)) for part, (size, dtype) in parts.items()}
        else:
            wanted[name] = tuple(shape), NUMBERS
    if odd := sorted(wanted.keys() ^ tensors.keys()):
        verb = "is missing" if odd[0] in wanted else "is not part of such a model"
        raise ConfigError(f"{odd[0]} {verb}; write the folder again with textmill quantize")
    for name, (size, dtypes) in wanted.items():
        found = tensors[name]
        if tuple(found.shape) != size or found.dtype not in dtypes:
            raise ConfigError(
                f"{name} is {tuple(found.shape)} in {_plain(found.dtype)}, in the configured model"
                f" {size} in {_plain(dtypes[0])}; write the folder again with textmill quantize"
            )


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
