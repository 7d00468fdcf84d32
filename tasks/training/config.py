"""Collects all settings of a training run: the settings of `tasks.training.stage`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from llm_core.config import IN_KEY_IF_SET, NOT_IN_KEY, ConfigError, in_key_by
from llm_core.memory.config import MemoryConfig
from llm_core.model.adapter import AdapterConfig, adapted
from llm_core.model.config import ModelConfig
from llm_core.optim.config import OptimConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.planner.hardware import HardwareConfig
from llm_core.training.combinations.settings import check_compression, check_places
from llm_core.training.config import TrainConfig
from llm_core.training.run_config import check_run
from tasks.clusters.config import ClusterConfig, check_nodes
from tasks.training.initial_model import initial_adapter_files, initial_model_files


@dataclass(frozen=True)
class TrainStageConfig:
    """Model, optimizer and length of training; the layout over processes, what saves memory,
    the cluster and the devices change how, never what."""

    model: ModelConfig
    optim: OptimConfig
    train: TrainConfig
    parallel: ParallelConfig = field(default_factory=ParallelConfig, metadata=in_key_by("decides"))
    memory: MemoryConfig = field(default_factory=MemoryConfig, metadata=NOT_IN_KEY)
    cluster: ClusterConfig = field(default_factory=ClusterConfig, metadata=NOT_IN_KEY)
    hardware: HardwareConfig = field(default_factory=HardwareConfig, metadata=NOT_IN_KEY)
    adapter: AdapterConfig = field(default_factory=AdapterConfig, metadata=IN_KEY_IF_SET)

    def __post_init__(self) -> None:
        model = adapted(self.model, self.adapter)
        check_run(model, self.train, self.parallel, self.memory, self.optim.kind)
        check_compression(self.optim, self.train, self.parallel)
        check_places(self.optim, self.memory)
        check_nodes(self.cluster, self.parallel.num_processes)

    def input_files(self) -> dict[str, Path]:
        """{name: file} of the model and the adapter that training starts from. Raises ConfigError
        where they do not fit, or an adapter has no model to start from."""
        folder, adapter = self.train.init_from, self.adapter.init_from
        if folder is None and self.adapter.kind != "none":
            raise ConfigError(
                "adapter (lora) trains beside a frozen model, and train.init_from is null; set"
                " train.init_from=FOLDER, or adapter=none"
            )
        files = {} if folder is None else initial_model_files(folder, self.model)
        return files | ({} if adapter is None else initial_adapter_files(adapter, self.adapter))
