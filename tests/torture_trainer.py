"""Kills trainers of ten layouts at random moments, many times, and compares what they leave with
an undisturbed run of the same layout, byte by byte.

`python -m tests.torture_trainer [--kills 200] [--seed N] [--place DIR] [--only LAYOUT …]`. SIGKILL
goes to one rank or to all at once; neighbours that do not end soon are ended, as torchrun does; the
same run is started again, until it ends. Moments are spread evenly over the time of a run, so they
hit the reading of a checkpoint, steps, background writing, pruning and the export alike. Ranks are
forks of one process that has imported everything: a start is cheap, and most kills hit training.

The last line is JSON: {"kills", "seed", "runs", "victims": {layout: kills}, "findings": [text],
"elapsed_s"}. The exit code is 1 where there are findings.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
import torch.distributed as dist

from llm_core.huggingface.export import export_model
from llm_core.memory.config import MemoryConfig
from llm_core.model.adapter import AdapterConfig
from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer
from llm_core.printing import note, show
from llm_core.process import terminate_with_parent
from llm_core.training.run_config import RunConfig
from llm_core.training.train import run_in
from tests.support.distributed.processes import free_port
from tests.support.engine.small_runs import result_bytes, run_config

TRAIN = {
    "num_steps": 40,
    "checkpoint_every": 3,
    "validate_every": 10,
    "checkpoint_in_background": True,
    "keep_checkpoints_every": 9,
    "keep_best_checkpoint": True,
}
LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "one process": {},
    "one process, averages, state on disk": {
        "train": {"ema": 0.9, "checkpoint_in_background": False},
        "optim": {"state_in": "disk"},
    },
    "ddp 2, Muon": {"parallel": {"kind": "ddp", "num_processes": 2}, "optim": {"kind": "muon"}},
    "zero1 2": {"parallel": {"kind": "zero1", "num_processes": 2}},
    "fsdp 2, weights in main memory": {
        "parallel": {"kind": "fsdp", "num_processes": 2},
        "memory": {"weights_in": "host"},
    },
    "tp 2": {"parallel": {"kind": "ddp", "num_processes": 2, "tp": 2}},
    "pp 2": {"parallel": {"kind": "ddp", "num_processes": 2, "pp": 2}},
    "cp 2": {"parallel": {"kind": "ddp", "num_processes": 2, "cp": 2}},
    "fsdp 2, LoRA": {
        "parallel": {"kind": "fsdp", "num_processes": 2},
        "adapter": {"kind": "lora", "rank": 4},
    },
    "ddp 2, QLoRA": {
        "parallel": {"kind": "ddp", "num_processes": 2},
        "train": {"dtype": "bf16"},
        "adapter": {"kind": "lora", "rank": 4, "base_dtype": "bf16", "base_codes": "nf4"},
    },
}
KILLED = -signal.SIGKILL
ENDS_S, WHOLE_S = 5.0, 900.0
"""Longest that ranks may outlive a killed one, and that a run may take."""


def configure(folder: Path, layout: dict[str, dict[str, Any]]) -> RunConfig:
    folder.mkdir(parents=True)
    train = TRAIN | layout.get("train", {})
    config = run_config(folder, train=train, parallel=layout.get("parallel"))
    if "adapter" in layout:
        config = beside_a_base(config, AdapterConfig(**layout["adapter"]), folder / "base")
    return dataclasses.replace(
        config,
        optim=dataclasses.replace(config.optim, **layout.get("optim", {})),
        memory=MemoryConfig(**layout.get("memory", {})),
    )


def beside_a_base(config: RunConfig, adapter: AdapterConfig, folder: Path) -> RunConfig:
    """The run with an adapter beside a frozen model, wide enough for blocks of codes."""
    model = dataclasses.replace(config.model, dim=64, ffn_dim=128)
    base = Transformer(model)
    init_weights(base, 3)
    export_model(model, base.state_dict(), folder)
    train = dataclasses.replace(config.train, init_from=folder)
    return dataclasses.replace(config, model=model, train=train, adapter=adapter)


def start(config: RunConfig, place: Path) -> Ended:
    """The ranks of a run, and a store of their own beside them, as torchrun has it."""
    place.mkdir(exist_ok=True)
    world, log, port = config.parallel.num_processes, place.with_suffix(".log"), free_port()
    store = None if world == 1 else fork(log, {}, lambda: serve(port))
    ranks = []
    for rank in range(world):
        of_rank = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port}
        of_rank |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": True}
        ranks.append(fork(log, of_rank if world > 1 else {}, lambda: run_in(place, config)))
    return Ended(ranks, store)


def serve(port: int) -> None:
    _store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    while True:
        time.sleep(60.0)


def fork(log: Path, environment: dict[str, object], work: Callable[[], object]) -> int:
    """The process id of a child that does the work and ends."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            terminate_with_parent(number=signal.SIGKILL)
            stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(stream, 1)
            os.dup2(stream, 2)
            os.environ |= {name: str(value) for name, value in environment.items()}
            work()
            code = 0
        finally:
            if code:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(code)
    return pid


