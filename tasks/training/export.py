"""Writes the model of a step as a Hugging Face folder, in the numbers that are asked for.

In: the work directory of a training that may go on, whose checkpoint is held meanwhile, or a model
folder. Out: a folder with the tokenizer beside the weights, cut into files of `PART_BYTES`. Cost:
memory for one tensor; of a checkpoint its files are read twice, the first time for their digests.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llm_core.config import ConfigError

if TYPE_CHECKING:
    import torch

NO_ADAPTER = "export.adapter (peft) needs a training with an adapter, {} has none; leave it out"


@dataclass(frozen=True)
class ExportConfig:
    """How `textmill export` writes weights."""

    dtype: Literal["as_is", "float32", "bfloat16", "float16"] = "as_is"
    """Numbers of the weights in the files. as_is: those that training keeps, float32 as a rule."""
    adapter: Literal["merged", "peft"] = "merged"
    """Of a training with an adapter: the whole model with the factors merged into it, or the
    factors alone in PEFT's format."""
    base: Path | None = None
    """Frozen model that a PEFT folder is merged with. Null: the one that the folder names."""

    def __post_init__(self) -> None:
        if self.adapter == "peft" and self.dtype != "as_is":
            raise ConfigError(
                f"export.dtype ({self.dtype}) is for whole models, export.adapter=peft writes"
                " factors as they were trained; leave it out"
            )


def export_checkpoint(
    workdir: Path, step: int | None, out: Path, config: ExportConfig
) -> dict[str, Any]:
    """Write the weights of a checkpoint of a trainer to the new folder `out`; step None: of the
    newest. Raises ConfigError."""
    from llm_core.checkpoint.index import CheckpointError
    from llm_core.checkpoint.weights import MODEL, open_weights
    from llm_core.data.shards import open_shards
    from llm_core.huggingface.export import ModelWriter
    from llm_core.optim.groups import has_frozen
    from llm_core.optim.method import AVERAGE
    from llm_core.tensor_files import DTYPES
    from llm_core.training.made_with import BASE_DIGEST
    from llm_core.training.run_config import read_run_config
    from tasks.tokenizer.encoder import export_hugging_face
    from tasks.training.exported_adapter import factors_alone, with_base

    run = read_run_config(workdir / "config.json")
    is_adapted = run.adapter.kind != "none"
    if config.base is not None:
        raise ConfigError(
            f"export.base ({config.base}) is for an adapter of PEFT; leave it out, the base of"
            f" {workdir} is in its config"
        )
    if config.adapter == "peft" and not is_adapted:
        raise ConfigError(NO_ADAPTER.format(workdir))
    if has_frozen(run.optim):
        raise ConfigError(
            "optim.groups freeze weights, which checkpoints do not hold; export the model that the"
            " run publishes, and others by train.keep_models_every"
        )
    shards = open_shards(run.shards, "train")
    published = AVERAGE if run.train.publish == "average" else None
    try:
        with open_weights(workdir / "checkpoints", step) as saved, _new(out) as folder:
            if config.adapter == "peft":
                dtype = factors_alone(run, saved.each(published), folder)
                return _report(out, dtype) | {"step": saved.step}
            names = (name for name in saved.index.tensors if name.startswith(MODEL))
            dtype = _dtype(config) or DTYPES[saved.index.tensors[next(names)].dtype]
            writer = ModelWriter(run.model, dtype, folder, shards.eos_id, shards.turn_end_ids)
            weights = saved.each(published)
            if is_adapted:
                weights = with_base(run, weights, saved.made_with.get(BASE_DIGEST))
            for name, weight in weights:
                writer.put(name, weight)
            export_hugging_face(run.bytes_per_token.parent, folder)
            writer.finish()
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
    return _report(out, dtype) | {"step": saved.step}


def export_folder(model: Path, out: Path, config: ExportConfig) -> dict[str, Any]:
    """Write the weights of a model folder to the new folder `out`. Raises ConfigError, also where
    they are rounded."""
    from llm_core.huggingface.expert_names import BIAS
    from llm_core.huggingface.files import (
        PART_BYTES,
        FolderWriter,
        copy_beside,
        read_tensors,
        read_values,
    )
    from llm_core.huggingface.rounded import is_rounded
    from llm_core.tensor_files import Facts
    from llm_core.training.adapted import ADAPTER_FOLDER
    from tasks.training.exported_adapter import is_adapter, merge_folder

    if is_adapter(model):
        if config.adapter == "peft":
            raise ConfigError(f"{model} is an adapter of PEFT already; leave out export.adapter")
        with _new(out) as folder:
            return _report(out, merge_folder(model, config.base, folder, _dtype(config)))
    if config.base is not None:
        raise ConfigError(
            f"export.base ({config.base}) is for an adapter of PEFT, {model} is none; leave it out,"
            " or give such a folder"
        )
    if config.adapter == "peft":
        if not is_adapter(model / ADAPTER_FOLDER):
            raise ConfigError(NO_ADAPTER.format(model))
        with _new(out) as folder:
            shutil.copytree(model / ADAPTER_FOLDER, folder, dirs_exist_ok=True)
            return _report(out, None)

    values, weights = read_values(model), read_tensors(model)
    if is_rounded(values):
        raise ConfigError(f"the weights of {model} are quantized; give the original model")
    dtype = _dtype(config) or next(iter(weights.values())).dtype
    said = str(dtype).removeprefix("torch.")
    named = {name: said for name in ("dtype", "torch_dtype") if name in values}
    dtypes = {name: torch.float32 if name.endswith(BIAS) else dtype for name in weights}
    facts = {name: Facts(dtypes[name], tuple(weight.shape)) for name, weight in weights.items()}
    with _new(out) as folder:
        writer = FolderWriter(folder, facts, {**values, **named}, PART_BYTES)
        for name, weight in weights.items():
            writer.put(name, weight.to(dtypes[name]))
        copy_beside(model, folder)
        writer.finish()
    return _report(out, dtype)


@contextmanager
def _new(out: Path) -> Iterator[Path]:
    """A new folder, which is gone again where writing fails."""
    if out.exists():
        raise ConfigError(f"out ({out}) exists already; name a new folder")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"{out.absolute().parent} is not a folder; make it, or name another out")
    out.mkdir()
    try:
        yield out
    except BaseException:
        shutil.rmtree(out)
        raise


def _dtype(config: ExportConfig) -> torch.dtype | None:
    import torch

    found: torch.dtype | None = None if config.dtype == "as_is" else getattr(torch, config.dtype)
    return found


def _report(out: Path, dtype: torch.dtype | None) -> dict[str, Any]:
    """dtype: of what was written; None: float32, as the factors of a published model."""
    stored = sum(file.stat().st_size for file in out.glob("*.safetensors"))
    said = str(dtype or "float32").removeprefix("torch.")
    return {"folder": str(out), "dtype": said, "stored_bytes": stored}
