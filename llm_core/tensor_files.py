"""Writes safetensors files one tensor at a time, so that memory holds one of them.

The bytes are those of `safetensors.torch.save_file`, which wants all tensors at once: eight bytes
with the length of a JSON header, the header with each tensor's numbers, shape and place, padded
with blanks, then the tensors, those of wide numbers first.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

DTYPES = {
    "I64": torch.int64,
    "F64": torch.float64,
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I16": torch.int16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""By the names that files give them, in the order in which files have them."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}
ALIGNMENT = 8


@dataclass(frozen=True)
class Facts:
    """Of a tensor, without its numbers."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def facts_of(tensor: Tensor) -> Facts:
    return Facts(tensor.dtype, tuple(tensor.shape))


def order_of(facts: Mapping[str, Facts]) -> list[str]:
    """The names of tensors as a file has them."""
    places = list(NAMES)
    return sorted(facts, key=lambda name: (places.index(facts[name].dtype), name))


class TensorFile:
    """A file that is being written, whose tensors come in any order; close it when it has all.

    about: texts for the header. Raises OSError where the file cannot be written.
    """

    def __init__(
        self, path: Path, facts: Mapping[str, Facts], about: Mapping[str, str] | None = None
    ) -> None:
        names = order_of(facts)
        header = _header(names, facts, about)
        sizes = (facts[name].num_bytes for name in names)
        places = itertools.accumulate(sizes, initial=len(header))
        self._facts, self._places = facts, dict(zip(names, places, strict=False))
        self._left = set(names)
        self._stream = path.open("wb")
        self._stream.write(header)

    def put(self, name: str, tensor: Tensor) -> None:
        """Write one tensor to its place; from a GPU it comes through main memory."""
        assert facts_of(tensor) == self._facts[name], (name, facts_of(tensor), self._facts[name])
        self._left.discard(name)
        flat = tensor.detach().cpu().contiguous().view(-1)
        self._stream.seek(self._places[name])
        self._stream.write(memoryview(flat.view(torch.uint8).numpy()))  # type: ignore[arg-type]

    def close(self) -> None:
        """Close the file, which must have all tensors: a missing one would be read as zeros."""
        self._stream.close()
        assert not self._left, f"never written: {', '.join(sorted(self._left))}"


def write_tensors(
    path: Path,
    facts: Mapping[str, Facts],
    tensor_of: Callable[[str], Tensor],
    about: Mapping[str, str] | None = None,
) -> None:
    """Write tensors by name. `tensor_of` is asked in the order of the file, once for each name."""
    file = TensorFile(path, facts, about)
    for name in order_of(facts):
        file.put(name, tensor_of(name))
    file.close()


def _header(
    names: Sequence[str], facts: Mapping[str, Facts], about: Mapping[str, str] | None
) -> bytes:
    header: dict[str, object] = {"__metadata__": dict(about)} if about else {}
    begin = 0
    for name in names:
        fact, end = facts[name], begin + facts[name].num_bytes
        header[name] = {
            "dtype": NAMES[fact.dtype],
            "shape": list(fact.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(-(-len(text) // ALIGNMENT) * ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
