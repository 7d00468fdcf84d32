"""Reads the state of a run from files: each rank reads the pieces that its layout needs, straight
into place.

Only our own folders are loaded, after their digests were looked at. DCP keeps its index as a
pickle: its opcodes are looked through (llm_core.checkpoint.opcodes), then it goes through an
unpickler that knows the index classes and nothing else, here and nowhere else.
"""

from __future__ import annotations

import io
import pickle
import warnings
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from llm_core.checkpoint.opcodes import require_bounded
from llm_core.checkpoint.writer import gather_objects
from llm_core.json_files import is_plain_name
from llm_core.parallel.ranks import Ranks

Shape = tuple[int, ...]
T = TypeVar("T")


class CheckpointError(ValueError):
    """A checkpoint that must not be loaded: of another model, or with an index that holds foreign
    objects."""


def read_into(state: dict[str, Tensor], folder: Path, ranks: Ranks) -> None:
    """Fill tensors by name. Every rank must call it. Raises CheckpointError unless the folder holds
    this state and no more."""
    wanted = {name: tuple(tensor.shape) for name, tensor in state.items()}
    for of_rank in gather_objects(wanted, ranks):
        wanted |= of_rank
    if difference := difference_to(wanted, _shapes(folder)):
        raise CheckpointError(
            f"checkpoint {folder} is of another run: {difference}; give it the model, optim and"
            " train.dtype it was made with, or this run a work directory of its own"
        )
    with warnings.catch_warnings():
        # One process needs no process group.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(state, storage_reader=_Reader(folder))


def difference_to(wanted: dict[str, Shape], there: dict[str, Shape]) -> str | None:
    """The first tensor in order that a state has and a checkpoint has not, or in another shape, or
    the other way round."""
    for name in sorted(wanted.keys() | there.keys()):
        if name not in there:
            return f"it has no {name}"
        if name not in wanted:
            return f"it has {name}, which this run has not"
        if wanted[name] != there[name]:
            return f"its {name} is {there[name]}, that of this run {wanted[name]}"
    return None


def _shapes(folder: Path) -> dict[str, Shape]:
    tensors = read_index(folder).state_dict_metadata
    return {name: tuple(facts.size) for name, facts in tensors.items()}


def read_index(folder: Path) -> Metadata:
    """The index of a checkpoint: its tensors, their pieces and where these are.

    Raises CheckpointError where it is damaged or holds foreign objects, and OSError where it cannot
    be read, which is not damage.
    """
    data = (folder / ".metadata").read_bytes()
    try:
        require_bounded(data)
        index = IndexUnpickler(io.BytesIO(data)).load()
        _require_index(index)
    except CheckpointError:
        raise
    except Exception as error:
        # A damaged pickle gives the classes of an index anything: what they raise has no bounds.
        what = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{_DAMAGED.format(folder=folder)} ({what})") from error
    return cast(Metadata, index)


_DAMAGED = "index of checkpoint {folder} is damaged; restore or delete the checkpoint"


def _require_index(index: object) -> None:
    """Raise TypeError or AttributeError unless its tensors lie in files of its folder."""
    metadata = _require(Metadata, index)
    _require(StorageMeta, metadata.storage_meta or StorageMeta())
    for name, tensor in _require(dict, metadata.state_dict_metadata).items():
        _require(str, name)
        _require_shape(_require(TensorStorageMetadata, tensor).size)
        _require(TensorProperties, tensor.properties)
        for chunk in _require(list, tensor.chunks):
            _require_shape(_require(ChunkStorageMetadata, chunk).offsets)
            _require_shape(chunk.sizes)
    for piece, place in _require(dict, metadata.storage_data).items():
        _require(str, _require(MetadataIndex, piece).fqn)
        if not is_plain_name(_require(_StorageInfo, place).relative_path):
            raise TypeError(f"{place.relative_path!r} is not the name of a file")
        _require_shape((place.offset, place.length))


def _require_shape(sizes: object) -> None:
    for size in _require(tuple, sizes):
        if _require(int, size) < 0:
            raise TypeError(f"{size} is negative")


def _require(kind: type[T], value: Any) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} where {kind.__name__} is expected")
    return value


class IndexUnpickler(pickle.Unpickler):
    """Knows the classes of a DCP index; anything else is refused before it is made."""

    ALLOWED = frozenset(
        {
            ("torch", "Size"),
            ("torch", "device"),
            ("torch.serialization", "_get_layout"),
            ("pathlib", "PosixPath"),
            ("pathlib._local", "PosixPath"),  # its name from Python 3.13 on
            *(
                ("torch.distributed.checkpoint.metadata", name)
                for name in ("Metadata", "MetadataIndex", "StorageMeta")
            ),
            *(
                ("torch.distributed.checkpoint.metadata", name)
                for name in ("TensorStorageMetadata", "TensorProperties")
            ),
            *(
                ("torch.distributed.checkpoint.metadata", name)
                for name in ("ChunkStorageMetadata", "_MEM_FORMAT_ENCODING")
            ),
            ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self.ALLOWED or (
            module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        ):
            return super().find_class(module, name)
        raise CheckpointError(
            f"checkpoint index holds {module}.{name}, which no checkpoint of ours does; delete the"
            " checkpoint"
        )


class _Reader(dcp.FileSystemReader):
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        metadata = read_index(Path(self.path))
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata
