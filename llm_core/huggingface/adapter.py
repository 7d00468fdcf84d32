"""Writes and reads adapters in the layout of PEFT: `adapter_config.json` and
`adapter_model.safetensors`.

PEFT has two factors for each linear layer of Hugging Face's model; ours belong to fused layers: the
rows of A are cut by part, those of B are put in the order of that model. Where PEFT adapts only
some parts of a layer, such as queries and values without keys, the other parts have zeros, which
training leaves zero: where both factors are zero, neither has a gradient. Settings that change the
result in a way not computed here are refused by name.

How the base rests (`BASE_RESTS`) is in the header of the file with the factors, where PEFT passes
over it: factors trained beside a base in 16 or 4 bits belong to those numbers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.durable import sync_file, sync_folder, write_durably
from llm_core.huggingface.files import ADAPTER_FILE, MAX_JSON_BYTES
from llm_core.huggingface.names import NUMBERS, Made, joined_rows, names_of, split_rows
from llm_core.json_files import UnreadableJson, read_json
from llm_core.model.adapter import AdaptedModelConfig, AdapterConfig, adapted
from llm_core.model.config import ModelConfig
from llm_core.tensor_files import facts_of, write_tensors

CONFIG_FILE, WEIGHTS_FILE = ADAPTER_FILE, "adapter_model.safetensors"
PREFIX = "base_model.model."
LENGTHS = "lora_magnitude_vector"
BASE_RESTS = ("base_dtype", "base_codes")
MAX_RANK = 1 << 16
"""Far above every published adapter. A rank is allocated before the factors are read, so a damaged
file must not decide it."""
FIXED: dict[str, Any] = {
    "peft_type": "LORA",
    "bias": "none",
    "lora_bias": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "modules_to_save": None,
    "layers_to_transform": None,
    "layer_replication": None,
    "target_parameters": None,
    "alora_invocation_tokens": None,
    "trainable_token_indices": None,
}
"""Settings of PEFT that are computed in this one way. Dropout is one of its training alone."""
ELSEWHERE = ("arrow_config", "kasa_config", "monteclora_config", "use_bdlora", "use_qalora")
"""Younger settings that compute something else where they are set. They are not written, as older
versions of PEFT do not know them."""
STARTS = (True, False, None, "eva", "gaussian", "orthogonal")
"""How factors may begin (`init_lora_weights`). All others, as "pissa", take the first factors off
the base when they are read."""


def write_adapter(
    folder: Path, config: AdaptedModelConfig, factors: Mapping[str, Tensor], base: Path | None
) -> None:
    """Write whole factors, by our names, as a PEFT folder. base: folder of the frozen model."""
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Tensor] = {}
    for layer, theirs in _layers(config).items():
        a, b = (factors[f"{layer}.lora.{each}"] for each in "ab")
        parts = zip(theirs, a.chunk(len(theirs)), _split(config, layer, b), strict=True)
        for name, part_a, part_b in parts:
            found[f"{PREFIX}{name}.lora_A.weight"] = part_a.contiguous()
            found[f"{PREFIX}{name}.lora_B.weight"] = part_b.contiguous()
        if config.adapter.decomposed:
            lengths = _split(config, layer, factors[f"{layer}.lora.m"][:, None])
            for name, part_m in zip(theirs, lengths, strict=True):
                found[f"{PREFIX}{name}.{LENGTHS}"] = part_m[:, 0].contiguous()
    adapter = config.adapter
    ends = sorted({re.sub(r"^.*\.\d+\.", "", name) for name in _all_theirs(config)})
    values = FIXED | {
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None if base is None else str(base),
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": 0.0,
        "use_rslora": adapter.scaling == "root_rank",
        "use_dora": adapter.decomposed,
        "target_modules": ends,
        "fan_in_fan_out": config.family == "gpt2",
        "init_lora_weights": True,
        "inference_mode": True,
    }
    about = {name: str(getattr(adapter, name)) for name in BASE_RESTS}
    facts = {name: facts_of(tensor) for name, tensor in found.items()}
    # Not by safetensors itself, which orders several notes at random.
    write_tensors(folder / WEIGHTS_FILE, facts, found.__getitem__, {"format": "pt", **about})
    sync_file(folder / WEIGHTS_FILE)
    write_durably(folder / CONFIG_FILE, json.dumps(values, indent=2, sort_keys=True) + "\n")
    sync_folder(folder)


def read_adapter_config(folder: Path) -> AdapterConfig:
    """The adapter of a PEFT folder without its targets, which PEFT names differently. Raises
    ConfigError for one that is not computed here."""
    file = folder / CONFIG_FILE
    if not file.is_file():
        raise ConfigError(f"{folder} has no {CONFIG_FILE}; give the folder of an adapter of PEFT")
    try:
        values = read_json(file, MAX_JSON_BYTES)
    except UnreadableJson as error:
        raise ConfigError(f"{file} cannot be read as JSON ({error}); fetch it again") from error
    if not isinstance(values, Mapping):
        raise ConfigError(f"{file} is not a mapping of names to values; fetch it again")
    for name, fixed in (FIXED | dict.fromkeys(ELSEWHERE)).items():
        if (found := values.get(name, fixed)) != fixed and (found or fixed):
            raise ConfigError(
                f"{file}: {name} ({str(found)[:80]}) must be {fixed}, the one way computed here;"
                " give another adapter, or merge it with PEFT"
            )
    if (start := values.get("init_lora_weights", True)) not in STARTS:
        raise ConfigError(
            f"{file}: init_lora_weights ({str(start)[:80]}) changes the frozen model too, so"
            " its factors do not fit the base; save the adapter with"
            " path_initial_model_for_weight_conversion in PEFT"
        )
    rank, alpha = values.get("r"), values.get("lora_alpha")
    if type(rank) is not int or not 0 < rank <= MAX_RANK:
        raise ConfigError(
            f"{file}: r ({str(rank)[:20]}) must be a whole number from 1 up to {MAX_RANK:,};"
            " fetch it again"
        )
    if type(alpha) is bool or not isinstance(alpha, int | float) or not 0 < alpha < math.inf:
        raise ConfigError(
            f"{file}: lora_alpha ({str(alpha)[:20]}) must be a positive number; fetch it again"
        )
    root, decomposed = (values.get(name, False) for name in ("use_rslora", "use_dora"))
    for name, value in (("use_rslora", root), ("use_dora", decomposed)):
        if type(value) is not bool:
            raise ConfigError(
                f"{file}: {name} ({str(value)[:20]}) must be true or false; fetch it again"
            )
    scaling = "root_rank" if root else "rank"
    return AdapterConfig("lora", rank, float(alpha), scaling, decomposed)  # type: ignore[arg-type]


def base_of(folder: Path) -> str:
    """What the adapter of a PEFT folder says its frozen model is. Raises ConfigError where it says
    nothing."""
    read_adapter_config(folder)
    base = read_json(folder / CONFIG_FILE, MAX_JSON_BYTES).get("base_model_name_or_path")
    if not base or not isinstance(base, str):
        raise ConfigError(f"{folder} names no frozen model; set export.base=FOLDER")
    return base


def adapted_as_in(folder: Path, model: ModelConfig) -> AdaptedModelConfig:
    """A model with factors in the layers for which a PEFT folder has some. Raises ConfigError where
    it has none."""
    adapter = replace(read_adapter_config(folder), **_base_rests(folder))
    whole, tensors = adapted(model, adapter), _read_tensors(folder)
    assert isinstance(whole, AdaptedModelConfig)
    targets = {
        layer.split(".")[-1]: None
        for layer, theirs in _layers(whole).items()
        if any(f"{PREFIX}{name}.lora_A.weight" in tensors for name in theirs)
    }
    if not targets:
        raise ConfigError(f"{folder} has no factors for this model; give an adapter of it")
    return replace(whole, adapter=replace(adapter, targets=tuple(targets)))


def check_adapter(folder: Path, config: AdapterConfig) -> None:
    """Raises ConfigError where a PEFT folder has another kind of factors than the config."""
    found = read_adapter_config(folder)
    _weights_file(folder)
    for name in ("rank", "alpha", "scaling", "decomposed"):
        wanted, there = getattr(config, name), getattr(found, name)
        if wanted != there:
            raise ConfigError(
                f"adapter.{name} ({wanted}) must be {there}, as in {folder}; set"
                f" adapter.{name}={there}"
            )


def read_adapter(folder: Path, config: AdaptedModelConfig) -> Made:
    """The factors of a PEFT folder by our names, each made when it is asked for. Raises ConfigError
    where they are not those of the config."""
    check_adapter(folder, config.adapter)
    rank, tensors = config.adapter.rank, _read_tensors(folder)
    makers: dict[str, Callable[[slice], Tensor]] = {}
    for layer, theirs in _layers(config).items():
        shape = config.factored[re.sub(r"^blocks\.\d+\.", "", layer)]
        sizes = [len(part) for part in _split(config, layer, torch.empty(shape.rows, 0))]
        of_a, of_b, of_m = [], [], []
        if not any(f"{PREFIX}{name}.lora_A.weight" in tensors for name in theirs):
            raise ConfigError(
                f"{folder} has no factors for {layer}; give the adapter of this model, or leave"
                f" {layer.split('.')[-1]} out of adapter.targets"
            )
        for name, num_rows in zip(theirs, sizes, strict=True):
            _require_both(tensors, name, folder)
            of_a.append(_take(tensors, f"{name}.lora_A.weight", (rank, shape.columns), folder))
            of_b.append(_take(tensors, f"{name}.lora_B.weight", (num_rows, rank), folder))
            if config.adapter.decomposed:
                if f"{PREFIX}{name}.{LENGTHS}" not in tensors:
                    raise ConfigError(
                        f"{folder}: {name}.{LENGTHS} is missing, and rows of a fused layer have"
                        " lengths together; give an adapter of all of its parts, or merge it with"
                        " PEFT"
                    )
                of_m.append(_take(tensors, f"{name}.{LENGTHS}", (num_rows,), folder)[:, None])
        makers[f"{layer}.lora.a"] = partial(_joined, of_a)
        makers[f"{layer}.lora.b"] = partial(joined_rows, config, f"{layer}.weight", of_b)
        if config.adapter.decomposed:
            makers[f"{layer}.lora.m"] = partial(_lengths, config, f"{layer}.weight", of_m)
    if tensors:
        raise ConfigError(
            f"{folder}: {min(tensors)} belongs to no layer in adapter.targets; add its layer"
            " there, or give an adapter of this model"
        )
    return Made(makers)


def _require_both(tensors: Mapping[str, Tensor], name: str, folder: Path) -> None:
    """A part has both factors or none: one alone is half of a file."""
    there = [f"{name}.lora_{each}.weight" for each in "AB"]
    missing = [one for one in there if PREFIX + one not in tensors]
    if len(missing) == 1:
        raise ConfigError(
            f"{folder}: {missing[0]} is missing beside its other factor; fetch it again"
        )


def _lengths(config: AdaptedModelConfig, name: str, parts: list[Tensor], rows: slice) -> Tensor:
    return joined_rows(config, name, parts, rows)[:, 0]


def _take(tensors: dict[str, Tensor], name: str, shape: tuple[int, ...], folder: Path) -> Tensor:
    """Take a factor out of those of the files; zeros where the adapter has none there."""
    factor = tensors.pop(PREFIX + name, None)
    if factor is None:
        return torch.zeros(shape)
    if factor.shape != shape or factor.dtype not in NUMBERS:
        raise ConfigError(
            f"{folder}: {name} has shape {tuple(factor.shape)} in {factor.dtype}, the configured"
            f" model needs {shape} in floating point; give an adapter of this model"
        )
    if not factor.isfinite().all():
        raise ConfigError(
            f"{folder}: {name} holds NaN or infinity; train it again at a lower rate, or fetch it"
            " again"
        )
    return factor


def _joined(parts: list[Tensor], rows: slice) -> Tensor:
    return torch.cat(parts)[rows]


def _split(config: AdaptedModelConfig, layer: str, b: Tensor) -> tuple[Tensor, ...]:
    return split_rows(config, f"{layer}.weight", b)


def _layers(config: AdaptedModelConfig) -> dict[str, list[str]]:
    """Our layers with factors → those of Hugging Face's model in each."""
    return {
        layer: [name.removesuffix(".weight") for name in names_of(config, f"{layer}.weight")]
        for number in range(config.num_layers)
        for layer in (f"blocks.{number}.{name}" for name in config.factored)
    }


def _all_theirs(config: AdaptedModelConfig) -> list[str]:
    return [name for names in _layers(config).values() for name in names]


def _weights_file(folder: Path) -> Path:
    file = folder / WEIGHTS_FILE
    if not file.is_file():
        raise ConfigError(
            f"{folder} has no {WEIGHTS_FILE}, and only safetensors are read; save it as such with"
            " PEFT"
        )
    return file


def _base_rests(folder: Path) -> dict[str, Any]:
    """What the writer noted of the base; nothing in files of PEFT. Raises ConfigError for a note
    that is not understood."""
    file = _weights_file(folder)
    try:
        with safe_open(file, "pt") as opened:
            noted = opened.metadata() or {}
    except SafetensorError as error:
        raise ConfigError(
            f"{file} is cut off or not a safetensors file ({error}); fetch it again"
        ) from error
    found = {name: noted[name] for name in BASE_RESTS if name in noted}
    for name, known in (("base_dtype", ("fp32", "bf16")), ("base_codes", ("none", "nf4"))):
        if found.get(name, known[0]) not in known:
            raise ConfigError(
                f"{file}: {name} ({found[name][:20]}) must be {' or '.join(known)}; fetch it again"
            )
    return found


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    file = _weights_file(folder)
    try:
        return load_file(file)
    except SafetensorError as error:
        raise ConfigError(
            f"{file} is cut off or not a safetensors file ({error}); fetch it again"
        ) from error
