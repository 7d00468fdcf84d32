"""The trainer process: `torchrun -m llm_core.training.train --config resolved.json --workdir DIR`,
or one process without torchrun.

Its only input is the resolved config file. In the work directory it keeps `checkpoints/`,
`metrics.jsonl`, `timing.jsonl` and `status.json`, resumes from the newest checkpoint it finds
there, and leaves the model in `model/` when it finishes. SIGTERM and SIGUSR1 ask it to save and
stop (code 75); a second trainer in the same directory waits for the first to end. A user error
is one line on stderr and code 2, of each process that finds it; a defect is a traceback.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType

from llm_core.checkpoint.checkpoints import Checkpoints
from llm_core.checkpoint.index import CheckpointError
from llm_core.config import ConfigError
from llm_core.data.loader import Loader
from llm_core.data.prefetch import Prefetch
from llm_core.data.shards import ShardError, TokenShards, open_shards
from llm_core.device import device_name, memory_bytes, set_threads
from llm_core.huggingface.upcycling import read_initial_weights
from llm_core.optim.build import build_optimizer
from llm_core.optim.guard import TrainingDiverged
from llm_core.optim.optimizer import Optimizer
from llm_core.parallel.apply import build_layout
from llm_core.parallel.frozen import frozen_bytes
from llm_core.parallel.hosts.flight import FLIGHT_FOLDER
from llm_core.parallel.layout import Layout
from llm_core.parallel.ranks import Ranks, open_ranks
from llm_core.parallel.weights import each_whole_weight, initialize, write_weights
from llm_core.printing import escape_defects, note
from llm_core.process import terminate_with_parent
from llm_core.profiling.recorder import Recorder
from llm_core.profiling.roofline import training_peak
from llm_core.training.adapted import fill_factors, is_plain, publish_adapted, trains
from llm_core.training.alarms import watch
from llm_core.training.fastest import with_fastest
from llm_core.training.made_with import digest_of, made_with
from llm_core.training.metric_log import (
    METRICS_FILE,
    PROFILE_FOLDER,
    TIMING_FILE,
    MetricLog,
)
from llm_core.training.outer.diloco import Outer, make_outer
from llm_core.training.references import ReferenceTable
from llm_core.training.rollback import Rollback
from llm_core.training.run_config import RunConfig, read_run_config
from llm_core.training.status import STATUS_FILE, Heartbeat
from llm_core.training.throughput import StepClock
from llm_core.training.trainer import Preempted, Trainer
from llm_core.training.validate import padded_bytes_per_token, read_validation_set
from llm_core.training.workdir import (
    MODEL_FOLDER,
    MODELS_FOLDER,
    hold_workdir,
    is_first_rank,
    last_step,
    publish_model,
)

TRY_AGAIN = os.EX_TEMPFAIL
"""Exit code of a run that was asked to stop and has saved: started again, it resumes."""
REFUSED = 2
"""Exit code of a run that is refused, diverges or cannot write; it would end so again."""
USER_ERRORS = (ConfigError, ShardError, CheckpointError, TrainingDiverged, OSError)
"""What ends with that code and one line, which names the way out; anything else is a defect."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="resolved run config, JSON")
    parser.add_argument(
        "--workdir", type=Path, required=True, help="where checkpoints and metrics are kept"
    )
    arguments = parser.parse_args(argv)
    escape_defects()
    try:
        outcome = run_in(arguments.workdir, read_run_config(arguments.config))
    except USER_ERRORS as error:
        note(f"llm_core.training.train: {error}")
        sys.exit(REFUSED)
    if outcome == "preempted":
        sys.exit(TRY_AGAIN)


def run_in(workdir: Path, config: RunConfig) -> str:
    """`run` as the only trainer in a directory, with `status.json` kept whatever happens."""
    workdir.mkdir(parents=True, exist_ok=True)
    if "TORCHELASTIC_RUN_ID" in os.environ:  # a killed torchrun would leave its ranks behind
        terminate_with_parent()
    with hold_workdir(workdir):
        if not is_first_rank():
            return run(config, workdir)
        with Heartbeat(workdir, last_step(workdir)) as status:
            try:
                return run(config, workdir, status)
            except BaseException as error:
                try:
                    status.end("failed", error=str(error), refused=isinstance(error, USER_ERRORS))
                # Often what went wrong in the first place, which must be told.
                except OSError as no_room:
                    note(f"{workdir / STATUS_FILE} was not written: {no_room}")
                raise


