"""Sets what is measured of a model's speed: the settings of `tasks.bench.stage`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llm_core.config import ConfigError, check_bounds

Cache = Literal["static", "paged", "int8"]
Weights = Literal["model", "int8", "int4", "fp8"]


@dataclass(frozen=True)
class BenchConfig:
    """The grid of measurements of generation, the loads, and what is checked beside them."""

    batches: tuple[int, ...] = (1, 4)
    """Batch sizes: requests that run together."""
    prompt_tokens: tuple[int, ...] = (32, 128)
    """Prompt lengths."""
    new_tokens: tuple[int, ...] = (16,)
    """Tokens generated per request; generation does not stop early, and the first token counts as
    prefill."""
    caches: tuple[Cache, ...] = ("static", "paged", "int8")
    """Caches that are compared. static: rows go in step; the headline. paged: blocks, as the
    engine has it. int8: static, 8 bits per number."""
    weights: tuple[Weights, ...] = ("model",)
    """Number formats of weights that are compared. model: as they are, which must be among them."""
    repeats: int = 5
    """Timed repeats of each measurement."""
    concurrencies: tuple[int, ...] = (1, 4)
    """Closed loops: requests that are open at any time. Empty: no load is measured."""
    arrival_fracs: tuple[float, ...] = (0.5, 0.9)
    """Open loops with Poisson arrivals: requests per second, as shares of what the fastest closed
    loop answered."""
    load_requests: int = 48
    """Requests of each load. p90 needs 44, p95 90, p99 459."""
    load_prompt_tokens: tuple[int, int] = (8, 64)
    """Least and greatest prompt length of a load."""
    load_new_tokens: tuple[int, int] = (4, 24)
    """Least and greatest answer length of a load."""
    over_http: bool = True
    """Whether loads are also measured over a server on the loopback interface."""
    check_tokens: int = 24
    """Length of the sequence that is split into prefill and decode at several places. Other checks
    are as long as the grid."""
    seed: int = 0
    """Seed of the random prompts."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of weights and cache. auto: bfloat16 on a GPU, float32 elsewhere."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs. auto: on a GPU where there is one."""
    tensor_parallel: int = 1
    """Processes that share each layer of the model, on a GPU each where there are GPUs. More than
    one are not measured over HTTP."""

    def __post_init__(self) -> None:
        for name, least in (("batches", 1), ("prompt_tokens", 1), ("new_tokens", 2)):
            values = getattr(self, name)
            if not values or min(values) < least:
                raise ConfigError(f"{name} ({list(values)}) must list numbers of at least {least}")
        if 1 not in self.batches:
            raise ConfigError(
                f"batches ({list(self.batches)}) must list 1, which the headline is about; add it"
            )
        for name in ("caches", "weights", "concurrencies", "arrival_fracs"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ConfigError(f"{name} ({list(values)}) names something twice; list each once")
        for name, first in (("caches", "static"), ("weights", "model")):
            if first not in getattr(self, name):
                raise ConfigError(
                    f"{name} ({list(getattr(self, name))}) must list {first}, which the headline"
                    " is about; add it"
                )
        if self.concurrencies and min(self.concurrencies) < 1:
            raise ConfigError(
                f"concurrencies ({list(self.concurrencies)}) must list numbers of at least 1"
            )
        if self.arrival_fracs and not 0 < min(self.arrival_fracs) <= max(self.arrival_fracs) <= 2:
            raise ConfigError(
                f"arrival_fracs ({list(self.arrival_fracs)}) must lie above 0 and not above 2"
            )
        for name in ("load_prompt_tokens", "load_new_tokens"):
            least, most = getattr(self, name)
            if not 1 <= least <= most:
                raise ConfigError(
                    f"{name} ([{least}, {most}]) must be two numbers of at least 1, in order"
                )
        check_bounds(self, load_requests=(1, None))
        # Fewer than three repeats have no spread to tell.
        check_bounds(self, repeats=(3, None), check_tokens=(4, None), seed=(0, None))
        check_bounds(self, tensor_parallel=(1, None))
