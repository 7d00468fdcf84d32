"""From command-line overrides to one checked configuration: the only module beside `flows.launch`
that meets Hydra and OmegaConf.

Hydra composes `conf/`, the result becomes plain values, and `llm_core.config.build` makes frozen
dataclasses of them; nothing behind this module sees an OmegaConf object. Hydra's own messages span
lines and name its insides, so each becomes one ConfigError: what is wrong, the rule, the nearest
known names.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError

from flows.conf_files import CONF_DIR, groups
from flows.tracking.runs import TrackingConfig
from llm_core.config import ConfigError, build, nearest, to_plain
from llm_core.fingerprint import num_processors
from llm_core.memory.config import MemoryConfig
from llm_core.model.config import ModelConfig
from llm_core.optim.config import OptimConfig
from llm_core.printing import one_line
from llm_core.training.config import ParallelConfig, TrainConfig
from tasks.analysis.stage import AnalysisConfig
from tasks.contamination.stage import ContaminationConfig
from tasks.corpus.named_labels import check_labels
from tasks.dedup.stage import DedupConfig
from tasks.definitions.features import FEATURES
from tasks.documents.stage import DocumentsConfig
from tasks.evaluation.bench import BenchConfig
from tasks.evaluation.stage import EvaluateConfig
from tasks.ingest.sources import SourceConfig
from tasks.language.stage import LanguageConfig
from tasks.pii.stage import PiiConfig
from tasks.quality.score_limits import check_scores
from tasks.quality.stage import QualityConfig
from tasks.report.stage import ReportConfig
from tasks.runtime.graph import STAGES
from tasks.runtime.stage import StageConfigs
from tasks.scores.stage import ScoresConfig
from tasks.shards.stage import ShardsConfig
from tasks.tokenizer.stage import TokenizerConfig
from tasks.training.stage import TrainStageConfig

# Hydra keeps its state in a process-wide singleton.
_COMPOSE_LOCK = threading.Lock()


@dataclass(frozen=True)
class RunConfig:
    """Everything a run is told: the config of each stage, and the controls, which are in no key."""

    # Before the groups, whose paths may lie below them: a mistake is named where it was made.
    store: Path
    """Where artifacts live."""
    state: Path
    """Where services keep their databases, logs and process ids."""
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
    optim: OptimConfig
    train: TrainConfig
    parallel: ParallelConfig
    memory: MemoryConfig
    evaluate: EvaluateConfig
    bench: BenchConfig
    report: ReportConfig
    tracking: TrackingConfig
    start: str | None = None
    """Nothing before this stage may run."""
    only: str | None = None
    """Run this one stage; what it needs must be there."""
    force: tuple[str, ...] = ()
    """Stages to rebuild although they are there."""
    orchestrator: Literal["prefect", "none"] = "prefect"
    runner: Literal["auto", "thread", "process", "ray", "dask"] = "auto"
    """What works on the parts of a stage; auto: processes where the work is worth their start."""
    runner_address: str | None = None
    """Ray or Dask scheduler to join, e.g. ray://head:10001 or tcp://head:8786; null starts a
    cluster on this machine."""
    num_workers: int | None = None
    """Parts worked on at once; every core this process may use where null."""

    def __post_init__(self) -> None:
        for control, names in (
            ("start", (self.start,)),
            ("only", (self.only,)),
            ("force", self.force),
        ):
            for name in names:
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
        _ = self.train_stage  # its rules hold between groups
        check_scores(self.quality, self.scores.names)
        check_labels(self, self.language.labels, self.source.names)
        column, columns = (
            self.dedup.quality_column,
            [*FEATURES, "num_bytes", *self.scores.names, *self.quality.list_features()],
        )
        if column is not None and column not in columns:
            raise ConfigError(
                f"dedup.quality_column ({column}) is not a column of quality;"
                f" {nearest(column, columns)}"
            )

    @property
    def train_stage(self) -> TrainStageConfig:
        return TrainStageConfig(self.model, self.optim, self.train, self.parallel, self.memory)

    @property
    def stages(self) -> StageConfigs:
        """The config of each stage, by stage name."""
        return {
            "ingest": self.source,
            "language": self.language,
            "scores": self.scores,
            "quality": self.quality,
            "dedup": self.dedup.in_store(self.store),
            "pii": self.pii,
            "contamination": self.contamination,
            "documents": self.documents,
            "analysis": self.analysis,
            "tokenizer": self.tokenizer,
            "shards": self.shards,
            "train": self.train_stage,
            "evaluate": self.evaluate,
            "bench": self.bench,
            "report": self.report,
        }

    @property
    def workers(self) -> int:
        return self.num_workers or num_processors()

    def resolved(self) -> dict[str, Any]:
        """Plain values of everything, for records and trackers."""
        return to_plain(self)  # type: ignore[no-any-return]


def compose(overrides: Sequence[str] = (), conf_dir: Path = CONF_DIR) -> RunConfig:
    """The checked configuration that `overrides` describe. Raises ConfigError, always of one
    line."""
    try:
        return build(RunConfig, _compose_plain(overrides, conf_dir))
    except ConfigError as error:
        raise ConfigError(one_line(error)) from error


@contextmanager
def hydra_over(conf_dir: Path = CONF_DIR) -> Iterator[Any]:
    """Hydra's application over a folder of configuration, alone in this process within the
    block."""
    with _COMPOSE_LOCK:
        GlobalHydra.instance().clear()
        with initialize_config_dir(str(conf_dir), job_name="textmill", version_base="1.3"):
            yield GlobalHydra.instance().hydra


@contextmanager
def in_one_line(overrides: Sequence[str], conf_dir: Path = CONF_DIR) -> Iterator[None]:
    """What Hydra raises about `overrides`, as one ConfigError of one line."""
    try:
        yield
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise _explain(
            error, [parse_override(override) for override in overrides], conf_dir
        ) from error


def settable(overrides: Sequence[str], conf_dir: Path = CONF_DIR) -> list[str]:
    """Overrides that set any field, also one whose YAML leaves it to its default; unknown ones are
    found by `build`."""
    known = set(groups(conf_dir))
    result = []
    for text in overrides:
        override = parse_override(text)
        name = override.key_or_group
        plain = (
            override.type is OverrideType.CHANGE
            and name not in known
            and not name.startswith(("hydra.", "hydra/"))
        )
        result.append(f"++{text}" if plain else text)
    return result


def _compose_plain(overrides: Sequence[str], conf_dir: Path) -> dict[str, Any]:
    if not (conf_dir / "config.yaml").exists():
        raise ConfigError(
            f"{conf_dir / 'config.yaml'} is not there; install with `pip install -e .` from a clone"
        )
    parsed = [parse_override(override) for override in overrides]
    for override in parsed:
        if override.is_sweep_override():
            raise ConfigError(
                f"{override.input_line} gives several values; add -m to run each, or quote a list:"
                " key='[a,b]'"
            )
    with hydra_over(conf_dir), in_one_line(overrides, conf_dir):
        config = hydra_compose("config", overrides=settable(overrides, conf_dir))
        return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[return-value]


def parse_override(override: str) -> Override:
    try:
        return OverridesParser.create().parse_override(override)
    except (HydraException, OmegaConfBaseException) as error:
        reason = one_line(error).split("See https")[0].rstrip(" .")
        raise ConfigError(
            f"{override!r} is not an override ({reason}); write key=value, and quote special"
            " characters: 'key=\"a=b\"'"
        ) from error


def _explain(error: Exception, overrides: Sequence[Override], conf_dir: Path) -> ConfigError:
    """One ConfigError for what Hydra found."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, choice = str(error.missing_cfg_file).strip("/").rpartition("/")
        if error.options:
            return ConfigError(
                f"{group} ({choice}) is not a choice; {nearest(choice, list(error.options))}"
            )
        return ConfigError(
            f"{error.missing_cfg_file} is not in {conf_dir}; groups: {', '.join(groups(conf_dir))}"
        )
    if isinstance(error, OverrideParseException):
        return ConfigError(
            f"{error.override!r} is not an override; write key=value ({one_line(error)})"
        )
    if isinstance(error, MissingMandatoryValue):
        return ConfigError(f"{error.full_key} has no value; set it, e.g. {error.full_key}=...")
    message = one_line(error)
    if match := re.search(r"Could not (?:override|delete from config) ?\S* ?'([^']+)'", message):
        key = match.group(1)
        return ConfigError(f"{key} is not a known setting; groups: {', '.join(groups(conf_dir))}")
    if match := re.match(r"Error merging override \+*(\S+)", message):
        return ConfigError(
            f"{match.group(1)} has a value of another kind; give a mapping '{{a: b}}' for a"
            " mapping, a list '[a]' for a list"
        )
    if match := re.match(r"Multiple values for (\w+)", message):
        return ConfigError(
            f"{match.group(1)} has a choice already; write {match.group(1)}=choice without +"
        )
    given = ", ".join(o.input_line or "" for o in overrides)
    return ConfigError(message.split(" See ")[0] + (f" (given: {given})" if given else ""))