def run(config: RunConfig, workdir: Path, status: Heartbeat | None = None) -> str:
    """Train to the end or until asked to stop: "finished" or "preempted", as in `status.json`."""
    stop = StopFlag()
    status = status or Heartbeat(workdir)
    num_threads = set_threads(config.parallel.num_threads, config.parallel.num_processes)
    flight = workdir / FLIGHT_FOLDER
    told: list[MetricLog] = []
    with open_ranks(config.parallel, flight) as ranks, ExitStack() as logs:
        if ranks.world > 1:
            logs.enter_context(watch(config, ranks, flight, told, status))
        if config.predicted is not None:
            room = memory_bytes(ranks.device), device_name(ranks.device)
            config.predicted.require_room(*room, config.memory.if_too_large)
        shards = open_shards(config.shards, "train")
        if config.train.data.verify_shards and ranks.is_first:
            shards.verify()
        validation_shards = open_shards(config.shards, "validation")
        for split in (shards, validation_shards):
            split.check_ids(config.model.vocab_size)
        loader = build_loader(config, shards, ranks)
        config = with_fastest(config, ranks)
        peak_flops, peak_is = training_peak(ranks.device, config.train.dtype)
        facts = {
            "device": device_name(ranks.device),
            "num_processes": ranks.world,
            "num_threads": num_threads,
            "packing": dataclasses.asdict(loader.shares()),
            "peak_flops": peak_flops,
            "peak_is": peak_is,
            "kernels": {name: getattr(config.train, name) for name in ("attention", "kernels")},
        }
        metrics = timing = None
        if ranks.is_first:
            metrics = logs.enter_context(MetricLog(workdir / METRICS_FILE))
            told.append(metrics)
            logs.callback(told.clear)  # before it is closed
        if metrics and status.earlier.get("outcome") in ("running", "died"):
            died = status.earlier.get(
                "cause", f"process {status.earlier.get('pid')} ended without a word"
            )
            metrics.tell("died", int(status.earlier["step"]), died)
        report, identity = reporter(metrics), made_with(config, shards, validation_shards)
        train, on_gpu = config.train, ranks.device.type == "cuda"
        with (
            Prefetch(loader.batch, train.num_steps, train.data.prefetch_batches, on_gpu) as batches,
            Checkpoints(
                workdir / "checkpoints", ranks, *checkpointing(config, ranks), report, identity
            ) as saved,
            Checkpoints(workdir / "points", ranks, report=report, made_with=identity) as points,
        ):
            validation = read_validation_set(
                validation_shards,
                train.seq_len,
                train.max_val_sequences,
                padded_bytes_per_token(config.bytes_per_token, config.model.vocab_size),
                train.data,
            )
            pairs = None
            if train.learns_pairs:
                splits = digest_of(shards), digest_of(validation_shards)
                pairs = ReferenceTable(config, workdir, ranks, loader, validation, splits)
            layout, optimizer, start, outer = resume(config, workdir, ranks, saved, metrics, pairs)
            validation = validation if pairs is None else pairs.validation
            if outer is not None:
                start = logs.enter_context(outer.attended(start, identity, stop))
            if ranks.is_first:
                timing = logs.enter_context(MetricLog(workdir / TIMING_FILE, start))

            def publish(folder: str) -> None:
                ends = shards.eos_id, shards.turn_end_ids
                with trainer.published():
                    weights = each_whole_weight(layout, ranks)
                    if config.adapter.kind != "none" and ranks.is_first:
                        publish_adapted(config, weights, workdir, *ends, folder)
                    else:
                        publish_model(config.model, weights, workdir, *ends, folder)

            guard, recorder = config.optim.guard, None
            if train.profile_steps:
                first, last = train.profile_steps
                recorder = Recorder(first, last, workdir / PROFILE_FOLDER, ranks)
            trainer = Trainer(
                layout=layout,
                optimizer=optimizer,
                batches=batches,
                validation=validation,
                config=config,
                ranks=ranks,
                checkpoints=saved,
                metrics=metrics,
                timing=timing,
                clock=StepClock(config, ranks, peak_flops, metrics.tell if metrics else None),
                should_stop=stop,
                rollback=Rollback(guard, points) if guard.rollback_skips else None,
                recorder=recorder,
                sources=loader.sources.names if loader.sources else (),
                on_step=status.note_step if ranks.is_first else None,
                outer=outer,
                keep_model=lambda step: publish(f"{MODELS_FOLDER}/step-{step:08d}"),
            )
            if ranks.is_first:
                status.note_step(start)
                status.tell(**facts)
            try:
                trainer.run(start)
            except Preempted:
                outcome = "preempted"
            else:
                outcome = "finished"
        if outcome == "finished":
            publish(MODEL_FOLDER)
        if ranks.is_first:
            status.end(outcome, held_bytes=held_bytes(layout, optimizer))
        ranks.barrier()
    return outcome


