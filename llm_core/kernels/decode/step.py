"""Starts the decode step of one model, cache and number of rows: ids in, logits out, in one kernel.

At few rows a decode step reads every weight once, so memory decides its speed; but its operations
wait for one another five times per layer, and a kernel that waits reads nothing. This one stays on
the device for the whole step and keeps reading (`step.cu`). It is compiled for the shapes of the
model in some seconds.

Of the Llama and Qwen families in bfloat16 on Hopper GPUs, with weights in 16, 8 or 4 bits;
`why_not` names what else is asked for. Rows are few because their activations lie in shared memory.
Numbers in 8 and 4 bits enter products exactly; scales meet sums in float32.
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
PARTS = ("shapes", "messages", "weights", "products", "tokens", "attention", "step")

WARPS, SUMS, ROW_BYTES, PRODUCERS, THREADS = 8, 16, 1024, 2, 384
BARRIER_BYTES, ADDRESS_BYTES = 1024, 256
ROW_STRIDES = {16: ROW_BYTES + 16, 8: ROW_BYTES + 64, 4: ROW_BYTES + 128 + 32}
"""`row_stride` of shapes.cu, by bits."""
GROUP = 64
"""Inputs that share a scale in 4 bits."""
WIDTH_UNITS = {16: 64, 8: 64, 4: 4 * GROUP}
"""Of inputs; copies are of 16 bytes, four scales and offsets."""
MAX_SPLITS = 32
MAX_ROWS = 16
"""Two tiles of tensor cores."""
TILE_TOKENS = 16
"""That attention reads together; they lie in one block of the cache."""
MAX_SLICES = 8

PRODUCTS = ("qkv", "out", "gate_up", "down")
VECTORS = ("attention_norm", "ffn_norm", "qkv_bias", "q_norm", "k_norm")
Numbers = tuple[Tensor, Tensor | None]
"""A weight and its scale as `llm_core.quantize.formats.Rounded` has them, without scale in 16 bits.
In 4 bits scale and offset are neighbours: [N, G, 2]."""


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
    bits: int = 16
    """Of the weights of layers."""
    head_bits: int = 16

    @property
    def attention_dim(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def widths(self) -> tuple[int, int, int]:
        """Inputs of products."""
        return self.dim, self.attention_dim, self.ffn_dim


def why_not(shape: Shape, rows: int, device: torch.device, dtype: torch.dtype) -> str | None:
    """What keeps the kernel from this model; None where nothing does."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9:
        return "needs a Hopper GPU"
    if dtype != torch.bfloat16:
        return f"needs activations in bfloat16, not {dtype}"
    if shape.head_dim not in (64, 128):
        return f"needs heads of 64 or 128 channels, not {shape.head_dim}"
    widths, unit = shape.widths, WIDTH_UNITS[shape.bits]
    if any(width % unit for width in widths):
        return f"needs widths that {unit} divides, not {widths}"
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    if rows * shape.num_kv_heads > processors:
        return f"{rows} rows of {shape.num_kv_heads} key heads exceed {processors} multiprocessors"
    if memory_of(shape, rows, device).places < WARPS:
        return f"{rows} rows leave too little shared memory for weights"
    return None


@dataclass(frozen=True)
class Memory:
    """Shared memory of a block."""

    slices: int
    """Of the inputs of the down projection, which as many blocks share."""
    activation_bytes: int
    """Of activations or of attention, which take turns."""
    scratch_bytes: int
    """Of these and the sums."""
    places: int
    """Of the ring of weights."""
    place_bytes: int

    @property
    def num_bytes(self) -> int:
        return BARRIER_BYTES + self.scratch_bytes + self.places * self.place_bytes


def memory_of(shape: Shape, rows: int, device: torch.device) -> Memory:
    """The inputs of the down projection are whole where they leave room for weights, else of about
    the width of others."""
    memory = _memory(shape, rows, device, 1)
    if memory.places < WARPS:
        slices = 2
        while slices < MAX_SLICES and shape.ffn_dim > slices * max(shape.widths[:2]):
            slices *= 2
        memory = _memory(shape, rows, device, slices)
    return memory


