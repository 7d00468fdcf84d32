"""The learning rate as a pure function of the step: nothing to save, nothing to lose on resume.

| schedule | after the warm-up, in parts of the peak |
|---|---|
| cosine | half a cosine, to `min_lr_frac` at the last step (Loshchilov and Hutter, 2017) |
| linear | a line to `min_lr_frac` at the last step |
| wsd | 1, then in the last `decay_frac` of the steps to `min_lr_frac` by `decay_shape` (Hu et al., 2024; Haegele et al., 2024) |
| inverse_sqrt | the root of warmup_steps / step, at least `min_lr_frac` (Vaswani et al., 2017) |
| constant | 1 |

Warm-up and `decay_frac` count steps. What falls, falls by the sequences seen since it began, which
is by steps unless the global batch grows (`llm_core.data.ramp`).
"""  # noqa: E501

from __future__ import annotations

import math

from llm_core.data.ramp import BatchSizes
from llm_core.optim.config import OptimConfig

ONE_SIZE = BatchSizes(1)


def learning_rate(
    step: int, num_steps: int, config: OptimConfig, sizes: BatchSizes = ONE_SIZE
) -> float:
    """Rate of the update that makes `step` of 1 … num_steps; rises over `warmup_steps`."""
    if step <= config.warmup_steps:
        return config.lr * step / config.warmup_steps
    return config.lr * _fraction(step, num_steps, config, sizes)


def _fraction(step: int, num_steps: int, config: OptimConfig, sizes: BatchSizes) -> float:
    """Of the peak, after the warm-up."""
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "inverse_sqrt":
        return max(config.min_lr_frac, math.sqrt(max(1, config.warmup_steps) / step))
    begin, shape = config.warmup_steps, "cosine" if config.schedule == "cosine" else "linear"
    if config.schedule == "wsd":
        # The decay never begins before the warm-up has ended.
        begin = max(begin, num_steps - round(config.decay_frac * num_steps))
        shape = config.decay_shape
    begun = sizes.before(begin)
    progress = max(0, sizes.before(step) - begun) / max(1, sizes.before(num_steps) - begun)
    progress = min(1.0, progress)
    return config.min_lr_frac + (1 - config.min_lr_frac) * _falling(progress, shape)


def _falling(progress: float, shape: str) -> float:
    """From 1 to 0 as progress goes from 0 to 1."""
    if shape == "sqrt":
        return 1 - math.sqrt(progress)
    return 1 - progress if shape == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
