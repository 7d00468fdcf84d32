"""Starts the decode step of one model, cache and number of rows: ids in, logits out, in one kernel.

At few rows a decode step reads every weight once, so memory decides its speed; but its operations
wait for one another five times per layer, and a kernel that waits reads nothing. This one stays on
the device for the whole step and keeps reading (`step.cu`). It is compiled for the shapes of the
model in some seconds.

Of bfloat16 weights of the Llama and Qwen families on Hopper GPUs; `why_not` names what else is
asked for. Rows are few because activations of all of them lie in shared memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# B rows · M blocks of a row at most · V vocabulary

FOLDER = Path(__file__).parent
PARTS = ("shapes", "messages", "products", "attention", "step")

WARPS, SUMS, CHUNK, PRODUCERS, THREADS = 8, 16, 512, 2, 384
BARRIER_BYTES = 1024
PLACE_BYTES = 16 * (2 * CHUNK + 16)
MAX_SPLITS = 32
MAX_ROWS = 4
"""Above it, products of tensor cores over all rows are faster."""

LAYER_WEIGHTS = (
    "attention_norm", "qkv", "qkv_bias", "q_norm", "k_norm", "out", "ffn_norm", "gate_up", "down",
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Of a decoder with RMSNorm, SwiGLU and rotary positions."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dim: int
    ffn_dim: int
    ffn_block: int
    """Channels of gate that lie together, before as many of up."""
    vocab_size: int
    norm_eps: float

    @property
    def attention_dim(self) -> int:
        return self.num_heads * self.head_dim


def why_not(shape: Shape, rows: int, device: torch.device, dtype: torch.dtype) -> str | None:
    """What keeps the kernel from this model; None where nothing does."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9:
        return "needs a Hopper GPU"
    if dtype != torch.bfloat16:
        return f"needs bfloat16 weights, not {dtype}"
    if shape.head_dim not in (64, 128):
        return f"needs heads of 64 or 128 channels, not {shape.head_dim}"
    widths = shape.dim, shape.attention_dim, shape.ffn_dim
    if any(width % 64 for width in widths):
        return f"needs widths that 64 divides, not {widths}"
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    if rows * shape.num_kv_heads > processors:
        return f"{rows} rows of {shape.num_kv_heads} key heads exceed {processors} multiprocessors"
    if num_places(shape, rows, device) < WARPS:
        return f"{rows} rows leave too little shared memory for weights"
    return None