def held_bytes(layout: Layout, optimizer: Optimizer) -> dict[str, int]:
    """What this process holds, as the optimizer says it, with the frozen weights."""
    held = optimizer.held_bytes()
    return held | {"weights": held["weights"] + frozen_bytes(layout.bare, layout.device)}


def reporter(metrics: MetricLog | None) -> Callable[[str, int, str], None] | None:
    """Tells what happened to checkpoints in the metrics and on stderr, on the first rank."""
    if metrics is None:
        return None

    def report(event: str, step: int, what: str) -> None:
        metrics.tell(event, step, what)
        note(f"llm_core.training.train: {event} (step {step}): {what}")

    return report


def build_loader(config: RunConfig, shards: TokenShards, ranks: Ranks) -> Loader:
    train, place = config.train, config.parallel.outer.place or (ranks.data_rank, ranks.data_world)
    return Loader(shards, train.seq_len, train.batch_sizes, train.seed, *place, train.data)


def checkpointing(config: RunConfig, ranks: Ranks) -> tuple[int, bool, int, bool]:
    """(newest checkpoints kept, whether the best is too, steps between others that are, whether
    training goes on meanwhile)."""
    train = config.train
    in_background = train.checkpoint_in_background
    if in_background is None:
        # State is on disk because memory has no room for it, so it has none for a copy.
        in_background = ranks.device.type == "cuda" and config.optim.state_in != "disk"
    kept = train.keep_checkpoints, train.keep_best_checkpoint, train.keep_checkpoints_every
    return *kept, in_background


def resume(
    config: RunConfig,
    workdir: Path,
    ranks: Ranks,
    checkpoints: Checkpoints,
    metrics: MetricLog | None,
    pairs: ReferenceTable | None = None,
) -> tuple[Layout, Optimizer, int, Outer | None]:
    """Model and optimizer as the newest checkpoint has them, its step, and who meets others. pairs:
    gets what it lacks from the model that the run begins with."""
    train = config.train
    given = config.trained_model, config.parallel, train, ranks, config.memory
    layout = build_layout(
        *given,
        fill=False,
        trains=partial(trains, config),
        sums_losses=not train.learns_pairs,
        noise_scale=train.noise_scale(config.model.dim),
        scratch=config.optim.state_folder or workdir,
    )
    optimizer = build_optimizer(layout, config.optim, train.dtype, workdir, train.ema)
    outer = make_outer(config.parallel, layout)
    has_frozen = any(not weight.requires_grad for weight in layout.bare.parameters())
    lacks_references = pairs is not None and not pairs.is_kept
    if has_frozen or lacks_references:  # frozen weights are in no checkpoint
        fill(layout, config)
    if pairs is not None:
        pairs.complete(layout)
    start = checkpoints.load(layout, optimizer, train.restart)
    if start > train.num_steps:
        raise ConfigError(
            f"train.num_steps ({train.num_steps}) must not be below the newest checkpoint, step"
            f" {start} in {workdir}; set it to {start} or more, or use another work directory"
        )
    if start == 0 and not has_frozen:
        fill(layout, config)
    if metrics:
        metrics.cut(start)
        if 0 < start < train.num_steps:
            what = f"resumes from the checkpoint of step {start}, on {ranks.world} processes"
            metrics.tell("resumed", start, what)
    return layout, optimizer, start, outer


def fill(layout: Layout, config: RunConfig) -> None:
    """Give the model the weights that the run begins with."""
    train = config.train
    if config.adapter.kind != "none":
        fill_factors(layout, config)
    if train.init_from is None:
        initialize(layout, train.seed, is_plain)
        return
    grows = train.init_vocab == "grow"
    start = read_initial_weights(train.init_from, config.model, train.seed, grows)
    write_weights(layout, start, is_plain)


class StopFlag:
    """Up once SIGTERM or SIGUSR1 came; asked after each step."""

    def __init__(self) -> None:
        self._raised = False
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._raise)

    def __call__(self) -> bool:
        return self._raised

    def _raise(self, _number: int, _frame: FrameType | None) -> None:
        self._raised = True


if __name__ == "__main__":
    main()
