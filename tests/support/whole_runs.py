"""Whole pipelines as a user starts them, in processes of their own: small enough to be run, killed
and compared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flows.services.processes import descendants, start_time
from llm_core.training.metric_log import METRICS_FILE, read_rows, training_rows
from tasks.runtime.artifact import digest_file
from tasks.runtime.code import ROOT
from tasks.runtime.graph import STAGES

SAMPLE = ROOT / "data/sample/sample.jsonl"

SMALL = [
    "run=demo",
    "tracking=off",
    "orchestrator=none",
    "model.dim=32",
    "model.num_layers=1",
    "model.num_heads=2",
    "model.num_kv_heads=2",
    "model.ffn_dim=64",
    "train.seq_len=32",
    "train.num_steps=12",
    "train.validate_every=4",
    "train.checkpoint_every=3",
    "train.max_val_sequences=16",
    "tokenizer.vocab_size=300",
    "evaluate.max_documents=2",
    "evaluate.max_document_tokens=200",
    "evaluate.num_document_prompts=1",
    "generate.max_new_tokens=4",
    "bench.batches=[1]",
    "bench.prompt_tokens=[8]",
    "bench.new_tokens=[4]",
    "bench.repeats=3",
    "bench.check_tokens=4",
    "bench.weights=[model]",
    "bench.concurrencies=[]",
]

MEASURED = ("bench", "report")
"""Stages whose files hold times: everything else is the same bytes in every run."""

CLOCK = (
    "tokens_per_s",
    "mfu_causal",
    "mfu_full",
    "data_wait_frac",
    "timing",
    "max_memory_bytes",
    "peak_flops",
    "prefill_tok_s",
    "decode_tok_s",
    "elapsed_s",
    "part_elapsed_s",
    "events",  # that it was stopped, and went on
    "plan",  # what was measured beside it: a process that makes no step has no gradients
)


def make_corpus(
    folder: Path, num_files: int = 3, rows_per_file: int = 20, first_row: int = 0
) -> Path:
    """A piece of the embedded corpus as several files, with a near-duplicate across files and a
    broken line. first_row: 250 for one that holds edited prose."""
    folder.mkdir(parents=True)
    lines = SAMPLE.read_text("utf-8").splitlines()[first_row:]
    for i in range(num_files):
        rows = [*lines[i * rows_per_file : (i + 1) * rows_per_file], lines[0], '{"text": broken']
        (folder / f"{i}.jsonl").write_text("\n".join(rows) + "\n", "utf-8")
    return folder


def command(flow: str, corpus: Path, place: Path, *overrides: str) -> list[str]:
    """A run that keeps everything under `place`."""
    places = [
        f"source.paths=['{corpus}']",
        f"store='{place / 'store'}'",
        f"state='{place / 'state'}'",
    ]
    return [sys.executable, "-m", "flows.cli", flow, *SMALL, "num_workers=2", *places, *overrides]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def run(
    flow: str, corpus: Path, place: Path, *overrides: str, code: int = 0, **more: str
) -> subprocess.CompletedProcess[str]:
    """A run to its end, which must be `code`."""
    done = subprocess.run(
        command(flow, corpus, place, *overrides),
        env=environment(**more),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr[-3000:]
    assert code not in (0, 2) or "Traceback" not in done.stderr, done.stderr[-3000:]
    return done


def summary(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return dict(json.loads(done.stdout.splitlines()[-1]))


@contextmanager
def started(
    flow: str, corpus: Path, place: Path, *overrides: str
) -> Iterator[subprocess.Popen[str]]:
    """A run in progress; whatever is left of it at the end is killed."""
    place.mkdir(parents=True, exist_ok=True)
    with (place / "log.txt").open("a") as log:
        process = subprocess.Popen(
            command(flow, corpus, place, *overrides),
            env=environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        yield process
    finally:
        kill_tree(process)


def kill_tree(process: subprocess.Popen[str]) -> None:
    """SIGKILL to a run and all it has started, at one moment: stopped first, so that nothing is
    started meanwhile."""
    if process.poll() is not None:
        return
    os.kill(process.pid, signal.SIGSTOP)
    pids = [pid for pid in descendants([process.pid]) if start_time(pid)]
    for pid in pids:
        signal_if_alive(pid, signal.SIGKILL)
    process.wait()


def signal_if_alive(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def wait_for(what: Any, process: subprocess.Popen[str], limit_s: float = 250.0) -> Any:
    """What a condition gives once it is true; fails when the run ends before."""
    until = time.monotonic() + limit_s
    while not (found := what()):
        assert process.poll() is None, (
            f"the run ended with {process.returncode} before it could be disturbed"
        )
        assert time.monotonic() < until, "the run did not come so far"
        time.sleep(0.01)
    return found


def named(pid: int, words: str) -> list[int]:
    """Processes started by `pid` whose command line holds `words`."""
    found = []
    for child in descendants([pid])[1:]:
        try:
            line = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if words in line:
            found.append(child)
    return found


def contents(place: Path, stages: Sequence[str] = tuple(STAGES)) -> dict[str, Any]:
    """Everything in the finished artifacts that may not depend on how a run went: keys, digests,
    counters, metrics.

    Files are read again, so that a record that does not tell the truth about them is found too.
    """
    found: dict[str, Any] = {}
    for stage in stages:
        for path in sorted((place / "store" / stage).glob("*")):
            record = json.loads((path / "artifact.json").read_text("utf-8"))
            recorded = {entry["path"]: entry["digest"] for entry in record["files"]}
            actual = {name: digest_file(path / name) for name in recorded}
            assert actual == recorded, f"{stage}: the record does not describe its files"
            assert {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()} == {
                *recorded,
                "artifact.json",
            }
            if (
                stage == "train"
            ):  # of the metrics what training did, without what happened to the run
                rows = training_rows(read_rows(path / METRICS_FILE))
                recorded = recorded | {METRICS_FILE: json.dumps(rows)}
            found[f"{stage}/{path.name}"] = {
                "identity": record["identity"],
                "counters": without_clock(record["counters"]) if stage not in MEASURED else None,
                "metrics": without_clock(record["metrics"]) if stage not in MEASURED else None,
                "files": recorded if stage not in MEASURED else sorted(recorded),
            }
    return found


def without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_clock(v) for k, v in value.items() if k not in CLOCK}
    return [without_clock(v) for v in value] if isinstance(value, list) else value