class Ended:
    """Exit codes of ranks, as they end; the store is ended with the last."""

    def __init__(self, pids: list[int], store: int | None) -> None:
        self.pids, self.codes, self._store = pids, dict[int, int](), store

    def all(self, limit_s: float) -> bool:
        """Whether all have ended within a time."""
        until = time.monotonic() + limit_s
        while True:
            for pid in self.pids:
                if pid not in self.codes:
                    found, status = os.waitpid(pid, os.WNOHANG)
                    if found:
                        self.codes[pid] = os.waitstatus_to_exitcode(status)
            ended = len(self.codes) == len(self.pids)
            if ended and self._store is not None:
                os.kill(self._store, signal.SIGKILL)
                os.waitpid(self._store, 0)
                self._store = None
            if ended or time.monotonic() > until:
                return ended
            time.sleep(0.01)

    def kill(self, pids: list[int]) -> None:
        for pid in pids:
            if pid not in self.codes:
                os.kill(pid, signal.SIGKILL)


def torture(
    name: str, folder: Path, kills: int, moments: random.Random, findings: list[str]
) -> tuple[int, int]:
    """(kills, runs that reached their end) under a layout."""
    config = configure(folder, LAYOUTS[name])
    began = time.monotonic()
    whole = start(config, folder / "whole")
    if not whole.all(WHOLE_S) or any(whole.codes.values()):
        whole.kill(whole.pids)
        findings.append(f"{name}: the undisturbed run ended with {whole.codes}")
        return 0, 0
    whole_s, expected = time.monotonic() - began, result_bytes(folder / "whole")
    killed = runs = ended_by_us = 0
    while killed < kills:
        place = folder / f"killed-{runs}"
        while True:
            ranks = start(config, place)
            is_over = ranks.all(moments.uniform(0.0, 0.6 * whole_s) if killed < kills else WHOLE_S)
            if not is_over and killed < kills:
                one = moments.choice(ranks.pids)
                ranks.kill(ranks.pids if moments.random() < 0.4 else [one])
                killed += 1
                if not ranks.all(ENDS_S):
                    ended_by_us += 1
                    ranks.kill(ranks.pids)
                is_over = ranks.all(WHOLE_S)
            if not is_over:
                ranks.kill(ranks.pids)
                findings.append(f"{name}: no end in {WHOLE_S:.0f} s: {place.with_suffix('.log')}")
                return killed, runs
            if not any(ranks.codes.values()):
                break
            if KILLED not in ranks.codes.values():
                findings.append(f"{name}: ended with {ranks.codes}: {place.with_suffix('.log')}")
                return killed, runs
        try:
            found = result_bytes(place)
        except FileNotFoundError as error:
            findings.append(f"{name}: a run ended without {error.filename}")
            return killed, runs
        different = [file for file in expected if found[file] != expected[file]]
        if different:
            findings.append(f"{name}: other bytes in {different} of {place}")
        else:
            rmtree(place)
        runs += 1
    note(f"{name}: {ended_by_us} times neighbours of a killed rank were ended")
    return killed, runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--place", type=Path, help="an empty folder, kept afterwards")
    parser.add_argument("--only", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    options = parser.parse_args()
    torch.set_num_threads(1)  # forks of a process with threads may hang
    moments, findings, began = random.Random(options.seed), list[str](), time.monotonic()
    victims, runs = Counter[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        place = (options.place or Path(folder)).resolve()
        for number, name in enumerate(options.only):
            share, rest = divmod(options.kills, len(options.only))
            kills = share + (number < rest)
            killed, ended = torture(name, place / str(number), kills, moments, findings)
            victims[name] += killed
            runs += ended
            note(f"{name}: {killed} kills, {ended} runs, {len(findings)} findings so far")
    report = {
        "kills": victims.total(),
        "seed": options.seed,
        "runs": runs,
        "victims": dict(victims),
        "findings": findings,
        "elapsed_s": round(time.monotonic() - began),
    }
    show(json.dumps(report))
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
