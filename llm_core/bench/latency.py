"""Sums up what the requests of a load waited for: first tokens, further tokens, whole answers.

Definitions are those of `DEFINITIONS`. Times count from the moment a request was due, not from the
moment it was sent, so that a client or a server that falls behind does not hide its delay
(coordinated omission). A percentile p of n values is given where p^n is at most 1 %: by then the
largest value lies above the percentile with 99 % confidence, as MLPerf LoadGen asks of a run
without a miss. So p50 needs 7 values, p90 44, p95 90, p99 459.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

CONFIDENCE = 0.99
PERCENTILES = (50, 90, 95, 99)

DEFINITIONS = {
    "ttft_s": "first token - due: seconds until a first token was there, queues included",
    "tpot_s": "(last token - first token) / (tokens - 1) of a request; none for a single token",
    "itl_s": (
        "every gap between tokens of a request, tokens - 1 of them, all requests together; k tokens"
        " that arrive together count as k equal gaps; over HTTP gaps of chunks, which may hold"
        " several tokens"
    ),
    "e2e_s": "last token - due",
    "queue_s": "first pass that computes any of a request - due; unknown over HTTP",
    "late_s": "sent - due: how far the source of the load fell behind",
    "tok_s": "tokens of all answers / (last token - first due)",
    "goodput_rps": (
        "requests per second of the same time that kept both limits; failed ones kept none, a"
        " single token keeps that of tpot_s"
    ),
    "p50, p90, p95, p99": (
        "numpy.percentile, linear; null where p^n exceeds 1 %: p50 needs 7 values, p90 44, p95 90,"
        " p99 459"
    ),
}


@dataclass(frozen=True)
class Limits:
    """What a request may take to count as served well."""

    name: str
    ttft_s: float
    tpot_s: float


LIMITS = (Limits("server", 2.0, 0.1), Limits("interactive", 0.5, 0.03))
"""Of MLPerf Inference 5.1 for Llama 3.1 8B (mlperf.conf)."""


@dataclass
class Answered:
    """One request of a load, in seconds of one clock."""

    due_at: float
    """When it was to be sent; in a closed loop, when one before it ended."""
    sent_at: float
    begun_at: float | None = None
    """Begin of the first pass that computed any of it; None: unknown."""
    chunks: list[tuple[float, int]] = field(default_factory=list)
    """(when tokens were there, how many), in order."""
    num_tokens: int = 0
    """Tokens of the answer, as the engine counts them."""
    failure: str | None = None

    @property
    def ttft_s(self) -> float:
        return self.chunks[0][0] - self.due_at

    @property
    def e2e_s(self) -> float:
        return self.chunks[-1][0] - self.due_at

    @property
    def tpot_s(self) -> float | None:
        if self.num_tokens < 2:
            return None
        return (self.chunks[-1][0] - self.chunks[0][0]) / (self.num_tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        """One less than the tokens of all chunks; none between those of the first chunk."""
        gaps = [0.0] * (self.chunks[0][1] - 1)
        for (before, _), (at, count) in zip(self.chunks, self.chunks[1:], strict=False):
            gaps += [(at - before) / count] * count
        return gaps

    def keeps(self, limits: Limits) -> bool:
        if self.failure is not None or not self.chunks:
            return False
        return self.ttft_s <= limits.ttft_s and (self.tpot_s or 0.0) <= limits.tpot_s


def least_samples(percentile: float) -> int:
    """Values from which a percentile is given."""
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(percentile / 100))


def percentiles(values: Sequence[float]) -> dict[str, Any]:
    """Number, mean and those percentiles that so many values allow."""
    found: dict[str, Any] = {
        "n": len(values),
        "mean": _rounded(float(np.mean(values))) if values else None,
    }
    for each in PERCENTILES:
        enough = len(values) >= least_samples(each)
        found[f"p{each}"] = _rounded(float(np.percentile(values, each))) if enough else None
    return found


def summarise(answered: Sequence[Answered]) -> dict[str, Any]:
    """Figures of one load. Raises ValueError where no request was answered."""
    done = [each for each in answered if each.failure is None and each.chunks]
    if not done:
        reasons = sorted({each.failure or "no token came" for each in answered})
        raise ValueError(f"no request of {len(answered)} was answered: {'; '.join(reasons)[:300]}")
    elapsed_s = max(each.chunks[-1][0] for each in done) - min(each.due_at for each in answered)
    queue_s = [each.begun_at - each.due_at for each in done if each.begun_at is not None]
    return {
        "requests": len(answered),
        "failed": len(answered) - len(done),
        "output_tokens": sum(each.num_tokens for each in done),
        "elapsed_s": _rounded(elapsed_s),
        "tok_s": _rounded(sum(each.num_tokens for each in done) / elapsed_s),
        "requests_per_s": _rounded(len(done) / elapsed_s),
        "ttft_s": percentiles([each.ttft_s for each in done]),
        "tpot_s": percentiles([each.tpot_s for each in done if each.tpot_s is not None]),
        "itl_s": percentiles([gap for each in done for gap in each.gaps_s]),
        "e2e_s": percentiles([each.e2e_s for each in done]),
        "queue_s": percentiles(queue_s) if queue_s else None,
        "late_s": percentiles([each.sent_at - each.due_at for each in answered]),
        "goodput": {
            limits.name: {
                "ttft_s": limits.ttft_s,
                "tpot_s": limits.tpot_s,
                "goodput_rps": _rounded(sum(e.keeps(limits) for e in answered) / elapsed_s),
                "kept_frac": _rounded(sum(e.keeps(limits) for e in answered) / len(answered)),
            }
            for limits in LIMITS
        },
    }


def _rounded(value: float) -> float:
    """Six significant digits: more than a clock can tell."""
    return float(f"{value:.6g}")
