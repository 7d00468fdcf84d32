"""The rows of a training that goes on for a second a step, and is resumed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

BEGAN_S = 1_700_000_000.0


def instant(step: float) -> str:
    return datetime.fromtimestamp(BEGAN_S + step, UTC).isoformat(timespec="milliseconds")


def write(folder: Path, first: int, last: int, every: int = 1, keep: int = 0) -> None:
    """Rows of steps up to `last`, a second each; those past `keep` are cut off first, as by a
    resumption."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("metrics.jsonl", "timing.jsonl"):
        lines = (folder / name).read_text().splitlines() if (folder / name).exists() else []
        kept = [line for line in lines if json.loads(line)["step"] <= keep]
        (folder / f"{name}.new").write_text("".join(line + "\n" for line in kept))
        (folder / f"{name}.new").replace(folder / name)
    with (folder / "metrics.jsonl").open("a") as metrics, (folder / "timing.jsonl").open("a") as t:
        for step in range(first, last + 1):
            metrics.write(json.dumps({"step": step, "train_loss": 1 / step}) + "\n")
            if step % every == 0:
                row = {"step": step, "num_steps": every, "elapsed_s": every, "tokens_per_s": 5.0}
                t.write(json.dumps({**row, "ended_at": instant(step)}) + "\n")
