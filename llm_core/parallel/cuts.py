"""Says along which dim processes share a weight, by its name, and which part of a dim each holds.

| weight | tensor ranks cut |
|---|---|
| attention.qkv, ffn.gate_up, ffn.up, head | rows (outputs) |
| attention.out, ffn.down | columns (inputs) |
| ffn.experts.gate_up, ffn.experts.down | rows: each has whole experts |
| ffn.shared.gate_up, ffn.shared.down | as those of a feed-forward |
| embedding | rows (ids) |
| norms, positions, biases of sums, routers | nothing |
| factors of adapters (`lora`) | B as the rows of its layer, A as the columns |

Standard library only, so that the planner reads the rules that the layers follow.
"""

from __future__ import annotations

import re

ROWS = re.compile(
    r"(attention\.qkv|ffn\.(shared\.)?gate_up|ffn\.up)\.(weight|bias|lora\.b)$"
    r"|ffn\.experts\.(gate_up|down)\.weight$|^head\.|^embedding\."
)
COLUMNS = re.compile(r"(attention\.out|ffn\.(shared\.)?down)\.(weight|lora\.a)$")


def cut_dim(name: str) -> int | None:
    """The dim along which processes share the weight of this name; None: each has it whole."""
    return 0 if ROWS.search(name) else 1 if COLUMNS.search(name) else None


def part_of(length: int, rank: int, size: int) -> range:
    """The run of a dim that belongs to a process: equal runs, of which the last may be short or
    empty."""
    each = -(-length // size)
    return range(min(rank * each, length), min((rank + 1) * each, length))
