"""Defines the configuration of a run: the config of each stage, and the controls.

The rules between groups are checked here; those within a group beside its dataclass.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from flows.notifications.config import NotifyConfig
from flows.refresh.config import RefreshConfig
from flows.sweeps.config import SweepConfig
from flows.tracking.runs import TrackingConfig
from llm_core.config import ConfigError, nearest, to_plain
from llm_core.fingerprint import num_processors
from llm_core.memory.config import MemoryConfig
from llm_core.model.adapter import AdapterConfig, adapted
from llm_core.model.config import ModelConfig
from llm_core.optim.config import OptimConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.planner.hardware import HardwareConfig
from llm_core.planner.step import Work
from llm_core.training.config import TrainConfig
from tasks.analysis.config import AnalysisConfig
from tasks.bench.config import BenchConfig
from tasks.clusters.config import ClusterConfig
from tasks.contamination.config import ContaminationConfig
from tasks.corpus.named_labels import check_labels
from tasks.dedup.config import DedupConfig
from tasks.definitions.features import FEATURES
from tasks.documents.config import DocumentsConfig
from tasks.evaluation.config import (
    EvaluateConfig,
    EvaluateStageConfig,
    GenerateConfig,
    QuantizeConfig,
    SuitesConfig,
)
from tasks.ingest.sources import SourceConfig
from tasks.language.config import LanguageConfig
from tasks.pii.config import PiiConfig
from tasks.quality.config import QualityConfig
from tasks.quality.score_limits import check_scores, check_windows
from tasks.report.config import ReportConfig
from tasks.runtime.graph import STAGES
from tasks.runtime.plan import Plan
from tasks.runtime.stage import StageConfigs
from tasks.runtime.store import Store
from tasks.scores.config import ScoresConfig
from tasks.serving.config import ServeConfig
from tasks.shards.config import ShardsConfig
from tasks.tokenizer.config import TokenizerConfig
from tasks.training.config import TrainStageConfig
from tasks.training.export import ExportConfig
from tasks.training.initial_model import grown_vocab_size


@dataclass(frozen=True)
class RunConfig:
    """Everything a run is told: the config of each stage, and the controls, which are in no key."""

    # Before the groups, whose paths may lie below them: a mistake is named where it was made.
    store: Path
    """Folder of artifacts, or the address of a store shared by several machines,
    s3://bucket/prefix, whose local copy is kept in `data/stores`."""
    state: Path
    """Folder in which services keep their databases, logs and process ids."""
    source: SourceConfig
    language: LanguageConfig
    scores: ScoresConfig
    quality: QualityConfig
    dedup: DedupConfig
    pii: PiiConfig
    contamination: ContaminationConfig
    documents: DocumentsConfig
    analysis: AnalysisConfig
    tokenizer: TokenizerConfig
    shards: ShardsConfig
    model: ModelConfig
    adapter: AdapterConfig
    optim: OptimConfig
    train: TrainConfig
    parallel: ParallelConfig
    memory: MemoryConfig
    suites: SuitesConfig
    cluster: ClusterConfig
    evaluate: EvaluateConfig
    generate: GenerateConfig
    serve: ServeConfig
    quantize: QuantizeConfig
    export: ExportConfig
    bench: BenchConfig
    report: ReportConfig
    refresh: RefreshConfig
    notify: NotifyConfig
    sweep: SweepConfig
    hardware: HardwareConfig
    tracking: TrackingConfig
    shared: str | None = None
    """Address of the shared store that the folder `store` is a local copy of. `store=s3://…` sets
    it. Set it directly to choose that folder."""
    start: str | None = None
    """First stage that may run; what comes before must be in the store."""
    only: str | None = None
    """The one stage that may run; its inputs must be in the store."""
    force: tuple[str, ...] = ()
    """Stages to rebuild although they are in the store."""
    orchestrator: Literal["prefect", "none"] = "prefect"
    """prefect records the run on a Prefect server; none runs in this process alone."""
    runner: Literal["auto", "thread", "process", "ray", "dask"] = "auto"
    """What works on the parts of a stage. auto: processes where the work is worth their start."""
    runner_address: str | None = None
    """Ray or Dask scheduler to join, such as ray://head:10001 or tcp://head:8786. Null starts a
    cluster on this machine."""
    num_workers: int | None = None
    """Parts worked on at once. Null: one per core that this process may use."""

    def __post_init__(self) -> None:
        named = [("start", self.start), ("only", self.only), *(("force", n) for n in self.force)]
        for control, name in named:
            if name is not None and name not in STAGES:
                raise ConfigError(
                    f"{control} ({name}) is not a stage; {nearest(name, list(STAGES))}"
                )
        if self.start and self.only:
            raise ConfigError(
                f"start ({self.start}) and only ({self.only}) exclude each other; give one of them"
            )
        if self.num_workers is not None and self.num_workers < 1:
            raise ConfigError(
                f"num_workers ({self.num_workers}) must be at least 1; leave it out to use every"
                " core"
            )
        on_cluster = self.runner in ("ray", "dask")
        if on_cluster and self.orchestrator == "none":
            raise ConfigError(
                f"runner ({self.runner}) is one of Prefect's; use orchestrator=prefect, or"
                " runner=process"
            )
        if self.runner_address and not on_cluster:
            raise ConfigError(
                f"runner_address ({self.runner_address}) is for clusters; add runner=ray or"
                " runner=dask"
            )
        if self.shards.whole_chain and self.dedup.chain is None:
            raise ConfigError(
                "shards.whole_chain needs dedup.chain; name one, such as dedup=indexed"
                " dedup.chain=crawl"
            )
        is_asked = self.evaluate.chat and self.suites.folders
        if is_asked and self.tokenizer.kind != "import" and not self.tokenizer.chat_template:
            raise ConfigError(
                "evaluate.chat (true) needs a chat template, and the tokenizer has none; set"
                " tokenizer.chat_template, as tokenizer=chat does, or evaluate.chat=false"
            )
        for place in ("store", "state"):
            _check_outside(self.source, place, getattr(self, place))
        _ = self.train_stage  # its rules hold between groups
        check_scores(self.quality, self.scores.names)
        check_windows(self.quality, self.language.windows)
        check_labels(self, self.language.labels, self.source.names)
        column = self.dedup.quality_column
        columns = [*FEATURES, "num_bytes", *self.scores.names, *self.quality.list_features()]
        if column is not None and column not in columns:
            raise ConfigError(
                f"dedup.quality_column ({column}) is not a column of quality;"
                f" {nearest(column, columns)}"
            )

    @property
    def train_stage(self) -> TrainStageConfig:
        return TrainStageConfig(
            self.model,
            self.optim,
            self.train,
            self.parallel,
            self.memory,
            self.cluster,
            self.hardware,
            self.adapter,
        )

    def laid_out(self) -> RunConfig:
        """With the fastest layout that fits, where the planner is to choose it. Raises ConfigError
        where none does."""
        if self.parallel.kind != "auto":
            return self
        from llm_core.planner.layouts import choose_layout, reasons

        if not self.hardware.name:
            raise ConfigError(
                "parallel.kind (auto) needs the devices that it chooses for; add hardware=h100, or"
                " another of conf/hardware, or hardware=this after textmill calibrate"
            )
        choice = choose_layout(self.planned, self.hardware, self.parallel.num_processes)
        if choice.best is None and self.memory.if_too_large == "refuse":
            raise ConfigError("; ".join(reasons(choice, self.hardware)))
        best = (choice.best or choice.closest).work
        return replace(self, parallel=best.parallel, train=best.train, memory=best.memory)

    def require_fit(self, plan: Plan) -> None:
        """Raise ConfigError for a plan to train what does not fit the devices named for it."""
        trains = any(step.runs for step in plan.steps if step.node.stage == "train")
        if trains and self.hardware.name and self.memory.if_too_large == "refuse":
            from tasks.training.planned import require_fit

            require_fit(self.planned, self.hardware)

    @property
    def planned(self) -> Work:
        """What the planner reads; an open size of the vocabulary is that of the initial model, or
        of the tokenizer. Raises ConfigError where either cannot be read."""
        model, start = self.model, self.train.init_from
        if start is not None:
            from llm_core.huggingface.export import read_config

            size = read_config(start).vocab_size
            if self.train.init_vocab == "grow":
                size = grown_vocab_size(size, self.tokenizer.num_ids())
            model = replace(model, vocab_size=size)
        elif model.vocab_size == 0:
            model = replace(model, vocab_size=self.tokenizer.num_ids())
        model = adapted(model, self.adapter)
        return Work(model, self.optim, self.train, self.parallel, self.memory)

    @property
    def stages(self) -> StageConfigs:
        """The config of each stage, by stage name."""
        named = {
            "ingest": self.source,
            "dedup": self.dedup.in_store(self.store),
            "shards": self.shards.in_store(self.store),
            "train": self.train_stage,
            "contamination": self.contamination.also_of(self.suites.searched()),
            "evaluate": EvaluateStageConfig(
                self.evaluate, self.generate, self.suites, replace(self.contamination, suites={})
            ),
        }
        return {name: named.get(name) or getattr(self, name) for name in STAGES}

    def open_store(self) -> Store:
        """The store of this run, alone on this machine or shared."""
        if self.shared is None:
            return Store(self.store)
        from tasks.runtime.shared.store import SharedStore

        return SharedStore(self.store, self.shared)

    @property
    def workers(self) -> int:
        return self.num_workers or num_processors()

    def resolved(self) -> dict[str, Any]:
        """Plain values of everything."""
        return to_plain(self)  # type: ignore[no-any-return]

    def tracked(self) -> dict[str, Any]:
        """Plain values of everything for trackers, without who is told: that is personal."""
        return {name: value for name, value in self.resolved().items() if name != "notify"}


def _check_outside(source: SourceConfig, name: str, place: Path) -> None:
    """Raise ConfigError where a run would read what it writes."""
    inside = Path(os.path.abspath(place))
    for given in (path for one in source.inputs.values() for path in one.paths):
        folder = Path(os.path.abspath(given))
        if "://" not in str(given) and folder in (inside, *inside.parents) and folder.is_dir():
            raise ConfigError(
                f"source.paths ({given}) contains {name} ({place}), so a run would read what it"
                f" writes; name a folder of documents only, or move {name}"
            )
