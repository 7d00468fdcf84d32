"""Chooses kernels for `train.kernels=auto` and `train.attention=auto`: of those that run on this
GPU and give the plain answer, the fastest at the shapes of this run.

Each candidate computes the attention, or the feed-forward, of one layer forward and backward; the
median of a few passes counts, some milliseconds each. One whose values or gradients differ from
those of torch's own operations by more than 16-bit rounding is rejected. The first rank measures,
and all follow its choice. It is cached for the user by device, versions and shapes, so later
starts, also on a busy device, choose alike. On a CPU nothing is measured: sdpa and torch.

Left out: compilation, which takes a minute; torch's operations are measured uncompiled.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import statistics
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.json_files import UnreadableJson, dump_json, read_json
from llm_core.kernels import flash4
from llm_core.model.attend import attend, prepare_backend
from llm_core.model.masks import AttentionMask
from llm_core.model.operations import apply_kernels, check_kernels
from llm_core.model.precision import HALF_DTYPES, autocast
from llm_core.model.transformer import Block
from llm_core.parallel.ranks import Ranks
from llm_core.printing import note
from llm_core.private_folder import cache_folder
from llm_core.training.run_config import RunConfig

ATTENTION, KERNELS = ("sdpa", "cudnn", "fa4", "varlen", "flex"), ("torch", "triton", "quack")
"""Candidates; the others are compared with the first, the plain one."""
EXTRAS = {
    "fa4": ("flash-attn-4", "textmill[fa4]"),
    "quack": ("quack-kernels", "textmill[quack]"),
}
"""{candidate: (package it needs, what to install for it)}."""
NUM_TURNS = 5
NOISE = 0.02
"""Largest relative distance from the plain answer, in norms: a few roundings to bfloat16."""

Found = dict[str, float | None]
"""{candidate: milliseconds}; None: it gave another answer."""


def with_fastest(config: RunConfig, ranks: Ranks, folder: Path | None = None) -> RunConfig:
    """The run with each `auto` of its kernels resolved, alike on all ranks. Collective.

    folder: where choices are kept; None: the user's cache.
    """
    train = config.train
    open_ = {name for name in ("attention", "kernels") if getattr(train, name) == "auto"}
    if ranks.device.type != "cuda":
        values = {"attention": "sdpa", "kernels": "torch"}
        return _with(config, {name: values[name] for name in open_})
    for name, candidates in (("attention", ATTENTION), ("kernels", KERNELS)):
        if name in open_:
            able = [one for one in candidates if _goes(config, name, one)]
            place = torch.zeros((), dtype=torch.long, device=ranks.device)
            if ranks.is_first and len(able) > 1:
                place += able.index(_choose(config, ranks.device, name, able, folder))
            config = _with(config, {name: able[int(ranks.sum(place))]})
    return config


def _choose(
    config: RunConfig, device: torch.device, name: str, able: list[str], folder: Path | None
) -> str:
    measure = _attentions if name == "attention" else _feed_forwards
    key = _key(config, device, name, able)
    found = kept(lambda: dict(measure(config, device, able)), key, folder)
    chosen = fastest(found, able)
    note(f"train.{name}=auto: {told(chosen, found, able)}")
    return chosen


def _with(config: RunConfig, values: dict[str, Any]) -> RunConfig:
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **values))


def _goes(config: RunConfig, name: str, candidate: str) -> bool:
    """Whether the rules for settings allow this run the candidate, installed or not."""
    try:
        _with(config, {name: candidate})
    except ConfigError:
        return False
    if candidate == "flex":  # compiles slowly, and is faster only where much is masked
        return bool(config.model.attention)
    return candidate != "varlen" or config.train.data.mask_documents


def fastest(found: Found, able: list[str]) -> str:
    """Of the candidates with the plain answer; the first where none runs."""
    times = [(ms, one) for one, ms in found.items() if ms is not None]
    return min(times)[1] if times else able[0]


def told(chosen: str, found: Found, able: list[str]) -> str:
    """One line: what was chosen, against what, and which extras are missing."""
    times = ", ".join(
        f"{one} {'gave another answer' if ms is None else f'{ms:.2f} ms'}"
        for one, ms in found.items()
    )
    extras = "".join(
        f"; {one} may be faster: pip install '{EXTRAS[one][1]}'"
        for one in able
        if one not in found and not _is_here(one)
    )
    return f"{chosen} of {times}{extras}"


def kept(measure: Callable[[], Found], key: str, folder: Path | None = None) -> Found:
    """What was found under this key before; else what `measure` finds, which is kept."""
    folder = folder or cache_folder("kernel_choices")
    file = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    try:
        before = read_json(file)
        if before.get("key") == key:
            return dict(before["ms"])
    except (FileNotFoundError, UnreadableJson):
        pass  # the first time, or a file cut short: measure
    found = measure()
    unfinished = file.with_suffix(f".{os.getpid()}")
    unfinished.write_text(dump_json("a choice of kernels", {"key": key, "ms": found}), "utf-8")
    os.replace(unfinished, file)
    return found


def _key(config: RunConfig, device: torch.device, name: str, able: list[str]) -> str:
    train, parallel = config.train, config.parallel
    facts = {
        "of": name,
        "device": torch.cuda.get_device_name(device),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda}
        | {
            package: _version(package)
            for package in ("triton", *(package for package, _ in EXTRAS.values()))
        },
        "shapes": [train.micro_batch_sequences, train.seq_len, parallel.tp, parallel.cp],
        "model": dataclasses.asdict(config.model),
        "run": [train.dtype, train.data.mask_documents, able],
    }
    return json.dumps(facts, sort_keys=True, default=str)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _is_here(candidate: str) -> bool:
    return candidate not in EXTRAS or _version(EXTRAS[candidate][0]) is not None


def _attentions(
    config: RunConfig, device: torch.device, able: list[str]
) -> Iterator[tuple[str, float | None]]:
    """Attention of one layer by each candidate that is installed."""
    train, parallel, model = config.train, config.parallel, config.model
    # Ulysses gives a rank all tokens of some heads.
    share = parallel.tp * parallel.cp
    heads = max(1, model.num_heads // share), max(1, model.num_kv_heads // share), model.head_dim
    rows, tokens = train.micro_batch_sequences, train.seq_len
    dtype = HALF_DTYPES.get(train.dtype, torch.float32)
    q, k, v = (
        torch.randn(rows, n, tokens, model.head_dim, dtype=dtype, device=device)
        for n in (heads[0], heads[1], heads[1])
    )
    documents = None
    if train.data.mask_documents:
        documents = (torch.arange(tokens, device=device) * 4 // tokens).expand(rows, -1)

    def pass_of(candidate: str) -> Callable[[], list[Tensor]]:
        backend = prepare_backend(candidate, device, heads)
        own, shared = 1, [k, v]
        if candidate == "fa4" and parallel.cp == 1 and flash4.adds_up_keys_slowly(device, heads):
            own = heads[0] // heads[1]
            shared = [x.repeat_interleave(own, dim=1) for x in shared]
        inputs = [x.detach().requires_grad_() for x in (q, *shared)]

        def both() -> list[Tensor]:
            mask = AttentionMask(max(model.patterns, key=model.patterns.count), documents)
            mixed = attend(inputs[0], inputs[1], inputs[2], mask, backend)
            dq, *by_heads = torch.autograd.grad(mixed, inputs, q)
            return [mixed, dq, *(x.unflatten(1, (-1, own)).sum(2) for x in by_heads)]

        return both

    yield from measured(pass_of, able)


def _feed_forwards(
    config: RunConfig, device: torch.device, able: list[str]
) -> Iterator[tuple[str, float | None]]:
    """The feed-forward of one layer by each candidate that is installed."""
    train, parallel = config.train, config.parallel
    model = dataclasses.replace(config.model, ffn_dim=config.model.ffn_dim // parallel.tp)
    tokens = train.micro_batch_sequences * train.seq_len // parallel.cp
    with torch.device(device):
        block = Block(model, 0)
        x = torch.randn(1, tokens, model.dim, dtype=HALF_DTYPES.get(train.dtype, torch.float32))
    x.requires_grad_()

    def pass_of(candidate: str) -> Callable[[], list[Tensor]]:
        check_kernels(candidate, device, model, train.dtype)
        own = Block(model, 0).to(device)
        own.load_state_dict(block.state_dict())
        apply_kernels([own], candidate)
        inputs = [x, *own.ffn.parameters()]

        def both() -> list[Tensor]:
            with autocast(device, train.dtype):
                y = own.ffn(x)
            return [y, *torch.autograd.grad(y, inputs, torch.ones_like(y))]

        return both

    yield from measured(pass_of, able)


def measured(
    pass_of: Callable[[str], Callable[[], list[Tensor]]], able: list[str]
) -> Iterator[tuple[str, float | None]]:
    """(candidate, milliseconds of a pass or None) of those that run; the first is the reference."""
    expected: list[Tensor] | None = None
    for candidate in filter(_is_here, able):
        try:
            both = pass_of(candidate)
            found = both()
        # Not a candidate: this device or mask has no such kernel, or torch refuses it.
        except (ConfigError, RuntimeError, ImportError, AttributeError, TypeError) as error:
            note(f"{candidate} is not measured: {str(error).splitlines()[0]}")
            continue
        expected = expected or found
        agrees = all(map(close, found, expected))
        yield candidate, _milliseconds(both) if agrees else None


def close(found: Tensor, expected: Tensor) -> bool:
    """Whether two tensors are equal within rounding; false for NaN."""
    found, expected = found.detach().float(), expected.detach().float()
    return float((found - expected).norm()) <= NOISE * float(expected.norm())


def _milliseconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(NUM_TURNS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        work()
        ended.record()
        ended.synchronize()
        times.append(float(began.elapsed_time(ended)))
    return round(statistics.median(times), 3)
