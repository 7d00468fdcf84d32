"""Measures how fast training goes, and whether a process is slower than the others: rows of
`timing.jsonl`, one per logging interval.

| field | what |
|---|---|
| `elapsed_s`, `tokens_per_s` | of `num_steps` steps, over all processes; validation and checkpoints are outside |
| `ended_at` | when the interval ended, in UTC |
| `mfu_full`, `mfu_causal` | FLOPs of training over the peak of all devices; attention counted whole (PaLM) or its causal half |
| `attended_tokens` | tokens of its document, in the mean over tokens: what attention counts, `seq_len` without masks |
| `data_wait_s` | the longest that a process waited for its batches |
| `max_memory_bytes` | the most that a process held: of the GPU where there is one, else resident |
| `slowest_rank`, `slowest_pace` | with several processes: who took longest for a small product, in medians of all |
| `paces` | `rank` and `pace` of the `MOST_PACES` slowest |

FLOPs are those of the pairs that the masks of the very batches let attend; padding attends nothing.
Inside a step processes wait for each other, so their wall times are alike; a pace is therefore
measured on a product that each computes alone. It finds slow or shared processors and throttled
GPUs; a slow disk shows in `data_wait_s`. Cost: three products of less than a millisecond, and an
exchange of four numbers, per logging interval.
"""  # noqa: E501

from __future__ import annotations

import functools
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from llm_core.data.batch import Batch
from llm_core.model.masks import restarting_positions
from llm_core.model.sparse.pairs import areas
from llm_core.model.sparse.patterns import Pattern
from llm_core.parallel.ranks import Ranks
from llm_core.profiling.roofline import best_time
from llm_core.training.run_config import RunConfig

MOST_PACES = 16
"""In a row, whatever the number of processes; a report shows no more."""
SLOW_PACE, SLOW_STRETCHES = 1.3, 3
"""Times as long as the median, and logging intervals in a row, after which one is reported."""

Result = TypeVar("Result")


@dataclass
class StepClock:
    """Measures logging intervals. Every rank has one and makes the same calls.

    peak_flops: of one device, per second; 0 where it is not known. report: told (event, step,
    what), on the first rank.
    """

    config: RunConfig
    ranks: Ranks
    peak_flops: float = 0.0
    report: Callable[[str, int, str], None] | None = None
    _began: float = field(default_factory=time.perf_counter)
    _waited_s: float = 0.0
    _pairs: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    _tokens: int = 0
    _slow: dict[int, int] = field(default_factory=dict)

    def restart(self) -> None:
        """The next stretch begins now."""
        self._began, self._waited_s = time.perf_counter(), 0.0
        self._pairs, self._tokens = torch.zeros_like(self._pairs), 0

    def wait_for(self, made: Callable[[], Result]) -> Result:
        """What a call gives; its time is time without data."""
        began = time.perf_counter()
        found = made()
        self._waited_s += time.perf_counter() - began
        return found

    def see(self, batch: Batch, patterns: Sequence[Pattern]) -> None:
        """Count what attends in a batch of this process, by the patterns of the model's layers."""
        documents_BT = batch.documents_BT
        rows, tokens = batch.ids_BT.shape
        times = 1
        if documents_BT is None:
            documents_BT, times = torch.zeros(1, tokens, dtype=torch.int32), rows
        for pattern, layers in Counter(patterns).items():
            share = layers / len(patterns)
            self._pairs += times * share * causal_pairs(pattern, documents_BT)
        self._tokens += rows * tokens

    def row(self, step: int, num_steps: int) -> dict[str, Any]:
        """Facts of the steps since the last call, up to `step`; the device has been waited for."""
        elapsed_s = time.perf_counter() - self._began
        paces, waits, memory, attended = self._of_all_ranks()
        train = self.config.train
        tokens = train.tokens_until(step) - train.tokens_until(step - num_steps)
        tokens_per_s = tokens / elapsed_s
        found: dict[str, Any] = {
            "step": step,
            "num_steps": num_steps,
            "elapsed_s": elapsed_s,
            "ended_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "tokens_per_s": tokens_per_s,
            "data_wait_s": max(waits),
            "max_memory_bytes": int(max(memory)),
            "attended_tokens": statistics.fmean(attended),
        }
        if self.peak_flops:
            for name, causal in (("full", False), ("causal", True)):
                found[f"mfu_{name}"] = self._mfu(tokens_per_s, found["attended_tokens"], causal)
        if len(paces) > 1:
            slowest = max(range(len(paces)), key=lambda rank: paces[rank])
            median = statistics.median(paces)
            pace = paces[slowest] / median
            found |= {"slowest_rank": slowest, "slowest_pace": pace}
            order = sorted(range(len(paces)), key=lambda rank: (-paces[rank], rank))[:MOST_PACES]
            found["paces"] = [
                {"rank": rank, "pace": round(paces[rank] / median, 3)} for rank in order
            ]
            self._watch(step, slowest, pace)
        self.restart()
        return found

    def _mfu(self, tokens_per_s: float, attended_tokens: float, causal: bool) -> float:
        flops = self.config.trained_model.training_flops_per_token(attended_tokens, causal)
        return tokens_per_s * flops / (self.peak_flops * self.ranks.world)

    def _of_all_ranks(self) -> tuple[list[float], list[float], list[float], list[float]]:
        """(product's seconds, seconds without data, bytes held, tokens attended) of each rank."""
        device = self.ranks.device
        attended = float(self.config.train.seq_len)
        if self._tokens:
            attended = 2 * float(self._pairs) / self._tokens
        mine = torch.tensor(
            [0.0, self._waited_s, held_bytes(device), attended], dtype=torch.float64, device=device
        )
        if self.ranks.world == 1:
            return [0.0], [self._waited_s], [float(mine[2])], [attended]
        mine[0] = product_time(device)
        everyone = [torch.empty_like(mine) for _ in range(self.ranks.world)]
        dist.all_gather(everyone, mine)
        paces, waits, memory, lengths = torch.stack(everyone).T.tolist()
        return paces, waits, memory, lengths

    def _watch(self, step: int, slowest: int, pace: float) -> None:
        self._slow = {slowest: self._slow.get(slowest, 0) + 1} if pace > SLOW_PACE else {}
        if self._slow.get(slowest, 0) == SLOW_STRETCHES and self.ranks.is_first and self.report:
            what = (
                f"rank {slowest} took {pace:.2f} times as long as the median for a small product,"
                f" in {SLOW_STRETCHES} logging intervals in a row"
            )
            self.report("slow_rank", step, what)


def product_time(device: torch.device) -> float:
    """Seconds of a small product, the best of a few: under a millisecond on a free device."""
    size = 4096 if device.type == "cuda" else 160
    matrix = torch.ones(
        size, size, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32, device=device
    )
    return best_time(lambda: matrix @ matrix, device, repeats=3)


def held_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def causal_pairs(pattern: Pattern, documents_BT: Tensor) -> Tensor:
    """How many (query, key) pairs attend in rows of documents, a float64 scalar; padding, of
    negative numbers, does not.

    As areas, not counts: a document of n tokens that is attended whole has n² / 2 pairs, the
    convention of FLOPs.
    """
    areas_T = areas_on(documents_BT.device, pattern, documents_BT.shape[1])
    return (areas_T[restarting_positions(documents_BT)] * (documents_BT >= 0)).sum()


@functools.lru_cache(maxsize=8)
def areas_on(device: torch.device, pattern: Pattern, length: int) -> Tensor:
    """`sparse.pairs.areas`, which is copied to a device once, not in each step."""
    return torch.from_numpy(areas(pattern, length)).to(device)