def _memory(shape: Shape, rows: int, device: torch.device, slices: int) -> Memory:
    heads = shape.num_heads // shape.num_kv_heads
    unit = WIDTH_UNITS[shape.bits]
    columns = max(*shape.widths[:2], -(-shape.ffn_dim // unit // slices) * unit)
    # Sums of warps, their largest scores and totals; the newest token; turned heads.
    attention = (WARPS * heads * (shape.head_dim + 2) + shape.head_dim + heads + 3) * 4
    attention += (heads + 1) * (shape.head_dim + 8) * 2
    activations = _whole_lines(max(rows * (columns + 32) * 2, attention))
    tiled = rows if rows < 8 else -(-rows // 8) * 8  # `SUM_NUMBERS` of shapes.cu
    of_groups = columns // GROUP if shape.bits == 4 else 0
    scratch = _whole_lines(activations + (SUMS * 16 + WARPS + of_groups) * tiled * 4)
    place = 16 * max(ROW_STRIDES[shape.bits], ROW_STRIDES[shape.head_bits])
    limit = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    places = (limit - BARRIER_BYTES - scratch) // place
    most = (BARRIER_BYTES - ADDRESS_BYTES) // 16 - SUMS
    # The warps that copy take turns.
    return Memory(slices, activations, scratch, min(places, most) // PRODUCERS * PRODUCERS, place)


def _whole_lines(num_bytes: int) -> int:
    return -(-num_bytes // 128) * 128


class DecodeStep:
    """The compiled kernel with all that it reads and writes; a call computes one step.

    products: those named in PRODUCTS, of each layer; vectors: those of VECTORS that it has. keys,
    values: [layers, blocks, block_tokens, kv_heads, head_dim]. cos_sin: float32 [positions, 2,
    head_dim / 2]. ids_B (int64), lengths_B (int32, tokens in the cache) and tables_BM (int32) are
    read by every call; the new token's keys and values are written, lengths are not.
    """

    def __init__(
        self,
        shape: Shape,
        products: Sequence[Mapping[str, Numbers]],
        vectors: Sequence[Mapping[str, Tensor | None]],
        embedding: Tensor,
        norm: Tensor,
        head: Numbers,
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
        memory = memory_of(shape, rows, device)
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
            "STAGES": memory.places,
            "STAGE_BYTES": memory.place_bytes,
            "BLOCK_TOKENS": keys.shape[2],
            "TABLE": tables_BM.shape[1],
            "BITS": shape.bits,
            "HEAD_BITS": shape.head_bits,
            "BLOCKS": self.processors,
            "SLICES": memory.slices,
            "X_BYTES": memory.activation_bytes,
            "SCRATCH_BYTES": memory.scratch_bytes,
            "ROWS_AT_ONCE": 8,
            # In 4 bits, how many copies can start is the limit.
            "PACE": memory.places // PRODUCERS if shape.bits == 4 else 2,
            "WARPS": WARPS,
            "SUMS": SUMS,
            "ROW_BYTES": ROW_BYTES,
            "PRODUCERS": PRODUCERS,
            "THREADS": THREADS,
            "UNROLL": {16: 8 if rows <= 8 else 2, 8: 2, 4: 8}[shape.bits],
            "EPSILON": f"{shape.norm_eps}f",
            "SCALE_LOG2": f"{shape.head_dim**-0.5 * math.log2(math.e)}f",
        }
        self.shared_bytes = memory.num_bytes
        self.kernel = compile_kernel(source(PARTS, numbers), "decode_step", device)
        self.kernel.set_shared_memory_config(self.shared_bytes)

        def activation(width: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
            return torch.empty(rows, width, dtype=dtype, device=device)

        self.logits_BV = activation(shape.vocab_size, torch.float32)
        qkv = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
        widths = shape.dim, shape.dim, qkv, shape.attention_dim, shape.ffn_dim
        parts = splits * heads * shape.num_kv_heads
        counters = shape.num_layers * (shape.num_kv_heads + 4) + cells + 1 + self.processors
        state = [
            ids_B,
            lengths_B,
            tables_BM,
            *(activation(width) for width in widths),
            activation(parts * shape.head_dim, torch.float32),
            activation(2 * parts, torch.float32),
            activation(memory.slices * shape.dim, torch.float32),
            self.logits_BV,
            torch.zeros(counters, dtype=torch.int32, device=device),
        ]
        layers = [
            [*(numbers for name in PRODUCTS for numbers in product[name]),
             *(vector.get(name) for name in VECTORS), keys[number], values[number]]
            for number, (product, vector) in enumerate(zip(products, vectors, strict=True))
        ]  # fmt: skip
        model = [embedding, norm, *head, cos_sin]
        # Addresses do not keep what they point to.
        self._kept = layers, model, state
        self._arguments = [_addresses(part, device) for part in (layers, model, state)]

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
