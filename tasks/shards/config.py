"""Sets the size, order and form of shards: the settings of `tasks.shards.stage`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from llm_core.config import IN_KEY_IF_SET, NOT_IN_KEY, ConfigError
from tasks.shards.earlier import ORDER_FILE
from tasks.shards.exchange import foreign_files
from tasks.shards.fill_in_middle import FillInMiddleConfig


@dataclass(frozen=True)
class ShardsConfig:
    """How tokens are written, and where they come from."""

    max_shard_tokens: int = 1 << 26
    """Most tokens in one file."""
    seed: int = 0
    """Another seed writes the documents in another order."""
    form: Literal["documents", "megatron", "datasets"] = "documents"
    """documents encodes the documents of this run. megatron and datasets read the tokens that
    another engine has written in the folder `path`."""
    fill_in_middle: FillInMiddleConfig = field(
        default_factory=FillInMiddleConfig, metadata=IN_KEY_IF_SET
    )
    """Training documents whose middle is moved to their end."""
    path: Path | None = field(default=None, metadata=NOT_IN_KEY)
    """Folder with train.bin and train.idx, PREFIX_text_document.bin and .idx, or train/state.json,
    and the same for validation; or such a PREFIX_text_document. Its content is in the key."""

    whole_chain: bool = field(default=False, metadata=NOT_IN_KEY)
    """In a chain of runs (`dedup.chain`): start with the shards of the previous run, byte for byte,
    so that the shards of each run hold the documents of all runs up to it."""
    earlier: Path | None = field(default=None, metadata=NOT_IN_KEY)
    """An earlier shards artifact, as a folder or a key in the store, whose shards come first. Its
    content is part of the key."""

    def __post_init__(self) -> None:
        if self.form == "documents" and self.path is not None:
            raise ConfigError(
                f"path ({self.path}) is for form=megatron or datasets; write shards=import"
                " shards.path=DIR"
            )
        if self.form != "documents" and self.fill_in_middle.rate:
            raise ConfigError(
                f"fill_in_middle.rate ({self.fill_in_middle.rate:g}) is for form=documents; tokens"
                " of another engine have no text to part; leave it out"
            )
        if self.max_shard_tokens < 16:
            raise ConfigError(
                f"max_shard_tokens ({self.max_shard_tokens}) must be at least 16; try {1 << 26}"
            )

    def input_files(self) -> dict[str, Path]:
        """{name: file} of another engine's shards, whose contents enter the key. Raises ConfigError
        where there are none."""
        earlier = self._earlier_files()
        if self.form == "documents":
            return earlier
        if self.path is None:
            raise ConfigError(
                f"shards.path (null) must name a folder of {self.form} data; write shards.path=DIR"
            )
        return foreign_files(self.form, self.path) | earlier

    def _earlier_files(self) -> dict[str, Path]:
        if self.earlier is None:
            return {}
        if not (order := self.earlier / ORDER_FILE).is_file():
            raise ConfigError(
                f"shards.earlier ({self.earlier}) is neither a shards artifact nor the key of one"
                " in the store"
            )
        return {f"earlier/{ORDER_FILE}": order}

    def in_store(self, store: Path) -> ShardsConfig:
        """The same with earlier shards that were given as a key in place of their folder."""
        if self.earlier is None or len(self.earlier.parts) != 1 or self.earlier.is_dir():
            return self
        return replace(self, earlier=store / "shards" / self.earlier)
