"""Runs small enough for a test: a learnable stream of token ids, its shards on disk, and configs to
match."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from llm_core.config import to_plain
from llm_core.data.shards import digest_tokens
from llm_core.model.config import ModelConfig
from llm_core.optim.config import OptimConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.training.config import TrainConfig
from llm_core.training.metric_log import MetricLog, is_of_run, read_rows
from llm_core.training.run_config import RunConfig
from llm_core.training.status import read_status
from llm_core.training.train import run
from tasks.runtime.code import ROOT

VOCAB_SIZE = 51
"""Odd on purpose: it divides by no number of processes."""

MODEL = ModelConfig(
    vocab_size=VOCAB_SIZE,
    dim=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    ffn_dim=48,
    max_seq_len=64,
    tied_embeddings=True,
)
OPTIM = OptimConfig(lr=3e-3, warmup_steps=3)
TRAIN = TrainConfig(
    num_steps=12,
    global_batch_sequences=8,
    micro_batch_sequences=2,
    seq_len=16,
    seed=7,
    validate_every=5,
    max_val_sequences=7,
    checkpoint_every=4,
)


RESULT_FILES = ("metrics.jsonl", "model/config.json", "model/model.safetensors")


def token_stream(length: int, seed: int) -> np.ndarray:
    """A noisy walk over the ids: the next id mostly follows from the last."""
    steps = np.random.default_rng(seed).choice([1, 2, 7], size=length, p=[0.7, 0.2, 0.1])
    return (np.cumsum(steps) % (VOCAB_SIZE - 1) + 1).astype(np.uint16)


def write_token_shards(
    folder: Path,
    num_documents: int = 40,
    document_tokens: int = 60,
    sources: tuple[str, ...] = ("walk",),
) -> Path:
    """A train and a validation split of one shard each, in the format that `llm_core.data.shards`
    reads; `sources` take turns."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, split in enumerate(("train", "validation")):
        documents = [token_stream(document_tokens, 100 * seed + i) for i in range(num_documents)]
        for document in documents:
            document[-1] = 0
        metadata = {
            "split": split,
            "eos_id": "0",
            "seed": "0",
            "shard": "0",
            "num_shards": "1",
            "tokenizer_digest": "none",
            "config_digest": "none",
            "num_tokens": str(num_documents * document_tokens),
            "tokens_digest": digest_tokens(np.concatenate(documents)),
        }
        columns = {
            "tokens": pa.array(documents, pa.large_list(pa.uint16())),
            "id": pa.array([bytes([seed, i]) * 8 for i in range(num_documents)], pa.binary(16)),
            "source": pa.array(
                [sources[i % len(sources)] for i in range(num_documents)], pa.string()
            ),
            "language": pa.array(["und"] * num_documents, pa.string()),
            "num_bytes": pa.array([document_tokens] * num_documents, pa.int64()),
            "continues": pa.array([False] * num_documents, pa.bool_()),
        }
        batch = pa.RecordBatch.from_pydict(columns)
        schema = batch.schema.with_metadata(metadata)
        with pa.ipc.new_file(folder / f"{split}-00000.arrow", schema) as writer:
            writer.write_batch(batch.replace_schema_metadata(metadata))
    return folder


def write_bytes_per_token(path: Path) -> Path:
    table = np.arange(VOCAB_SIZE, dtype=np.int32) % 5 + 1
    table[0] = 0
    np.save(path, table)
    return path


def run_config(
    folder: Path, *, train: dict[str, Any] | None = None, parallel: dict[str, Any] | None = None
) -> RunConfig:
    """A run over fresh shards in `folder`, with overrides."""
    return RunConfig(
        model=MODEL,
        optim=OPTIM,
        train=dataclasses.replace(TRAIN, **(train or {})),
        parallel=ParallelConfig(**({"device": "cpu", "num_threads": 1} | (parallel or {}))),
        shards=write_token_shards(folder / "shards"),
        bytes_per_token=write_bytes_per_token(folder / "bytes_per_token.npy"),
    )


def write_config(path: Path, config: RunConfig) -> Path:
    path.write_text(json.dumps(to_plain(config)), "utf-8")
    return path


def change_config(folder: Path, **values: object) -> None:
    """Set `group__key` of the config in a folder."""
    found = json.loads((folder / "config.json").read_text("utf-8"))
    for name, value in values.items():
        group, _, key = name.rpartition("__")
        (found[group] if group else found)[key] = value
    (folder / "config.json").write_text(json.dumps(found), "utf-8")


def trainer_arguments(folder: Path, config: RunConfig) -> list[str]:
    """Arguments of a trainer that works in `work`, with the config written beside it."""
    file = write_config(folder / "config.json", config)
    return ["--config", str(file), "--workdir", str(folder / "work")]


def kill_trainer(folder: Path, config: RunConfig, num_rows: int = 10) -> subprocess.Popen[bytes]:
    """A trainer in a process of its own that was killed once so many rows were logged."""
    command = [sys.executable, "-m", "llm_core.training.train", *trainer_arguments(folder, config)]
    trainer = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)})
    while trainer.poll() is None and len(read_rows(folder / "work" / "metrics.jsonl")) < num_rows:
        time.sleep(0.002)
    trainer.kill()
    trainer.wait()
    return trainer


def result_bytes(workdir: Path) -> dict[str, bytes]:
    """What a finished run leaves, by name; of the metrics what training did, without what happened
    to the run."""
    found = {name: (workdir / name).read_bytes() for name in RESULT_FILES}
    lines = found["metrics.jsonl"].splitlines(keepends=True)
    return found | {
        "metrics.jsonl": b"".join(line for line in lines if not is_of_run(json.loads(line)))
    }


def signal_when(step: int, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send a signal to this process as soon as `step` has been logged."""
    write = MetricLog.write

    def write_and_signal(self: MetricLog, row: dict[str, float]) -> None:
        write(self, row)
        if row["step"] == step and "train_loss" in row:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(MetricLog, "write", write_and_signal)


def stop_and_resume(config: RunConfig, workdir: Path, step: int) -> Path:
    """Train, stop once `step` has been logged and saved, and resume to the end; the work
    directory."""
    workdir.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        signal_when(step, signal.SIGTERM, patch)
        run(config, workdir)
    assert read_status(workdir / "status.json")["outcome"] == "preempted"
    run(config, workdir)
    return workdir
