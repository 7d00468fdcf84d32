"""Gives each weight its decay and learning rate: exceptions by name, and one rule for the rest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from llm_core.config import ConfigError, nearest
from llm_core.optim.config import OptimConfig


@dataclass(frozen=True)
class Treatment:
    weight_decay: float
    lr_factor: float = 1.0


def treatments(shapes: Mapping[str, Sequence[int]], config: OptimConfig) -> dict[str, Treatment]:
    """{name: how it is treated}, each weight once. Matrices decay, vectors do not, unless a rule
    says otherwise.

    shapes: of all weights of the whole model, so every process finds the same. Raises ConfigError
    for a rule without weights.
    """
    found: dict[str, Treatment] = {}
    for number, rule in enumerate(config.groups):
        matching = [name for name in shapes if re.search(rule.match, name)]
        if not matching:
            raise ConfigError(
                f"optim.groups[{number}].match ({rule.match}) matches no weight;"
                f" {nearest(rule.match, kinds_of(shapes))}"
            )
        taken = [name for name in matching if name in found]
        if taken == matching:
            raise ConfigError(
                f"optim.groups[{number}].match ({rule.match}) matches only weights of earlier"
                f" rules, as {taken[0]}; put it before them"
            )
        for name in matching:
            decay = rule.weight_decay
            if decay is None:
                decay = default_decay(shapes[name], config)
            found.setdefault(name, Treatment(decay, rule.lr_factor))
    plain = {name: Treatment(default_decay(shape, config)) for name, shape in shapes.items()}
    return plain | found


def is_trained(name: str, config: OptimConfig) -> bool:
    """Whether updates may change a weight. One with lr_factor 0 is frozen: it has no gradient and
    no optimizer state, and does not decay."""
    rule = next((rule for rule in config.groups if re.search(rule.match, name)), None)
    return rule is None or rule.lr_factor > 0


def has_frozen(config: OptimConfig) -> bool:
    """Whether some rule freezes weights."""
    return any(rule.lr_factor == 0 for rule in config.groups)


def kinds_of(names: Iterable[str]) -> list[str]:
    """Names of weights, those of the blocks once for all of them: `blocks.N.ffn.down.weight`."""
    return list(dict.fromkeys(re.sub(r"^blocks\.\d+\.", "blocks.N.", name) for name in names))


def is_hidden(name: str, num_dims: int) -> bool:
    """Whether Muon updates a weight: a matrix of a block other than a router or the shared expert's
    gate. Those are heads, and steps of one size for all their rows send tokens to and fro."""
    of_router = ".ffn.router." in name or ".ffn.shared_gate." in name
    return name.startswith("blocks.") and num_dims == 2 and not of_router


def default_decay(shape: Sequence[int], config: OptimConfig) -> float:
    return config.weight_decay if len(shape) >= 2 else 0.0
