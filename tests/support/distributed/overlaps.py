"""Layers whose products and exchanges overlap, beside plain ones: `python -m
tests.support.distributed.overlaps FOLDER [cuda]`.

Leaves `rank-N.json` of each process in the folder. On CPUs four processes and pairs of them, with
torch's own plain form of the operations over symmetric memory in their place; on GPUs two processes
and the operations themselves.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from llm_core.compat import symmetric_products
from llm_core.memory.recompute import _selective
from llm_core.parallel import overlap
from llm_core.parallel.collectives import gather, scatter_sum
from llm_core.parallel.degrees import TensorOverlap
from llm_core.parallel.overlap import Overlap, gather_product, product_sum
from tests.support.distributed.forks import fork_ranks

KINDS: tuple[TensorOverlap, ...] = ("ring", "symmetric")
NUM_SHAPES = 6
Layer = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Problem:
    """Input, weight and gradient of the output of one layer, of this process."""

    x: Tensor
    weight: Tensor
    dout: Tensor

    def run(self, layer: Layer) -> list[Tensor]:
        """Output and both gradients."""
        x, weight = self.x.clone().requires_grad_(), self.weight.clone().requires_grad_()
        out = layer(x * 1, weight)
        return [out.detach(), *torch.autograd.grad(out, (x, weight), self.dout.to(out.dtype))]


def problem(
    group: dist.ProcessGroup, enters: bool, seed: int, device: torch.device, dtype: torch.dtype
) -> Problem:
    shape, size = random.Random(seed), dist.get_world_size(group)
    grain = 16 if device.type == "cuda" else 1
    rows, here, inputs, outputs = (grain * shape.randint(1, 4) for _ in range(4))
    tokens = (here, here * size) if enters else (here * size, here)
    generator = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    shapes = (rows, tokens[0], inputs), (outputs, inputs), (rows, tokens[1], outputs)
    x, weight, dout = (
        torch.randn(s, generator=generator, dtype=torch.float64).to(device, dtype) for s in shapes
    )
    if seed % 2:  # as attention leaves its heads: another order in memory
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    return Problem(x, weight, dout)


def layers(group: dist.ProcessGroup, enters: bool, kind: TensorOverlap) -> tuple[Layer, Layer]:
    """The plain one and that with overlap."""
    run = Overlap(group, kind)
    if enters:
        return lambda x, weight: F.linear(gather(x, 1, group), weight), run.enter
    return lambda x, weight: scatter_sum(F.linear(x, weight), 1, group), run.leave


def errors(
    groups: list[dist.ProcessGroup], kind: TensorOverlap, device: torch.device, dtype: torch.dtype
) -> dict[str, float]:
    """The worst over shapes, of output, gradient of the input and of the weight, over the largest
    value of each."""
    worst: dict[str, float] = {}
    for seed in range(NUM_SHAPES):
        for group in groups:
            for enters in (True, False):
                plain, overlapped = layers(group, enters, kind)
                given = problem(group, enters, seed, device, dtype)
                with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.float32):
                    results = given.run(plain), given.run(overlapped)
                for name, one, other in zip(("out", "dx", "dweight"), *results, strict=True):
                    assert one.shape == other.shape and one.dtype == other.dtype, (
                        name,
                        one.dtype,
                        other.dtype,
                    )
                    name = f"{'enter' if enters else 'leave'} {name}"
                    error = float((one - other).abs().max() / one.abs().max())
                    worst[name] = max(
                        worst.get(name, 0.0), error if error == error else float("inf")
                    )
    return worst


def in_two_passes(group: dist.ProcessGroup, enters: bool) -> dict[str, Any]:
    """Gradients of input and weight one after the other, as zero bubble takes them: how far off,
    and the exchanges of each."""
    plain, overlapped = layers(group, enters, "ring")
    given = problem(group, enters, 1, torch.device("cpu"), torch.float64)
    x, weight = given.x.clone().requires_grad_(), given.weight.clone().requires_grad_()
    out, found, exchanged = overlapped(x * 1, weight), [], []
    for needed in (x, weight):
        with recorded() as events:
            found += torch.autograd.grad(out, needed, given.dout, retain_graph=True)
        exchanged.append([event for event in events if event != "product"])
    expected = given.run(plain)[1:]
    error = max(
        float((one - other).abs().max()) for one, other in zip(expected, found, strict=True)
    )
    return {"error": error, "exchanged": exchanged}


@contextmanager
def recorded() -> Iterator[list[str]]:
    """What is multiplied, sent and waited for, in order."""
    events: list[str] = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function._overloadpacket in (torch.ops.aten.mm, torch.ops.aten.bmm):
                events.append("product")
            return function(*args, **kwargs or {})

    class Watched:
        def __init__(self, work: Any) -> None:
            self.work = work

        def wait(self) -> None:
            events.append("wait")
            self.work.wait()

    def watch(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            events.append(name)
            work = run(*arguments, **named)
            return (
                [Watched(work[0]), *work[1:]] if isinstance(work, list) else work and Watched(work)
            )

        return watched

    originals = {
        name: getattr(overlap, name)
        for name in ("_pass_on", "all_gather_single", "reduce_scatter_single")
    }
    for name, run in originals.items():
        setattr(overlap, name, watch(name.strip("_").replace("_single", ""), run))
    with Products():
        yield events
    for name, run in originals.items():
        setattr(overlap, name, run)


def orders(group: dist.ProcessGroup) -> dict[str, list[str]]:
    """In which order products and exchanges begin and are waited for."""
    found = {}
    entering, leaving = (
        problem(group, enters, 0, torch.device("cpu"), torch.float64) for enters in (True, False)
    )
    with recorded() as found["enter"]:
        gather_product(entering.x.movedim(1, 0).contiguous(), entering.weight.t(), group, "ring")
    with recorded() as found["leave"]:
        product_sum(leaving.x.movedim(1, 0).contiguous(), leaving.weight.t(), group, "ring")
    x, weight = (tensor.clone().requires_grad_() for tensor in (entering.x, entering.weight))
    out = Overlap(group, "ring").enter(x * 1, weight)
    with recorded() as found["enter, backward"]:
        torch.autograd.grad(out, (x, weight), entering.dout)
    return found


def recomputed(group: dist.ProcessGroup) -> list[str]:
    """What the backward of a feed-forward exchanges that keeps every second product (selective) and
    makes the rest again."""
    run, given = Overlap(group, "ring"), problem(group, True, 0, torch.device("cpu"), torch.float64)
    x, weight = given.x.clone().requires_grad_(), given.weight.clone().requires_grad_()

    def feed_forward(x: Tensor) -> Tensor:
        return run.leave(F.silu(run.enter(x, weight)), weight.t())

    out = checkpoint(
        feed_forward, x * 1, use_reentrant=False, context_fn=partial(_selective, (True, False))
    )
    with recorded() as events:
        out.sum().backward()
    return [event for event in events if event not in ("product", "wait")]


def replace_symmetric_operations() -> None:
    """Put torch's own plain form of them, made for devices without, where they lack a form for
    CPUs."""
    import torch.distributed._symmetric_memory as memory

    assert symmetric_products() is not None
    library = torch.library.Library("symm_mem", "IMPL")
    library.impl("fused_all_gather_matmul", memory._fused_all_gather_matmul_fallback, "CPU")
    library.impl("fused_matmul_reduce_scatter", memory._fused_matmul_reduce_scatter_fallback, "CPU")
    globals()["_library"] = library  # which takes its operations along when it goes


def run(folder: Path) -> None:
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    whole = dist.group.WORLD
    assert whole is not None
    groups, cpu = [whole, pairs[dist.get_rank() // 2]], torch.device("cpu")
    replace_symmetric_operations()
    found: dict[str, Any] = {kind: errors(groups, kind, cpu, torch.float64) for kind in KINDS}
    found |= {f"{kind}, bf16": errors(groups, kind, cpu, torch.float32) for kind in KINDS}
    found["passes"] = {
        name: in_two_passes(whole, enters) for name, enters in (("enter", True), ("leave", False))
    }
    found["orders"], found["recomputed"] = orders(whole), recomputed(whole)
    (folder / f"rank-{dist.get_rank()}.json").write_text(json.dumps(found), "utf-8")


def run_on_gpus(folder: Path) -> None:
    device = torch.device("cuda", dist.get_rank())
    torch.cuda.set_device(device)
    group = dist.new_group(backend="nccl")
    overlap.check_access("symmetric", group, device)
    found = {kind: errors([group], kind, device, torch.float64) for kind in KINDS}
    found |= {f"{kind}, bf16": errors([group], kind, device, torch.float32) for kind in KINDS}
    (folder / f"rank-{dist.get_rank()}.json").write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    on_gpus = sys.argv[2:] == ["cuda"]
    fork_ranks(
        2 if on_gpus else 4,
        target,
        (lambda: run_on_gpus(target)) if on_gpus else (lambda: run(target)),
    )
