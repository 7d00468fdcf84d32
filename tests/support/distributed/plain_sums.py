"""What compressed sums of several processes give, in plain arithmetic of one.

It takes the gradient of each process's rows in turn and follows the papers number by number. It
shares nothing with the engine but the model, the judgement of a step and, where the sum is all that
is compressed, the update.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import Tensor

from llm_core.data.batch import IGNORED
from llm_core.parallel.config import ParallelConfig
from llm_core.training.trainer import Trainer
from tests.support.distributed import exactness
from tests.support.distributed.exactness import LR, SINGLE, make_trainer, ranks_of, tokens_of
from tests.support.distributed.problem import ROWS, Problem

WORLD, BLOCK, RANK = 4, 1024, 2
BETA1, BETA2, EPS, DECAY, CLIP = 0.9, 0.5, 1e-8, 0.1, 0.5
WARMUP = 6
METHODS = {
    "int8": {"compress": "int8"},
    "fp8": {"compress": "fp8", "compress_warmup_steps": 2},
    "powersgd": {"compress": "powersgd", "compress_rank": RANK, "compress_warmup_steps": 2},
    "adamw": {"compress": "onebit", "compress_warmup_steps": WARMUP},
    "lamb": {"compress": "onebit", "compress_warmup_steps": WARMUP},
}
Grads = dict[str, Tensor]


def problem_of(method: str) -> Problem:
    # Two in five targets of a step do not count, so processes have different numbers of them.
    return Problem(tied=False, optim="lamb" if method == "lamb" else "adamw")


def trainer_of(method: str, parallel: ParallelConfig, folder: Path) -> Trainer:
    plain = exactness.optim_of
    exactness.optim_of = lambda problem: dataclasses.replace(plain(problem), beta2=BETA2)
    try:
        micro = ROWS // parallel.dp
        return make_trainer(problem_of(method), parallel, micro, ranks_of(parallel), folder)
    finally:
        exactness.optim_of = plain


class Plain:
    """One process that stands for all."""

    def __init__(self, method: str, folder: Path) -> None:
        self.method, self.trainer = method, trainer_of(method, SINGLE, folder)
        self.weights = dict(self.trainer.layout.model.named_parameters())
        self.errors: list[Grads] = [self._zeros() for _ in range(WORLD)]
        generator = torch.Generator().manual_seed(1)
        self.bases = {
            name: torch.randn(w.shape[1], RANK, generator=generator).to(w.dtype)
            for name, w in self.weights.items()
            if self._is_thin(w)
        }
        numel = sum(w.numel() for w in self.weights.values())
        self.length = -(-numel // (WORLD * BLOCK)) * WORLD * BLOCK
        self.lost = [torch.zeros(numel) for _ in range(WORLD)]
        self.lost_of_sum = torch.zeros(self.length)
        self.ratios = dict.fromkeys(self.weights, 0.0)
        self.factors = dict.fromkeys(self.weights, 1.0)
        self.fresh: Grads = {}
        self.norm_ratio = 1.0

    def _zeros(self) -> Grads:
        return {name: torch.zeros_like(w) for name, w in self.weights.items()}

    def _is_thin(self, w: Tensor) -> bool:
        return w.ndim == 2 and 2 * (w.shape[0] + w.shape[1]) * RANK < w.numel()

    def step(self, number: int) -> None:
        grads, loss = self._gradients(number - 1)
        warmup = METHODS[self.method].get("compress_warmup_steps", 0)
        whole = {name: sum(g[name] for g in grads) for name in self.weights}
        if number <= warmup:
            ratio = float(self._joined(whole).norm() / self._bound(grads))
            self.norm_ratio = 0.9 * self.norm_ratio + 0.1 * ratio
        if number <= warmup and self.method == "lamb":
            self._lamb(whole, loss)
        elif number <= warmup:
            self._update(whole, loss)
        elif self.method in ("int8", "fp8"):
            self._update(self._rounded(grads), loss)
        elif self.method == "powersgd":
            self._update(self._thin(grads), loss)
        else:
            self._onebit(grads)

    def _gradients(self, index: int) -> tuple[list[Grads], Tensor]:
        ids, targets, _, _ = tokens_of(problem_of(self.method), index)
        count = (targets != IGNORED).sum()
        found, total = [], torch.zeros((), dtype=torch.float64)
        for rank in range(WORLD):
            rows = slice(rank * ROWS // WORLD, (rank + 1) * ROWS // WORLD)
            learnt, losses = self.trainer.layout.model(ids[rows], targets_BT=targets[rows])
            (learnt / count).backward()
            total += losses.detach().sum() / count
            found.append({name: w.grad for name, w in self.weights.items()})
            self.trainer.optimizer.zero_grad()
        return found, total

    def _bound(self, grads: list[Grads]) -> Tensor:
        """Of the norm of the sum of gradients, from norms of each."""
        return (WORLD * sum(self._joined(g).square().sum() for g in grads)).sqrt()

    def _update(self, grads: Grads, loss: Tensor) -> None:
        for name, weight in self.weights.items():
            weight.grad = grads[name].clone()
        norm = torch.cat([g.flatten() for g in grads.values()]).norm()
        self.trainer.optimizer.step(LR, loss, norm)
        self.trainer.optimizer.zero_grad()

    def _rounded(self, grads: list[Grads]) -> Grads:
        def once(x: Tensor) -> Tensor:
            """Every block to 8 bits and back."""
            largest = 127.0 if self.method == "int8" else 448.0
            out = torch.empty_like(x)
            for at in range(0, len(x), BLOCK):
                block = x[at : at + BLOCK]
                scale = (block.abs().max() / largest).float().to(x.dtype)
                ratio = block / scale if scale > 0 else block * 0
                if self.method == "fp8":
                    ratio = ratio.float().to(torch.float8_e4m3fn).to(x.dtype)
                out[at : at + BLOCK] = (
                    ratio.round() * scale if self.method == "int8" else ratio * scale
                )
            return out

        return self._parted(once(sum(once(self._joined(g)) for g in grads)))

    def _joined(self, grads: Grads) -> Tensor:
        flat = torch.cat([grads[name].flatten() for name in self.weights])
        return torch.nn.functional.pad(flat, (0, self.length - len(flat)))

    def _parted(self, flat: Tensor) -> Grads:
        found, at = {}, 0
        for name, weight in self.weights.items():
            found[name] = flat[at : at + weight.numel()].view_as(weight)
            at += weight.numel()
        return found

    def _thin(self, grads: list[Grads]) -> Grads:
        found = {}
        for name in self.weights:
            if name not in self.bases:
                found[name] = sum(g[name] for g in grads)
                continue
            matrices = [g[name] + e[name] for g, e in zip(grads, self.errors, strict=True)]
            left = torch.linalg.qr(sum(m @ self.bases[name] for m in matrices)).Q
            right = sum(m.T @ left for m in matrices)
            found[name], self.bases[name] = left @ right.T, right
            for errors, matrix in zip(self.errors, matrices, strict=True):
                errors[name] = matrix - found[name] / WORLD
        return found

    def _moments(self) -> tuple[Grads, Grads]:
        kinds: dict[str, Grads] = {"exp_avg": {}, "exp_avg_sq": {}}
        for state in self.trainer.optimizer.states():
            kinds[state.kind][state.weight.name] = state.piece
        return kinds["exp_avg"], kinds["exp_avg_sq"]

    def _decay(self, name: str) -> float:
        return DECAY if self.weights[name].ndim > 1 else 0.0

    def _divided(self, grads: Grads, norm: Tensor) -> Grads:
        divisor = max(1.0, float((norm.float() + 1e-6) / CLIP))
        return {name: g / divisor for name, g in grads.items()}

    def _trust(self, name: str, change: Tensor) -> float:
        return float((self.weights[name].norm() / change.norm()).clamp(0.01, 10))

    @torch.no_grad()
    def _lamb(self, grads: Grads, loss: Tensor) -> None:
        means, squares = self._moments()
        norm = torch.cat([g.flatten() for g in grads.values()]).norm()
        for name, g in self._divided(grads, norm).items():
            means[name].mul_(BETA1).add_(g * (1 - BETA1))
            squares[name].mul_(BETA2).add_(g * g * (1 - BETA2))
            change = means[name] / (squares[name].sqrt() + EPS)
            change = change + self._decay(name) * self.weights[name]
            ratio = self._trust(name, change)
            self.ratios[name] = 0.9 * self.ratios[name] + 0.1 * ratio
            self.weights[name].sub_(LR * ratio * change)
            self.fresh[name] = squares[name].clone()

    @torch.no_grad()
    def _onebit(self, grads: list[Grads]) -> None:
        means, squares = self._moments()
        norm = self._bound(grads) * self.norm_ratio
        roots = {name: v.sqrt() + EPS for name, v in squares.items()}
        numel = len(self.lost[0])
        total = torch.zeros(self.length)
        for rank, local_grads in enumerate(grads):
            own = self._divided(local_grads, norm)
            momentum = {
                n: (BETA1 * means[n] + (1 - BETA1) * WORLD * own[n]) / WORLD / roots[n]
                for n in self.weights
            }
            x = self._joined(momentum)
            x[:numel] += self.lost[rank]
            sent = self._signs(x)
            self.lost[rank] = (x - sent)[:numel]
            total += sent
        total += self.lost_of_sum
        result = self._signs(total)
        self.lost_of_sum = total - result
        self.lost_of_sum[numel:] = 0
        for name, scaled in self._parted(result).items():
            new = scaled * roots[name]
            weight, decay = self.weights[name], self._decay(name)
            if self.method == "adamw":
                weight.mul_(1 - LR * decay).sub_(LR * scaled)
            else:
                self._frozen_lamb(name, new, means[name], squares[name])
            means[name].copy_(new)

    def _frozen_lamb(self, name: str, new: Tensor, old: Tensor, square: Tensor) -> None:
        weight, decay = self.weights[name], self._decay(name)
        g = (new - BETA1 * old) / (1 - BETA1)
        self.fresh[name] = BETA2 * self.fresh[name] + (1 - BETA2) * g * g
        plain = new / (square.sqrt() + EPS)
        change = plain + decay * weight
        factor = float(((square.sqrt() + EPS) / (self.fresh[name].sqrt() + EPS)).max())
        share = min(1.0, float(plain.norm() / change.norm()))
        factor = factor * share + 1 - share
        factor = min(max(factor, 0.5), 4.0)
        last = self.factors[name]
        factor = min(max(factor, 0.9 * last), 1.1 * last)
        self.factors[name] = factor
        weight.sub_(LR * self.ratios[name] * factor * change)

    @staticmethod
    def _signs(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        for at in range(0, len(x), BLOCK):
            block = x[at : at + BLOCK]
            scale = block.abs().mean().float().to(x.dtype)
            out[at : at + BLOCK] = torch.where(block >= 0, scale, -scale)
        return out
