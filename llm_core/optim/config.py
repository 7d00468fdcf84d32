"""Configures the optimizer. Standard library only, so flows import it for nothing."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from llm_core.config import NOT_IN_KEY, ConfigError

OptimizerKind = Literal["adamw", "lion", "adafactor", "muon", "lamb", "sgd"]
ScheduleKind = Literal["cosine", "linear", "wsd", "inverse_sqrt", "constant"]
BF16_MAX_BETA = 0.99
"""bfloat16 has 8 bits: an average that moves by some thousandths a step would stand still."""


@dataclass(frozen=True)
class GroupRule:
    """Weights that are treated in their own way."""

    match: str
    """Regular expression that is searched for in the names of weights, such as `^embedding` or
    `ffn.down`."""
    weight_decay: float | None = None
    """Weight decay of these weights. Null: as for the others."""
    lr_factor: float = 1.0
    """Learning rate of these weights, relative to the schedule's. 0 freezes them: they have no
    gradient, no optimizer state and no place in checkpoints."""

    def __post_init__(self) -> None:
        try:
            re.compile(self.match)
        except re.error as error:
            raise ConfigError(
                f"match ({self.match}) is not a regular expression: {error}; try '^embedding' or"
                " 'norm'"
            ) from error
        if (self.weight_decay or 0) < 0 or self.lr_factor < 0:
            raise ConfigError(
                f"weight_decay ({self.weight_decay}) and lr_factor ({self.lr_factor}) must not be"
                " negative"
            )


@dataclass(frozen=True)
class MuonConfig:
    """Steepest descent in the spectral norm for the matrices of blocks; everything else goes to
    AdamW."""

    momentum: float = 0.95
    """Weight of the past in the momentum."""
    nesterov: bool = True
    """Step along gradient and updated momentum together (Nesterov), not along the momentum
    alone."""
    num_iterations: int = 5
    """Newton-Schulz iterations per step."""
    dtype: Literal["bf16", "fp32"] = "bf16"
    """Arithmetic of the iterations. fp32: that of the weights."""

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ConfigError(
                f"momentum ({self.momentum}) must be at least 0 and below 1; 0.95 is usual"
            )
        if self.num_iterations < 1:
            raise ConfigError(
                f"num_iterations ({self.num_iterations}) must be at least 1; 5 is usual"
            )


@dataclass(frozen=True)
class AdafactorConfig:
    """The numbers of Shazeer and Stern (2018), section 9."""

    decay_power: float = 0.8
    """Update t keeps 1 - t^-decay_power of the earlier second moments."""
    clip_rms: float = 1.0
    """Largest root mean square of the update of a weight, in units of the learning rate."""
    eps_square: float = 1e-30
    """Added to squares of gradients."""
    min_rms: float = 1e-3
    """Updates are relative to the root mean square of the weight, or to this where it is
    smaller."""

    def __post_init__(self) -> None:
        for name in ("decay_power", "clip_rms", "eps_square", "min_rms"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} ({getattr(self, name)}) must be positive")


@dataclass(frozen=True)
class GuardConfig:
    """Which steps are skipped, and after how many the run is rolled back or ends."""

    max_skips: int = 5
    """Skipped steps in a row after which the run ends."""
    spike_std: float = 0.0
    """Skip a step whose loss or gradient norm is more than so many standard deviations from the
    mean of the accepted steps. 0: skip only values that are not finite."""
    spike_window_steps: int = 128
    """Accepted steps over which mean and deviation are taken; no step is a spike before there are
    so many."""
    rollback_skips: int = 0
    """Skipped steps within rollback_window_steps after which the run returns to the last multiple
    of rollback_every_steps, and leaves out the batches since. 0: never."""
    rollback_window_steps: int = 100
    """Latest steps in which skipped ones are counted."""
    rollback_every_steps: int = 100
    """Steps between the points that a run can return to."""
    max_rollbacks: int = 3
    """Rollbacks allowed; one more ends the run."""

    def __post_init__(self) -> None:
        for name in ("max_skips", "rollback_window_steps", "rollback_every_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} ({getattr(self, name)}) must be at least 1")
        if self.spike_window_steps < 2:
            raise ConfigError(
                f"spike_window_steps ({self.spike_window_steps}) must be at least 2, fewer have no"
                " deviation"
            )
        for name in ("spike_std", "rollback_skips", "max_rollbacks"):
            if getattr(self, name) < 0:
                raise ConfigError(
                    f"{name} ({getattr(self, name)}) must not be negative; 0 turns it off"
                )
        if self.rollback_skips >= self.max_skips:
            raise ConfigError(
                f"rollback_skips ({self.rollback_skips}) must be below max_skips"
                f" ({self.max_skips}), which ends the run"
            )
        if self.rollback_skips > self.rollback_window_steps:
            raise ConfigError(
                f"rollback_skips ({self.rollback_skips}) must fit into rollback_window_steps"
                f" ({self.rollback_window_steps})"
            )


@dataclass(frozen=True)
class LossScaleConfig:
    """Dynamic scale of the loss under train.dtype=fp16 (Micikevicius et al., 2018). Powers of two,
    so nothing is rounded."""

    initial: float = 65536.0
    """Scale of the first step."""
    growth_interval_steps: int = 1000
    """Steps without overflow after which the scale doubles."""
    hysteresis: int = 2
    """Overflows since the last growth after which the scale is halved."""
    floor: float = 1.0
    """Least scale; an overflow there counts as a skipped step of the guard."""

    def __post_init__(self) -> None:
        for name in ("initial", "floor"):
            value = getattr(self, name)
            if not value > 0 or value != 2.0 ** round_log2(value):
                raise ConfigError(
                    f"{name} ({value}) must be a power of two; try"
                    f" {2.0 ** round_log2(value) if value > 0 else 1.0}"
                )
        if self.initial < self.floor:
            raise ConfigError(f"initial ({self.initial}) must be at least floor ({self.floor})")
        for name in ("growth_interval_steps", "hysteresis"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} ({getattr(self, name)}) must be at least 1")


def round_log2(value: float) -> int:
    """The exponent of the nearest power of two."""
    return round(math.log2(value))


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer, its learning rate over the steps, and what keeps it from harm."""

    lr: float
    """Peak learning rate."""
    kind: OptimizerKind = "adamw"
    """adamw (Loshchilov and Hutter, 2019); lion (Chen et al., 2023); adafactor (Shazeer and Stern,
    2018), whose lr is relative to the weights; muon (Jordan et al., 2024), whose updates have the
    size of AdamW's (Liu et al., 2025); lamb (You et al., 2020), whose lr is relative to each
    weight, for whole weights alone; or sgd, plain gradient descent."""
    beta1: float = 0.9
    """Weight of the past in the first moment (adamw), or in the direction of a step (lion)."""
    beta2: float = 0.95
    """Weight of the past in the second moment (adamw), or in lion's momentum."""
    eps: float = 1e-8
    """Added to the root of AdamW's second moment."""
    weight_decay: float = 0.1
    """Weight decay of matrices, unless `groups` say otherwise; norm weights and biases do not
    decay."""
    groups: tuple[GroupRule, ...] = ()
    """Exceptions, in order: the first that matches a weight applies. Each must match some
    weight."""
    schedule: ScheduleKind = "cosine"
    """Learning rate after warm-up. wsd: stable, then falling (Hu et al., 2024)."""
    warmup_steps: int = 0
    """First steps, in which the learning rate rises linearly to its peak."""
    min_lr_frac: float = 0.1
    """Learning rate of the last step, relative to the peak; for inverse_sqrt the least; constant
    ignores it."""
    decay_frac: float = 0.2
    """Share of the steps in which wsd falls."""
    decay_shape: Literal["linear", "sqrt", "cosine"] = "sqrt"
    """How wsd falls; sqrt: 1 - the root of the progress (Haegele et al., 2024)."""
    clip_norm: float = 1.0
    """Largest norm of the whole gradient; longer gradients are scaled down to it."""
    state_dtype: Literal["fp32", "bf16"] = "fp32"
    """Type of the optimizer's moments. bf16 halves their memory; weights and gradients stay
    float32."""
    state_in: Literal["device", "host", "disk"] = field(default="device", metadata=NOT_IN_KEY)
    """Where moments are between updates: on the device, in main memory (host), or in a file on a
    local disk. The results are the same bits."""
    state_folder: Path | None = field(default=None, metadata=NOT_IN_KEY)
    """Folder for that file, on a fast disk with room. Null: the work directory of the run. The file
    is removed afterwards."""
    muon: MuonConfig = field(default_factory=MuonConfig)
    adafactor: AdafactorConfig = field(default_factory=AdafactorConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    loss_scale: LossScaleConfig = field(default_factory=LossScaleConfig)

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ConfigError(
                f"lr ({self.lr}) must be positive; 3e-4 is usual for adamw in large models"
            )
        for name in ("beta1", "beta2", "min_lr_frac", "decay_frac"):
            if not 0 <= getattr(self, name) <= 1 or (
                name.startswith("beta") and getattr(self, name) == 1
            ):
                raise ConfigError(
                    f"{name} ({getattr(self, name)}) must lie between 0 and 1; a beta of 1 would"
                    " never learn"
                )
        for name in ("weight_decay", "warmup_steps"):
            if getattr(self, name) < 0:
                raise ConfigError(
                    f"{name} ({getattr(self, name)}) must not be negative; 0 goes without"
                )
        for name in ("eps", "clip_norm"):
            if not getattr(self, name) > 0:
                raise ConfigError(
                    f"{name} ({getattr(self, name)}) must be positive; a huge clip_norm turns"
                    " clipping off"
                )
        if self.state_in != "device" and self.kind in ("adafactor", "muon", "lamb", "sgd"):
            whys = dict.fromkeys(("muon", "lamb"), "needs whole matrices at once")
            whys |= {"adafactor": "keeps little state", "sgd": "keeps none"}
            raise ConfigError(
                f"state_in ({self.state_in}) serves adamw and lion, {self.kind}"
                f" {whys[self.kind]}; use state_in=device"
            )
        if self.state_folder is not None and self.state_in != "disk":
            raise ConfigError(
                f"state_folder ({self.state_folder}) belongs to state_in=disk, not {self.state_in};"
                " set it null"
            )
        if self.state_dtype == "bf16":
            if self.kind == "lamb":
                raise ConfigError("state_dtype (bf16) is not for lamb; use fp32")
            if self.kind == "adafactor":
                raise ConfigError(
                    "state_dtype (bf16) has little to halve in adafactor, which keeps rows and"
                    " columns; use fp32"
                )
            if max(self.beta1, self.beta2) > BF16_MAX_BETA:
                raise ConfigError(
                    f"beta1 ({self.beta1}) and beta2 ({self.beta2}) must be at most {BF16_MAX_BETA}"
                    " with state_dtype=bf16, which rounds away smaller changes of the moments;"
                    " lower them or use state_dtype=fp32"
                )
