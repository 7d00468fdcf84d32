"""Train the model on token shards: `llm_core.training.train` in processes of its own, watched from
here.

The trainer is a separate session, so that a crash, a kill or a Ctrl-C of this process never takes a
step in half: it gets SIGTERM, saves a checkpoint and stops, and the next run resumes there. It
reads one resolved config file and answers with files: `status.json` says how it ended, whatever its
return code, `metrics.jsonl` holds the curves.

Reads token shards, the tokenizer's bytes-per-token table and its Hugging Face files; writes
`model/`, `metrics.jsonl`, `model_config.json`, and `profile/` (times, so never the same twice)
where `train.profile_steps` asks for one. Bitwise reproducible at equal layout and threads, also
over kills, but for the rows of `metrics.jsonl` that tell of them; other layouts agree within
rounding. Work in progress lives in the scratch directory and survives.
"""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from llm_core.config import ConfigError, to_plain
from llm_core.training.metric_log import METRICS_FILE, PROFILE_FOLDER, TIMING_FILE, read_rows
from llm_core.training.run_config import RunConfig
from llm_core.training.status import STATUS_FILE, read_status
from tasks.runtime.artifact import Artifact, digest_file, write_json
from tasks.runtime.keys import digest, key_config
from tasks.runtime.parts import RunParts, scratch_dir, serial
from tasks.training.config import TrainStageConfig
from tasks.training.initial_model import check_vocabulary
from tasks.training.progress import TrainingProgress
from tasks.training.trainer_process import run_trainer
from tasks.training.training_speed import Row, attended_tokens, series, speed

MODEL_FOLDER, MODELS_FOLDER = "model", "models"
MAX_CURVE_POINTS = 200
LAST_STEPS = 20
"""Steps over which load is averaged: that of one batch is noisy."""


def train_model(
    tokenizer: Artifact,
    shards: Artifact,
    out_dir: Path,
    config: TrainStageConfig,
    run_parts: RunParts = serial,
) -> Artifact:
    """Train to the last step, resuming from the last checkpoint of an earlier try.

    Raises ConfigError where it does not fit the devices it is for, StageInterrupted when the
    trainer was asked to stop and saved, StageFailure with its last words when it broke.
    """
    from tasks.tokenizer.encoder import export_hugging_face

    # By its name, as the module for jobs below: neither changes a result, so neither is in a key.
    planned = import_module("tasks.training.planned")
    run = planned.with_prediction(resolve(config, tokenizer, shards), config.hardware)
    # Named by what is trained, so that a scratch directory reused for something else never resumes
    # from it.
    initial = {name: digest_file(file) for name, file in config.input_files().items()}
    identity = {"config": key_config(config), "parents": [_content(tokenizer), _content(shards)]}
    identity |= {"initial": initial} if initial else {}
    workdir = scratch_dir(out_dir) / f"run-{digest(identity)}"
    workdir.mkdir(parents=True, exist_ok=True)
    write_json(workdir / "config.json", to_plain(run))
    with closing(TrainingProgress(run.train.num_steps)) as progress:
        jobs = import_module("tasks.training.cluster_job")
        if config.cluster.kind == "local":
            jobs.require_no_job(workdir, config.cluster)
            run_trainer(run, workdir, progress.show)
        else:
            jobs.run_in_job(run, workdir, out_dir, config.cluster, progress.show)

    shutil.copytree(workdir / MODEL_FOLDER, out_dir / MODEL_FOLDER, dirs_exist_ok=True)
    export_hugging_face(tokenizer.path, out_dir / MODEL_FOLDER)
    if (kept := workdir / MODELS_FOLDER).is_dir():
        shutil.copytree(kept, out_dir / MODELS_FOLDER)
    shutil.copyfile(workdir / METRICS_FILE, out_dir / METRICS_FILE)
    if run.train.profile_steps and (workdir / PROFILE_FOLDER).exists():
        shutil.copytree(workdir / PROFILE_FOLDER, out_dir / PROFILE_FOLDER)
    write_json(out_dir / "model_config.json", to_plain(run.model))
    made = summarize(run, workdir, out_dir)
    held_bytes = read_status(workdir / STATUS_FILE).get("held_bytes", {})
    plan = planned.beside_measured(run, config.hardware, made.metrics, held_bytes)
    return replace(made, metrics={**made.metrics, "plan": plan})


