"""Checkpoints that do not know the layout: save with one, load with another, bit for bit.

`<root>/step-00000120/` holds a torch.distributed.checkpoint of plain tensors (weights by name, and the two AdamW moments of
each) and `progress.json`, which lists the files with their sizes. It is written under a temporary name, synced and
renamed, so a kill while saving leaves the one before in force; a folder that lost bytes later is passed over too.
Learning rate and data order are functions of the step, so the step is all the rest there is to save.

Only our own folders are loaded. DCP keeps its index as a pickle: it goes through an unpickler that knows the index
classes and nothing else, here and nowhere else.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from llm_core.optim import MOMENTS, moment, set_step
from llm_core.parallel.layout import Layout
from llm_core.parallel.places import local, place_of, placed_weights
from llm_core.parallel.ranks import Ranks

KEEP = 2
PROGRESS_FILE = "progress.json"


class CheckpointError(ValueError):
    """A checkpoint that must not be loaded: of another model, or with an index that holds foreign objects."""


def save_checkpoint(root: Path, step: int, layout: Layout, optimizer: torch.optim.AdamW, ranks: Ranks) -> None:
    """Write `step`, then drop all but the newest two. Every rank must call it."""
    final, temporary = root / _name(step), root / f".{_name(step)}.tmp"
    if ranks.is_first:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    ranks.barrier()
    with _single_process_is_fine():
        dcp.save(
            _state(layout, optimizer), storage_writer=dcp.FileSystemWriter(temporary, single_file_per_rank=True, sync_files=True)
        )
    if ranks.is_first:
        files = {file.name: file.stat().st_size for file in sorted(temporary.iterdir())}
        _write_synced(temporary / PROGRESS_FILE, json.dumps({"step": step, "files": files}, sort_keys=True))
        _sync_folder(temporary)
        shutil.rmtree(final, ignore_errors=True)  # a damaged folder of this step, passed over when the run resumed
        os.rename(temporary, final)
        _sync_folder(root)
        for old in _folders(root)[:-KEEP]:
            shutil.rmtree(old)
    ranks.barrier()


def load_checkpoint(root: Path, layout: Layout, optimizer: torch.optim.AdamW) -> int:
    """Fill model and optimizer from the newest sound checkpoint; the step it was saved at, or 0 where there is none."""
    sound = [folder for folder in _folders(root) if _is_sound(folder)]
    if not sound:
        return 0
    step = int(json.loads((sound[-1] / PROGRESS_FILE).read_text("utf-8"))["step"])
    # The tensors are read into place: each rank reads the pieces that its layout asks for.
    with _single_process_is_fine():
        dcp.load(_state(layout, optimizer), storage_reader=_Reader(sound[-1]))
    _fill_copies(layout, optimizer)
    set_step(optimizer, step)
    return step


def _state(layout: Layout, optimizer: torch.optim.AdamW) -> dict[str, Any]:
    """Tensors by global names; a copy of a tied weight goes by the name of the weight, once."""
    state: dict[str, Tensor] = {}
    for name, parameter, place in placed_weights(layout):
        if f"model.{name}" in state:
            continue
        state[f"model.{name}"] = place.view(local(parameter.detach()))
        if layout.shares_state:
            place = place_of(layout, name, parameter, place.shape, rows=True)
        for kind in MOMENTS:
            state[f"optimizer.{name}.{kind}"] = place.view(moment(optimizer, parameter, kind))
    return state


def _fill_copies(layout: Layout, optimizer: torch.optim.AdamW) -> None:
    """A process that holds both ends of a pipeline has read a tied weight into the first."""
    read: dict[str, nn.Parameter] = {}
    for name, parameter, _ in placed_weights(layout):
        source = read.setdefault(name, parameter)
        if source is not parameter:
            local(parameter.detach()).copy_(local(source.detach()))
            for kind in MOMENTS:
                moment(optimizer, parameter, kind).copy_(moment(optimizer, source, kind))


@contextmanager
def _single_process_is_fine() -> Iterator[None]:
    """DCP warns where there is no process group; one process needs none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _folders(root: Path) -> list[Path]:
    """Checkpoint folders, oldest first."""
    return sorted(root.glob("step-*"))


def _is_sound(folder: Path) -> bool:
    try:
        files = json.loads((folder / PROGRESS_FILE).read_text("utf-8"))["files"]
        return all((folder / name).stat().st_size == size for name, size in files.items())
    except (FileNotFoundError, json.JSONDecodeError, KeyError):
        return False


def _write_synced(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class IndexUnpickler(pickle.Unpickler):
    """Knows the classes of a DCP index; anything else is refused before it is made."""

    ALLOWED = frozenset(
        {
            ("torch", "Size"),
            ("torch", "device"),
            ("torch.serialization", "_get_layout"),
            ("pathlib", "PosixPath"),
            ("pathlib._local", "PosixPath"),  # its name from Python 3.13 on
            *(("torch.distributed.checkpoint.metadata", name) for name in ("Metadata", "MetadataIndex", "StorageMeta")),
            *(("torch.distributed.checkpoint.metadata", name) for name in ("TensorStorageMetadata", "TensorProperties")),
            *(("torch.distributed.checkpoint.metadata", name) for name in ("ChunkStorageMetadata", "_MEM_FORMAT_ENCODING")),
            ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self.ALLOWED or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise CheckpointError(f"checkpoint index holds {module}.{name}, which no checkpoint of ours does; delete the checkpoint")


class _Reader(dcp.FileSystemReader):
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with (Path(self.path) / ".metadata").open("rb") as stream:
            metadata: Metadata = IndexUnpickler(stream).load()
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata
