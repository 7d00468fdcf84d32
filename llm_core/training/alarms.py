"""Tells of processes of a run that give no sign of life: in its log, metrics and status."""

from __future__ import annotations

from pathlib import Path

from llm_core.parallel.hosts.liveness import BACK, Liveness
from llm_core.parallel.ranks import Ranks
from llm_core.printing import note
from llm_core.training.metric_log import MetricLog
from llm_core.training.run_config import RunConfig
from llm_core.training.status import Heartbeat


def watch(
    config: RunConfig, ranks: Ranks, flight: Path, logs: list[MetricLog], status: Heartbeat
) -> Liveness:
    """Names processes that give no sign of life, in log, metrics and status, once.

    logs: empty before the metrics are open, and when they are closed.
    """

    def tell(alarm: str, text: str) -> None:
        # Of the first rank its neighbour speaks.
        if ranks.rank == (1 if text.startswith("rank 0 ") else 0):
            note(f"llm_core.training.train: {alarm}: {text}")
        if ranks.is_first:
            status.tell(alarm=liveness.standing if alarm == BACK else text)
            for log in tuple(logs):
                log.tell(alarm, status.step, text)

    parallel = config.parallel
    liveness = Liveness(ranks.hosts, parallel.heartbeat_s, parallel.timeout_s, flight, tell)
    return liveness
