"""Writes a trained model as a Hugging Face folder, and reads one.

Which names and settings stand for which is said in `llm_core.huggingface.names` and
`llm_core.huggingface.config`, how files are laid out in `llm_core.huggingface.files`. The bytes
written depend on the weights and the config alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.huggingface.config import hugging_face_config, model_config
from llm_core.huggingface.expert_names import BIAS
from llm_core.huggingface.files import (
    CONFIG_FILE,
    PART_BYTES,
    FolderWriter,
    read_tensors,
    read_values,
)
from llm_core.huggingface.names import Made, from_hugging_face, parts_of, to_hugging_face
from llm_core.huggingface.rounded import KEY, is_rounded, read_rounded
from llm_core.model.config import ModelConfig
from llm_core.model.transformer import Transformer
from llm_core.quantize.formats import Format, round_weight
from llm_core.quantize.model import assemble, formats_of
from llm_core.tensor_files import Facts


class ModelWriter:
    """A Hugging Face folder that is being written from whole weights, in any order: beside them
    memory holds one.

    dtype: of weights in the files; biases of routers stay float32. turn_end_ids: what ends an
    answer too. part_bytes: what a file holds at most, but for a tensor that is larger.
    """

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        folder: Path,
        eos_id: int | None = None,
        turn_end_ids: Sequence[int] = (),
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._config, self._dtype = config, dtype
        with torch.device("meta"):
            shapes = to_hugging_face(config, Transformer(config).state_dict())
        facts = {
            name: Facts(self._dtype_of(name), tuple(tensor.shape))
            for name, tensor in shapes.items()
        }
        name = str(dtype).removeprefix("torch.")
        values = hugging_face_config(config, name, eos_id, turn_end_ids)
        self._folder = FolderWriter(folder, facts, values, part_bytes)

    def put(self, name: str, weight: Tensor) -> None:
        """Write a weight, named as in `Transformer.state_dict()`."""
        for theirs, part in parts_of(self._config, name, weight).items():
            self._folder.put(theirs, part.to(self._dtype_of(theirs)))

    def _dtype_of(self, theirs: str) -> torch.dtype:
        # In 16 bits the steps of a router's bias are lost.
        return torch.float32 if theirs.endswith(BIAS) else self._dtype

    def finish(self) -> None:
        """After all weights: what was written is a model from now on."""
        self._folder.finish()


def export_model(
    config: ModelConfig,
    state: Mapping[str, Tensor],
    folder: Path,
    eos_id: int | None = None,
    turn_end_ids: Sequence[int] = (),
    part_bytes: int = PART_BYTES,
) -> None:
    """Write whole (unsharded) weights, named as in `Transformer.state_dict()`, as `ModelWriter`, in
    the numbers of the embedding."""
    dtype = state["embedding.weight"].dtype
    writer = ModelWriter(config, dtype, folder, eos_id, turn_end_ids, part_bytes)
    for name, weight in state.items():
        writer.put(name, weight)
    writer.finish()


def load_model(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    weights: Format | None = None,
) -> Transformer:
    """The model of a Hugging Face folder, or of one that `textmill quantize` wrote, in evaluation
    mode.

    dtype: of activations, and of weights that are not rounded. weights: round those of blocks and
    head on the way; None leaves them as the folder has them. Tensors are converted and placed one
    at a time: beyond the model, memory holds one of them. Raises ConfigError.
    """
    values = read_values(folder)
    if is_rounded(values):
        return read_rounded(folder, values, dtype, device, weights)
    config = _config_of(folder, values)
    # First: what the files hold bounds what the config may claim.
    found = read_weights(folder, config)
    formats = {} if weights is None else formats_of(config, weights)
    return assemble(
        config,
        formats,
        lambda name, format: round_weight(found[name].to(device), format),
        found.__getitem__,
        dtype,
        device,
    )


def read_config(folder: Path) -> ModelConfig:
    """Raises ConfigError where the folder has no `config.json` or one of another kind of model."""
    return _config_of(folder, read_values(folder))


def read_shape(folder: Path) -> ModelConfig:
    """As `read_config`, also of a folder whose weights are rounded."""
    return _config_of(folder, {n: value for n, value in read_values(folder).items() if n != KEY})


def _config_of(folder: Path, values: Any) -> ModelConfig:
    file = folder / CONFIG_FILE
    try:
        return model_config(values)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    except KeyError as error:
        raise ConfigError(
            f"{file} has no {error.args[0]}; give the folder of a Hugging Face model"
        ) from error


def read_weights(folder: Path, config: ModelConfig) -> Made:
    """Weights named as in `Transformer.state_dict()`, on the CPU, in the numbers of the files, each
    read when it is asked for.

    Raises ConfigError for a tensor that does not fit.
    """
    weights = read_tensors(folder)
    try:
        return from_hugging_face(config, weights)
    except ConfigError as error:
        raise ConfigError(f"{folder}: {error}") from error
