"""Layers on real grids of gloo processes against one process in float64, and what they send against
formulas: `python -m tests.support.distributed.grids FOLDER WORLD`. The first process leaves what it
found in `found.json` there."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from llm_core.parallel.grid.layers import GridLayerNorm, GridRMSNorm, Share
from llm_core.parallel.grid.shards import COLUMN, DEPTH, ROW, GridShards
from llm_core.parallel.ranks import make_meshes
from tests.support.distributed.cases import layout
from tests.support.distributed.forks import fork_ranks

CPU = torch.device("cpu")
GRIDS: dict[int, list[dict[str, Any]]] = {
    4: [{"tp_kind": "2d"}],
    8: [{"tp_kind": "2.5d", "tp_depth": 2}, {"tp_kind": "3d"}],
}
COUNTED = ("broadcast_", "reduce_", "_allgather_base_", "_reduce_scatter_base_")
ROWS, TOKENS, WIDTH, INNER, IDS = 8, 3, 16, 24, 30


class Received(TorchDispatchMode):
    """Counts the elements that a process gets in exchanges, on the mean over its group; of a sum on
    one process those that it takes there."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0.0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = operation._schema.name.split("::")[1]
        if operation.namespace == "c10d" and name in COUNTED:
            whole = max(leaf.numel() for leaf in tree_leaves(args) if isinstance(leaf, Tensor))
            group = next(leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.ScriptObject))
            size = dist.ProcessGroup.unbox(group).size()
            self.elements += whole * (size - 1) / size
        return operation(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Made:
    """What a layer gave, and its gradients; each the block of this process."""

    out: Tensor
    of_input: Tensor | None
    of_weight: Tensor


class Grid:
    """Blocks of whole tensors on one process of a grid."""

    def __init__(self, shards: GridShards) -> None:
        self.shards, self.products, self.shape = shards, shards._products, shards.shape
        place = {axis: shards.mesh.get_local_rank(axis) for axis in (COLUMN, ROW, DEPTH)}
        column, row, depth = (place[axis] for axis in (COLUMN, ROW, DEPTH))
        self.column, self.side = column, self.shape.side
        self.inner_rows = depth * self.side + row
        is_cube = self.shape.kind == "3d"
        self.stream_rows = depth * self.side + column if is_cube else self.inner_rows
        self.width = row if is_cube else column

    def stream(self, x_BTD: Tensor) -> Tensor:
        rows_bTD = x_BTD.chunk(self.shape.token_parts)[self.stream_rows]
        return rows_bTD.chunk(self.side, -1)[self.width].clone()

    def inner(self, x_BTN: Tensor) -> Tensor:
        rows_bTN = x_BTN.chunk(self.shape.token_parts)[self.inner_rows]
        return rows_bTN.chunk(self.side, -1)[self.column].clone()

    def weight(self, name: str, whole: Tensor) -> Tensor:
        return self.shards.part(name, whole).clone()

    def summed(self, name: str, gradient: Tensor) -> Tensor:
        """As `finish_gradients` does."""
        if (group := self.shards.unsummed(name)) is not None:
            dist.all_reduce(gradient, group=group)
        return gradient


class Kept(saved_tensors_hooks):
    """Counts the elements of what forward keeps for backward, once each."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        super().__init__(self._keep, lambda x: x)

    def _keep(self, x: Tensor) -> Tensor:
        self.sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // x.itemsize
        return x


def made(run: Callable[..., Tensor], x: Tensor, weight: Tensor, grad: Tensor) -> Made:
    x = x.requires_grad_(x.is_floating_point())
    weight = weight.requires_grad_()
    out = run(x, weight)
    out.backward(grad)
    assert weight.grad is not None
    return Made(out.detach(), x.grad, weight.grad)


def check_layer(grid: Grid, kind: str) -> dict[str, float]:
    """Differences from one process, of the largest element, and elements received."""
    draw = torch.Generator().manual_seed(3)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    received, kept = Received(), Kept()
    stream, inner = drawn(ROWS, TOKENS, WIDTH), drawn(ROWS, TOKENS, INNER)
    if kind == "embed":
        name, weight, grad = "embedding.weight", drawn(IDS, WIDTH), grad_of(stream)
        ids = torch.randint(0, IDS, (ROWS, TOKENS), generator=draw)
        expected = made(lambda ids, weight: F.embedding(ids, weight), ids, weight, grad)
        first = grid.column * IDS // grid.side
        own = grid.shards._ids(ids), grid.weight(name, weight.detach()), grid.stream(grad)
        with received, kept:
            found = made(lambda x, w: grid.products.embed(x, w, first), *own)
        cut = grid.stream
    elif kind == "into":
        name, weight, grad = "head.weight", drawn(INNER, WIDTH), grad_of(inner)
        expected = made(F.linear, stream.clone(), weight, grad)
        own = grid.stream(stream), grid.weight(name, weight.detach()), grid.inner(grad)
        with received, kept:
            found = made(grid.products.into, *own)
        cut = grid.inner
    else:
        name, weight, grad = "ffn.down.weight", drawn(WIDTH, INNER), grad_of(stream)
        expected = made(F.linear, inner.clone(), weight, grad)
        own = grid.inner(inner), grid.weight(name, weight.detach()), grid.stream(grad)
        with received, kept:
            found = made(grid.products.out, *own)
        cut = grid.stream
    of_weight = grid.summed(name, found.of_weight)
    result = {
        "out": difference(found.out, cut(expected.out)),
        "weight": difference(of_weight, grid.weight(name, expected.of_weight)),
        "received": received.elements,
        "kept": sum(kept.sizes.values()),
        "held": sum(block.numel() for block in own[:2]),
    }
    if expected.of_input is not None and found.of_input is not None:
        back = grid.stream if kind == "into" else grid.inner
        result["input"] = difference(found.of_input, back(expected.of_input))
    return result


def check_norm(grid: Grid, kind: str) -> dict[str, float]:
    draw = torch.Generator().manual_seed(4)
    x, grad = (torch.randn((ROWS, TOKENS, WIDTH), generator=draw).double() for _ in range(2))
    whole: nn.Module = nn.RMSNorm(WIDTH, 1e-6) if kind == "rms" else nn.LayerNorm(WIDTH, 1e-6)
    whole = whole.double()
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.copy_(torch.randn(WIDTH, generator=draw))
    expected = made(lambda x, _: whole(x), x.clone(), whole.weight, grad)  # type: ignore[arg-type]
    of_bias = whole.bias.grad if kind == "layer" else None
    whole.zero_grad()
    width: Share = grid.shards._width
    cut = GridRMSNorm(whole, width) if kind == "rms" else GridLayerNorm(whole, width)  # type: ignore[arg-type]
    own = grid.stream(x), cut.weight, grid.stream(grad)
    found = made(lambda x, _: cut(x), *own)  # type: ignore[arg-type]
    assert expected.of_input is not None and found.of_input is not None
    result = {
        "out": difference(found.out, grid.stream(expected.out)),
        "input": difference(found.of_input, grid.stream(expected.of_input)),
        "weight": difference(grid.summed("norm.weight", found.of_weight), expected.of_weight),
    }
    if of_bias is not None:
        result["bias"] = difference(grid.summed("norm.bias", whole.bias.grad), of_bias)  # type: ignore[arg-type]
    return result


def grad_of(x: Tensor) -> Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(5), dtype=x.dtype)


def difference(found: Tensor, expected: Tensor) -> float:
    """The worst of all processes."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    worst = ((found - expected).abs().max() / expected.abs().max()).detach().clone()
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return float(worst)


def check(folder: Path, world: int) -> None:
    found: dict[str, Any] = {}
    for values in GRIDS[world]:
        parallel = layout(world, "ddp", tp=world, **values)
        tokens, weights = make_meshes(parallel, CPU)
        assert tokens is not None and weights is not None and parallel.grid is not None
        axes = weights[(COLUMN, ROW, DEPTH)]
        grid = Grid(GridShards(tokens.get_group("tp"), axes, parallel.grid))
        for kind in ("into", "out", "embed"):
            of_layer = check_layer(grid, kind)
            inner = IDS if kind == "embed" else INNER
            of_layer["formula"] = grid.shape.received(kind, ROWS * TOKENS, inner, WIDTH)
            found[f"{parallel.tp_kind} {kind}"] = of_layer
        for kind in ("rms", "layer"):
            found[f"{parallel.tp_kind} {kind}"] = check_norm(grid, kind)
    if dist.get_rank() == 0:
        (folder / "found.json").write_text(json.dumps(found, indent=1), "utf-8")


def main() -> None:
    folder, world = Path(sys.argv[1]), int(sys.argv[2])
    fork_ranks(world, folder, lambda: check(folder, world))


if __name__ == "__main__":
    main()
