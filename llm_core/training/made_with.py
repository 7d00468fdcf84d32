"""Keeps in a checkpoint what decides the result of its run, and compares it before anything is
loaded.

That is every setting of model, optim and train that is not marked NOT_IN_KEY, and the contents of
the shards. Layout, number of processes, memory, micro batches, kernels and paths are not in it: a
run may resume under others. The exceptions are in it: compressed sums with their number of
processes, and how members meet.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_core.config import key_config
from llm_core.data.ramp import BatchSizes
from llm_core.data.shards import TokenShards
from llm_core.optim.config import OptimConfig
from llm_core.training.adapted import base_digest
from llm_core.training.run_config import RunConfig
from llm_core.training.schedule import ONE_SIZE, learning_rate

NUM_STEPS = "train.num_steps"
BASE_DIGEST = "adapter.base"


@dataclass(frozen=True)
class MadeWith:
    """What decides the result of a run."""

    settings: Mapping[str, Any]
    """Dotted name → plain value, in order of the config; then each split's digest."""
    optim: OptimConfig
    batch_sizes: BatchSizes = ONE_SIZE

    def difference_to(self, saved: Mapping[str, Any], step: int) -> str | None:
        """The first setting that a checkpoint of `step` was made with another value of, in words.

        Another number of steps does not count as a difference if it changes no step made: learning
        rates up to `step` stay as they were.
        """
        for name in [*self.settings, *(name for name in saved if name not in self.settings)]:
            before, now = saved.get(name, "not set"), self.settings.get(name, "not set")
            if before == now:
                continue
            found = f"its {name} is {before}, that of this run {now}"
            if name != NUM_STEPS:
                return found
            if (changed := self._first_changed_rate(int(before), int(now), step)) is not None:
                return (
                    f"{found}, which changes the learning rate of step {changed} of the {step} made"
                    f" (optim.schedule={self.optim.schedule}; constant, inverse_sqrt, and wsd"
                    " before it falls, can be made longer)"
                )
        return None

    def _first_changed_rate(self, before: int, now: int, step: int) -> int | None:
        for k in range(1, min(step, before, now) + 1):
            rates = [learning_rate(k, n, self.optim, self.batch_sizes) for n in (before, now)]
            if rates[0] != rates[1]:
                return k
        return None


def made_with(config: RunConfig, *splits: TokenShards) -> MadeWith:
    """What a checkpoint of this run is made with."""
    settings: dict[str, Any] = {}
    for group in ("model", "optim", "train"):
        settings |= _dotted(group, key_config(getattr(config, group)))
    settings |= _dotted("parallel", config.parallel.decides) if config.parallel.decides else {}
    if config.adapter.kind != "none":
        settings |= _dotted("adapter", key_config(config.adapter))
        if (base := config.train.init_from) is not None:
            # Whose weights are frozen, and so in no checkpoint.
            settings[BASE_DIGEST] = base_digest(base)
    digests = {f"shards.{shards.split}": digest_of(shards) for shards in splits}
    return MadeWith(settings | digests, config.optim, config.train.batch_sizes)


def _dotted(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping) and value:
        return {
            key: one
            for inner, found in value.items()
            for key, one in _dotted(f"{name}.{inner}", found).items()
        }
    return {name: value}


def digest_of(shards: TokenShards) -> str:
    """Of what shards say of themselves, digests of tokens included: no token is read for it."""
    metadata = json.dumps([shard.metadata for shard in shards.shards], sort_keys=True)
    return hashlib.blake2b(metadata.encode(), digest_size=8).hexdigest()
