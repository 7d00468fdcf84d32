"""The learning rate as a pure function of the step: nothing to save, nothing to lose on resume."""

from __future__ import annotations

import math

from llm_core.train_config import OptimConfig


def learning_rate(step: int, num_steps: int, config: OptimConfig) -> float:
    """Rate of the update that makes step `step` of 1 … num_steps.

    Rises linearly to the peak over `warmup_steps`, then falls along half a cosine, and is min_lr_frac of the peak
    at the last step.
    """
    if step <= config.warmup_steps:
        return config.lr * step / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, num_steps - config.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return config.lr * (config.min_lr_frac + (1 - config.min_lr_frac) * cosine)