def resolve(config: TrainStageConfig, tokenizer: Artifact, shards: Artifact) -> RunConfig:
    """Everything the trainer needs to know, the vocabulary taken from the tokenizer. Raises
    ConfigError."""
    table = tokenizer.file("bytes_per_token.npy").resolve()
    num_ids = len(np.load(table, mmap_mode="r", allow_pickle=False))
    if 0 < config.model.vocab_size < num_ids:
        raise ConfigError(
            f"model.vocab_size ({config.model.vocab_size}) is less than the {num_ids} ids of the"
            " tokenizer; set it to 0 to take them all"
        )
    train, vocab_size = config.train, config.model.vocab_size or num_ids
    if train.init_from is not None:
        grows = train.init_vocab == "grow"
        vocab_size = check_vocabulary(train.init_from, tokenizer.path, num_ids, grows)
        train = replace(train, init_from=train.init_from.resolve())
    model, adapter = replace(config.model, vocab_size=vocab_size), config.adapter
    if adapter.init_from is not None:
        adapter = replace(adapter, init_from=adapter.init_from.resolve())
    parallel = config.parallel
    if (folder := parallel.outer.folder) is not None:
        parallel = replace(parallel, outer=replace(parallel.outer, folder=folder.resolve()))
    return RunConfig(
        model,
        config.optim,
        train,
        parallel,
        shards.path.resolve(),
        table,
        config.memory,
        adapter,
    )


def summarize(run: RunConfig, workdir: Path, out_dir: Path) -> Artifact:
    """The artifact of a finished run, with the curves the report draws."""
    rows = read_rows(workdir / METRICS_FILE)
    timing = read_rows(workdir / TIMING_FILE)
    status = read_status(workdir / STATUS_FILE)
    steps = [row for row in rows if "train_loss" in row]
    validations = [row for row in rows if "val_loss" in row]
    attended = attended_tokens(timing, run.train.seq_len)
    # The last step of every full stride; the very last one has `final_train_loss`.
    stride = -(-len(steps) // MAX_CURVE_POINTS)
    curve = steps[stride - 1 :: stride]
    metrics = {
        "num_parameters": run.model.num_parameters(),
        "num_steps": run.train.num_steps,
        "final_train_loss": steps[-1]["train_loss"],
        "final_val_loss": validations[-1]["val_loss"],
        "val_bpb": validations[-1]["val_bpb"],
        **speed(timing),
        "timing": series(timing),
        "peak_flops": {"per_device": status["peak_flops"], "is": status["peak_is"]},
        "training_flops_per_token": run.trained_model.training_flops_per_token(attended),
        "curve": [{"step": row["step"], "train_loss": row["train_loss"]} for row in curve],
        "val_curve": validations,
        **of_experts(steps, curve),
        "events": dict(Counter(event_name(row) for row in rows if "event" in row)),
        "device": status["device"],
        "dtype": run.train.dtype,
        "packing": status["packing"],
        "layout": {
            "kind": run.parallel.kind,
            "num_processes": status["num_processes"],
            "num_threads": status["num_threads"],
        },
    }
    counters = {"tokens": run.train.total_tokens, "steps": run.train.num_steps}
    return Artifact(out_dir, "train", counters, metrics)


def of_experts(steps: list[Row], curve: list[Row]) -> dict[str, Any]:
    """How tokens were shared among experts: the largest load over the mean, in the worst layer step
    by step, and in each layer over the last steps, with the entropy. Empty for a dense model."""
    if not steps or "expert_load" not in steps[-1]:
        return {}
    last = steps[-LAST_STEPS:]
    layers = [
        {
            "layer": number,
            "load": fmean(row["expert_load"][number] for row in last),
            "entropy": fmean(row["expert_entropy"][number] for row in last),
        }
        for number in range(len(last[0]["expert_load"]))
    ]
    worst = [{"step": row["step"], "load": max(row["expert_load"])} for row in curve]
    return {"experts": {"layers": layers, "curve": worst, "last_steps": len(last)}}


def event_name(row: Row) -> str:
    """What to count an event as; of a skipped step with its reason, since the overflows of fp16 are
    in the order of things."""
    return f"{row['event']}_{row['reason']}" if "reason" in row else str(row["event"])


def _content(parent: Artifact) -> str:
    files = sorted(p for p in parent.path.rglob("*") if p.is_file() and p.name != "artifact.json")
    names = [p.relative_to(parent.path).as_posix() for p in files]
    return digest({name: parent.file_digest(name) for name in names})
