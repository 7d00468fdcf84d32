"""Configures a training run: numbers of steps, and its layout. Standard library only, so flows
import it for nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal

from llm_core.config import IN_KEY_IF_SET, NOT_IN_KEY, ConfigError
from llm_core.data.config import DataConfig
from llm_core.data.ramp import BatchSizes
from llm_core.model.config import ComputeConfig
from llm_core.training.preference.config import PreferenceConfig

GRACE_S = 120.0
"""Enough for the state of seven billion weights, 84 GB with that of AdamW, at 1 GB/s."""


@dataclass(frozen=True)
class TrainConfig(ComputeConfig):
    """How long, in what pieces, and what is watched on the way."""

    num_steps: int
    """Optimizer updates."""
    global_batch_sequences: int
    """Sequences in one optimizer update, over all processes."""
    seq_len: int
    """Tokens in one sequence."""
    micro_batch_sequences: int = field(metadata=NOT_IN_KEY)
    """Sequences in one forward/backward on one process; larger is faster until memory is full."""
    batch_ramp: dict[str, int] = field(default_factory=dict, metadata=IN_KEY_IF_SET)
    """{last step: sequences}, as {500: 64, 2000: 128}: smaller global batches in the beginning,
    each up to a step. Learning rates then fall by tokens, not by steps. Empty: none."""
    validate_every: int = 0
    """Steps between validations. 0: only after the last step."""
    max_val_sequences: int = 256
    """Most validation sequences, spread evenly over the split."""
    checkpoint_every: int = field(default=100, metadata=NOT_IN_KEY)
    """Steps between checkpoints; a killed run resumes from the last one."""
    checkpoint_in_background: bool | None = field(default=None, metadata=NOT_IN_KEY)
    """Write checkpoints during the next steps, from a copy in main memory. Null: on a GPU, if no
    state is on disk."""
    keep_checkpoints: int = field(default=2, metadata=NOT_IN_KEY)
    """Number of the newest checkpoints that are kept during training."""
    keep_best_checkpoint: bool = field(default=False, metadata=NOT_IN_KEY)
    """Also keep the checkpoint of the lowest validation loss; each validation that improves it
    saves one."""
    keep_checkpoints_every: int = field(default=0, metadata=NOT_IN_KEY)
    """Steps between checkpoints that are kept to the end of training however old they are; each is
    saved. 0: none."""
    keep_models_every: int = field(default=0, metadata=IN_KEY_IF_SET)
    """Steps between models that the artifact keeps beside the last one, as Hugging Face folders in
    models/, for evaluate.checkpoints. 0: none."""
    ema: float = field(default=0.0, metadata=IN_KEY_IF_SET)
    """Decay per step of an exponential average of the weights, kept beside them in float32; 0.999
    averages over some thousand steps. 0: none."""
    publish: Literal["average", "last"] = field(default="average", metadata=IN_KEY_IF_SET)
    """Weights that are validated and written as models, where `ema` keeps an average."""
    restart: bool = field(default=False, metadata=NOT_IN_KEY)
    """Start at step 0 where no checkpoint is sound, which is otherwise refused. Sound ones are
    resumed from all the same."""
    grace_s: float = field(default=GRACE_S, metadata=NOT_IN_KEY)
    """Time the processes have to save after SIGTERM before they are killed; longer than one
    checkpoint takes. Whatever runs the command must wait longer still (Slurm:
    `--signal=B:TERM@180`; Kubernetes: terminationGracePeriodSeconds)."""
    log_every: int = field(default=1, metadata=NOT_IN_KEY)
    """Steps between fetches of metrics from the device; every step is logged."""
    profile_steps: tuple[int, ...] = field(default=(), metadata=NOT_IN_KEY)
    """First and last step, counted from 1, to profile with torch.profiler: a trace and a table by
    kind of work for each rank. Empty: none."""
    init_from: Path | None = field(default=None, metadata=NOT_IN_KEY)
    """Hugging Face folder (safetensors) whose weights training starts from. Its content is in the
    key, its place is not."""
    init_vocab: Literal["keep", "grow"] = field(default="keep", metadata=IN_KEY_IF_SET)
    """grow: a tokenizer with more ids than the model of `init_from` adds rows to its embedding and
    head, to a multiple of 8. keep: it is refused."""
    neftune_alpha: float = field(default=0.0, metadata=IN_KEY_IF_SET)
    """Noise on embeddings in training: uniform, up to alpha / sqrt(seq_len x model.dim) (NEFTune,
    Jain et al., 2023, has 5 to 15). 0: none."""
    data: DataConfig = field(default_factory=DataConfig)
    """Packing, order and mixture of the sequences."""
    preference: PreferenceConfig = field(default_factory=PreferenceConfig, metadata=IN_KEY_IF_SET)
    """Pairs of answers to learn from in place of tokens (train=dpo). A sequence is then a pair."""

    def __post_init__(self) -> None:
        for name in (
            "num_steps",
            "global_batch_sequences",
            "micro_batch_sequences",
            "seq_len",
            "max_val_sequences",
            "checkpoint_every",
            "keep_checkpoints",
            "log_every",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} ({getattr(self, name)}) must be at least 1")
        self._check_ramp()
        self._check_preference()
        if self.init_vocab == "grow" and self.init_from is None:
            raise ConfigError(
                "init_vocab (grow) is for a model that is loaded; set train.init_from=FOLDER, or"
                " train.init_vocab=keep"
            )
        if self.profile_steps and not (
            len(self.profile_steps) == 2 and 1 <= self.profile_steps[0] <= self.profile_steps[1]
        ):
            raise ConfigError(
                f"profile_steps ({list(self.profile_steps)}) must be the first and the last step,"
                " from 1 on; try [10,12], or [] for none"
            )
        if self.profile_steps and self.profile_steps[1] > self.num_steps:
            raise ConfigError(
                f"profile_steps ({list(self.profile_steps)}) must not go beyond num_steps"
                f" ({self.num_steps})"
            )
        if not 0 < self.grace_s < math.inf:
            raise ConfigError(f"grace_s ({self.grace_s}) must be seconds above 0; try 120")
        if not 0 <= self.ema < 1:
            raise ConfigError(f"ema ({self.ema}) must be at least 0 and below 1; 0.999 is usual")
        if not 0 <= self.neftune_alpha < math.inf:
            raise ConfigError(
                f"neftune_alpha ({self.neftune_alpha}) must not be negative; 5 is usual, 0 is none"
            )
        if self.z_loss < 0:
            raise ConfigError(f"z_loss ({self.z_loss}) must not be negative; PaLM has 1e-4")
        if self.validate_every < 0:
            raise ConfigError(
                f"validate_every ({self.validate_every}) must not be negative; 0 validates after"
                " the last step only"
            )
        for name in ("keep_models_every", "keep_checkpoints_every"):
            if getattr(self, name) < 0:
                raise ConfigError(
                    f"{name} ({getattr(self, name)}) must not be negative; 0 keeps the last only"
                )

    def saves_at(self, step: int) -> bool:
        """Whether a checkpoint is due after a step."""
        every = self.keep_checkpoints_every
        return step % self.checkpoint_every == 0 or (every > 0 and step % every == 0)

    def noise_scale(self, dim: int) -> float:
        """Most that noise adds to a number of an embedding of this width."""
        return self.neftune_alpha / math.sqrt(self.seq_len * dim)

    @property
    def learns_pairs(self) -> bool:
        """Whether the loss is one of pairs of answers."""
        return self.preference.kind != "none"

    def _check_preference(self) -> None:
        if self.learns_pairs != (self.data.packing == "pairs"):
            raise ConfigError(
                f"preference.kind ({self.preference.kind}) and data.packing ({self.data.packing})"
                " must be dpo and pairs together; use train=dpo"
            )
        if self.learns_pairs and self.init_from is None:
            raise ConfigError(
                "preference.kind (dpo) compares with the model that training starts from, and"
                " init_from is null; set train.init_from=FOLDER"
            )

    def _check_ramp(self) -> None:
        for end in self.batch_ramp:
            if not end.isdecimal() or end != str(int(end)) or end == "0":
                raise ConfigError(
                    f"batch_ramp ({end}) must be keyed by steps, whole numbers from 1 on"
                )
        sizes = self.batch_sizes.all
        if any(not 0 < size < later for size, later in pairwise(sizes)):
            raise ConfigError(
                f"batch_ramp ({self.batch_ramp}) must rise from step to step, and stay below"
                f" global_batch_sequences ({self.global_batch_sequences})"
            )

    @property
    def batch_sizes(self) -> BatchSizes:
        """Sequences of the global batch of each step."""
        ramp = {"batch_ramp": self.batch_ramp}
        return BatchSizes.of(ramp | {"global_batch_sequences": self.global_batch_sequences})

    @property
    def tokens_per_step(self) -> int:
        """Of a step after the ramp."""
        return self.global_batch_sequences * self.seq_len

    @property
    def total_tokens(self) -> int:
        return self.tokens_until(self.num_steps)

    def tokens_until(self, step: int) -> int:
        """Of the first steps, up to this one."""
        return self.batch_sizes.before(step) * self.seq_len
