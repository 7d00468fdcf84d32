"""Keeps what torch's flight recorder has of the collectives of a process, and says which process is
behind.

A process that waits in a collective cannot tell for whom. The recorders of all can: the process
that has begun the fewest collectives of a group is the one that the others wait for. `python -m
llm_core.parallel.hosts.flight FOLDER` reads the files of all and says so. On GPUs NCCL also writes
its own files after a time-out (`nccl-N`), which `torchfrtrace` reads.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from llm_core.compat import flight_records
from llm_core.durable import write_durably
from llm_core.json_files import read_json
from llm_core.printing import show

FLIGHT_FOLDER = "flight"


def set_up_recorder(num_entries: int, folder: Path) -> None:
    """Before the first process group: collectives to remember, and where NCCL dumps them."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = str(num_entries)
    os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] = str(int(num_entries > 0))
    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = str(folder / "nccl-")
    if torch.__version__ < "2.13":  # which warns of the names before
        os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] = str(num_entries)
        os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] = str(folder / "nccl-")


def write_records(folder: Path, rank: int) -> Path | None:
    """Write what the recorder has to `rank-N.json`; None where torch has no recorder here. Raises
    OSError, also where the work directory around `folder` was removed."""
    if (found := flight_records()) is None:
        return None
    folder.mkdir(exist_ok=True)
    path = folder / f"rank-{rank:05d}.json"
    write_durably(path, found)
    return path


def who_is_behind(records: Iterable[tuple[int, dict[str, Any]]]) -> list[str]:
    """A line for each group of which some processes have begun fewer collectives than others.

    records: (rank, what its recorder had).
    """
    begun: dict[str, dict[int, tuple[int, str]]] = defaultdict(dict)
    for rank, found in records:
        for entry in found.get("entries", ()):
            if entry["is_p2p"]:
                continue
            number, name = int(entry["collective_seq_id"]), str(entry["profiling_name"])
            group = str(entry["process_group"][0])
            begun[group][rank] = max((number, name), begun[group].get(rank, (0, "")))
    lines = []
    for group, ranks in sorted(begun.items()):
        (most, name), least = max(ranks.values()), min(ranks.values())[0]
        if least < most:
            behind = ", ".join(str(rank) for rank, (n, _) in sorted(ranks.items()) if n == least)
            lines.append(
                f"group {group}: rank {behind} has begun {least} collectives, others wait in number"
                f" {most}, {name}"
            )
    return lines


def main() -> None:
    folder = Path(sys.argv[1])
    files = sorted(folder.glob("rank-*.json"))
    lines = who_is_behind((int(file.stem.split("-")[1]), read_json(file)) for file in files)
    for line in lines or [f"all {len(files)} processes have begun as many collectives"]:
        show(line)


if __name__ == "__main__":
    main()
