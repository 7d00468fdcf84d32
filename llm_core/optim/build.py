"""Builds the optimizer of a layout, with state at once so that a checkpoint can be read into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch.distributed.tensor import DTensor

from llm_core.model.experts.router import ROUTER_BIAS
from llm_core.optim.adafactor import Adafactor
from llm_core.optim.adamw import AdamW
from llm_core.optim.average import Average
from llm_core.optim.balance import Balance, named
from llm_core.optim.compressed.feedback import Feedback
from llm_core.optim.compressed.momentum import SharedMomentum
from llm_core.optim.compressed.onebit import OneBitAdam, OneBitLamb
from llm_core.optim.config import OptimConfig
from llm_core.optim.guard import Guard
from llm_core.optim.lamb import Lamb
from llm_core.optim.lion import Lion
from llm_core.optim.loss_scale import LossScaler
from llm_core.optim.method import Elsewhere, Method
from llm_core.optim.muon import Muon, is_hidden_matrix
from llm_core.optim.offload import offloaded
from llm_core.optim.optimizer import Optimizer
from llm_core.optim.owners import Owners
from llm_core.optim.pieces import Piece, make_pieces
from llm_core.optim.sgd import Sgd
from llm_core.parallel.compression.reduction import LeftToOptimizer
from llm_core.parallel.layout import Layout


def build_optimizer(
    layout: Layout,
    config: OptimConfig,
    dtype: str = "fp32",
    scratch: Path | None = None,
    ema: float = 0.0,
) -> Optimizer:
    """dtype: `train.dtype`, of which fp16 needs a loss scale. scratch: for state on disk, where the
    config names no folder. ema: decay of an average of the weights; 0: none.

    Raises ConfigError for rules without weights, and where state has no room.
    """
    pieces = make_pieces(layout, config)
    weights = [piece.weight for piece in pieces]
    guard = Guard(config.guard, layout.device)
    scaler = LossScaler(config.loss_scale, layout.device) if dtype == "fp16" else None

    def in_place(make: Callable[[list[Piece]], list[Method]]) -> list[Method]:
        if (servers := layout.servers) is not None:
            served = [piece for piece in pieces if servers.serves(piece.weight)]
            rest = [piece for piece in pieces if not servers.serves(piece.weight)]
            return [*make(served), *map(Elsewhere, make(rest))]
        if config.state_in == "device" or not pieces:
            return make(pieces)
        return [offloaded(pieces, lambda some: make(some)[0], config, scratch, layout.resting)]

    methods = in_place(lambda some: make_methods(layout, some, config))
    if ema:
        methods += in_place(lambda some: [Average(some, ema)])
    if layout.reduction is not None:
        methods.append(Feedback(layout, pieces, layout.reduction))
    balance, servers = _balance(layout, ema), layout.servers
    return Optimizer(weights, methods, config.clip_norm, guard, scaler, balance, servers)


def _balance(layout: Layout, ema: float) -> Balance | None:
    experts = layout.bare.config.experts
    if experts is None or not experts.bias_rate:
        return None
    biases = {
        number: block.get_buffer(ROUTER_BIAS)
        for number, block in enumerate(layout.bare.blocks)
        if block is not None
    }
    average = Average(named(biases), ema) if ema else None
    return Balance(biases, experts.bias_rate, average)


def make_methods(layout: Layout, pieces: list[Piece], config: OptimConfig) -> list[Method]:
    """The update rules of a kind of optimizer, each with its pieces."""
    if config.kind == "sgd":
        return [Sgd(pieces)]
    if config.kind == "lion":
        return [Lion(pieces, config)]
    if config.kind == "adafactor":
        return [Adafactor(pieces, config)]
    if config.kind == "muon":
        matrices = [piece for piece in pieces if is_hidden_matrix(piece)]
        rest = [piece for piece in pieces if not is_hidden_matrix(piece)]
        shares_rows = any(isinstance(piece.weight, DTensor) for piece in matrices)
        muon = Muon(matrices, config, layout.bare.config, Owners(layout, matrices, shares_rows))
        return [muon, AdamW(rest, config)] if rest else [muon]
    if isinstance(layout.reduction, LeftToOptimizer):
        momentum = SharedMomentum(layout, pieces, layout.reduction)
        one_bit = OneBitLamb if config.kind == "lamb" else OneBitAdam
        return [one_bit(pieces, config, momentum)]
    if config.kind == "lamb":
        return [Lamb(pieces, config)]
    return [AdamW(pieces, config)]
