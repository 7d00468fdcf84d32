"""Fuzzes every target and says what each did.

`python -m tests.fuzz [--inputs N] [--seconds S] [--seed N] [TARGET …]`. A table has a line for
each target; its memory is what changed files take beyond sound ones. The last line is JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from pathlib import Path

from llm_core.printing import show
from tests.fuzz.campaign import fuzz, table
from tests.fuzz.targets import PRELOADED, targets

FEWEST_INPUTS = 300
"""Of one target in a campaign; those below it are named."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--kept", type=Path, default=Path("build/fuzz"))
    options = parser.parse_args()
    began = time.monotonic()
    # Imported once here, and shared by the forked processes.
    for module in PRELOADED:
        importlib.import_module(module)
    with tempfile.TemporaryDirectory() as folder:
        every = targets(Path(folder))
    if unknown := [name for name in options.targets if name not in every]:
        parser.error(f"unknown target {unknown[0]!r}; the targets are {', '.join(every)}")
    chosen = {name: every[name] for name in options.targets or every}
    left_s = options.seconds - (time.monotonic() - began)
    outcomes = fuzz(chosen, options.inputs, left_s, options.seed, options.kept)
    show(table(outcomes))
    for outcome in outcomes:
        for finding in outcome.findings:
            show(f"\n{outcome.target} {finding}")
    fewest = min(FEWEST_INPUTS, options.inputs // len(chosen))
    report = {
        "inputs": sum(outcome.num_inputs for outcome in outcomes),
        "targets": len(outcomes),
        "seconds": round(time.monotonic() - began, 1),
        "seed": options.seed,
        "findings": sum(len(outcome.findings) for outcome in outcomes),
        "few_inputs": {o.target: o.num_inputs for o in outcomes if o.num_inputs < fewest},
    }
    show(json.dumps(report))
    return 1 if report["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
