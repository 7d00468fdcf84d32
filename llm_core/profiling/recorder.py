"""Records some steps of a run with torch.profiler on every rank, when a run asks for it.

Of `train.profile_steps` each rank leaves `profile/rank-N.trace.json.gz`, which chrome://tracing and
ui.perfetto.dev show, and `rank-N.json` and `rank-N.md`, its table by kind
(`llm_core.profiling.table`). The step before is recorded too, and thrown away, because the first
one pays for starting the profiler. The device is waited for before the first and after the last of
the steps, so that their work, all of it and no other, is in the trace. Validations and checkpoints
between them are in it too. Steps of a profile are slower than others, which pay nothing.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from dataclasses import dataclass
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, schedule

from llm_core.device import synchronize
from llm_core.parallel.ranks import Ranks
from llm_core.profiling.table import read_trace, tabulate


@dataclass
class Recorder:
    """Records steps `first` … `last` of a run, once. Every rank has one.

    folder: made when there is something to leave in it.
    """

    first: int
    last: int
    folder: Path
    ranks: Ranks
    _profiler: profile | None = None
    _is_done: bool = False

    def begin(self, step: int) -> None:
        """Called before each step, whether it is one of those or not."""
        if self._profiler is None:
            if not self._is_done and self.first - 1 <= step <= self.last:
                self._start(step)
        elif step > self.last:
            self.close()
        else:
            if step == self.first:
                synchronize(self.ranks.device)
            self._profiler.step()

    def close(self) -> None:
        """End a recording that goes on, and leave what there is of it."""
        if self._profiler is None:
            return
        synchronize(self.ranks.device)
        profiler, self._profiler, self._is_done = self._profiler, None, True
        profiler.stop()

    def _start(self, step: int) -> None:
        if step >= self.first:
            synchronize(self.ranks.device)
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (
            self.ranks.device.type == "cuda"
        )
        with warnings.catch_warnings():
            # The first step of a run has none before it.
            warnings.filterwarnings("ignore", message="Profiler won't be using warmup")
            active = self.last - max(step, self.first) + 1
            plan = schedule(wait=0, warmup=int(step < self.first), active=active, repeat=1)
            self._profiler = profile(
                activities=activities, schedule=plan, on_trace_ready=self._write
            )
        self._profiler.start()

    def _write(self, profiler: profile) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"rank-{self.ranks.rank}"
        trace = self.folder / f"{name}.trace.json.gz"
        profiler.export_chrome_trace(str(trace))
        table = tabulate(read_trace(trace))
        (self.folder / f"{name}.json").write_text(
            json.dumps(dataclasses.asdict(table), indent=1) + "\n", "utf-8"
        )
        (self.folder / f"{name}.md").write_text(table.markdown(), "utf-8")