def num_places(shape: Shape, rows: int, device: torch.device) -> int:
    """Places of the ring of weights beside the activations of `rows`."""
    limit = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    places = (limit - BARRIER_BYTES - _scratch_bytes(shape, rows)[1]) // PLACE_BYTES
    most = (BARRIER_BYTES // 8 - 2 * SUMS) // 2
    # The warps that copy take turns.
    return min(places, most) // PRODUCERS * PRODUCERS


def _scratch_bytes(shape: Shape, rows: int) -> tuple[int, int]:
    """(of activations or of attention, of these and the sums)."""
    widest = max(shape.dim, shape.attention_dim, shape.ffn_dim)
    heads = shape.num_heads // shape.num_kv_heads
    attention = (WARPS * heads * shape.head_dim + 2 * WARPS * heads) * 4
    activations = _whole_lines(max(rows * widest * 2, attention))
    return activations, _whole_lines(activations + (SUMS * 16 + WARPS) * rows * 4)


def _whole_lines(num_bytes: int) -> int:
    return -(-num_bytes // 128) * 128


class DecodeStep:
    """The compiled kernel with all that it reads and writes; a call computes one step.

    weights: of each layer those of LAYER_WEIGHTS that it has, and embedding, norm and head.
    keys, values: [layers, blocks, block_tokens, kv_heads, head_dim]. cos_sin: float32 [positions,
    2, head_dim / 2]. ids_B (int64), lengths_B (int32, tokens in the cache) and tables_BM (int32)
    are read by every call; the new token's keys and values are written, lengths are not.
    """

    def __init__(
        self,
        shape: Shape,
        layers: Sequence[dict[str, Tensor]],
        weights: dict[str, Tensor],
        keys: Tensor,
        values: Tensor,
        cos_sin: Tensor,
        ids_B: Tensor,
        lengths_B: Tensor,
        tables_BM: Tensor,
    ) -> None:
        rows, device = len(ids_B), keys.device
        heads = shape.num_heads // shape.num_kv_heads
        cells = rows * shape.num_kv_heads
        self.processors = torch.cuda.get_device_properties(device).multi_processor_count
        splits = 1
        while 2 * splits * cells <= self.processors and splits < MAX_SPLITS:
            splits *= 2
        activations, scratch = _scratch_bytes(shape, rows)
        places = num_places(shape, rows, device)
        numbers = {
            "LAYERS": shape.num_layers,
            "H": shape.num_heads,
            "G": shape.num_kv_heads,
            "D": shape.head_dim,
            "DIM": shape.dim,
            "FFN": shape.ffn_dim,
            "FFN_BLOCK": shape.ffn_block,
            "VOCAB": shape.vocab_size,
            "B": rows,
            "SPLITS": splits,
            "STAGES": places,
            "BLOCK_TOKENS": keys.shape[2],
            "TABLE": tables_BM.shape[1],
            "X_BYTES": activations,
            "SCRATCH_BYTES": scratch,
            "AHEAD": 3,
            "WARPS": WARPS,
            "SUMS": SUMS,
            "CHUNK": CHUNK,
            "PRODUCERS": PRODUCERS,
            "THREADS": THREADS,
            "EPSILON": f"{shape.norm_eps}f",
            "SCALE_LOG2": f"{shape.head_dim**-0.5 * math.log2(math.e)}f",
        }
        self.shared_bytes = BARRIER_BYTES + scratch + places * PLACE_BYTES
        self.kernel = compile_kernel(source(PARTS, numbers), "decode_step", device)
        self.kernel.set_shared_memory_config(self.shared_bytes)

        def activation(width: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
            return torch.empty(rows, width, dtype=dtype, device=device)

        self.logits_BV = activation(shape.vocab_size, torch.float32)
        qkv = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
        widths = shape.dim, shape.dim, qkv, shape.attention_dim, shape.ffn_dim
        parts = splits * heads * shape.num_kv_heads
        counters = shape.num_layers * (shape.num_kv_heads + 4) + cells + 1
        state = [
            ids_B,
            lengths_B,
            tables_BM,
            *(activation(width) for width in widths),
            activation(parts * shape.head_dim, torch.float32),
            activation(2 * parts, torch.float32),
            self.logits_BV,
            torch.zeros(counters, dtype=torch.int32, device=device),
        ]
        rows_of_layers = [
            [*(layer.get(name) for name in LAYER_WEIGHTS), keys[number], values[number]]
            for number, layer in enumerate(layers)
        ]
        model = [*(weights[name] for name in ("embedding", "norm", "head")), cos_sin]
        # Addresses do not keep what they point to.
        self._kept = rows_of_layers, model, state
        self._arguments = [_addresses(part, device) for part in (rows_of_layers, model, state)]

    def __call__(self) -> Tensor:
        """logits_BV, overwritten by the next call."""
        self.kernel(
            grid=(self.processors, 1, 1),
            block=(THREADS, 1, 1),
            args=self._arguments,
            shared_mem=self.shared_bytes,
            stream=torch.cuda.current_stream(self.logits_BV.device),
        )
        return self.logits_BV


def _addresses(tensors: Sequence[Any], device: torch.device) -> Tensor:
    def address(entry: Any) -> Any:
        if isinstance(entry, list):
            return [address(each) for each in entry]
        assert entry is None or entry.is_contiguous(), "the kernel reads rows one after another"
        return 0 if entry is None else entry.data_ptr()

    return torch.tensor([address(entry) for entry in tensors], dtype=torch.int64, device=device)


def source(parts: Sequence[str], numbers: Mapping[str, int | str]) -> str:
    """The text of a kernel for these numbers."""
    defined = "".join(f"#define {name} {value}\n" for name, value in numbers.items())
    return defined + "\n".join((FOLDER / f"{part}.cu").read_text("utf-8") for part in parts)


@functools.cache
def compile_kernel(text: str, name: str, device: torch.device) -> Any:
    """The kernel `name` of a text, compiled once a process."""
    major, minor = torch.cuda.get_device_capability(device)
    # Features of one architecture, such as the exchange of registers, are those of its "a" form.
    capability = f"{major}{minor}{'a' if major >= 9 else ''}"
    # torch has no public name yet for what compiles and starts a kernel.
    return torch.cuda._compile_kernel(text, name, compute_capability=capability)
