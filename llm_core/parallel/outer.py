"""Configures how independent runs meet. Standard library only, so flows import it for nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from llm_core.config import ConfigError, check_bounds


@dataclass(frozen=True)
class OuterConfig:
    """Members, each a run of one process in its own work directory, that meet in a folder."""

    kind: Literal["none", "diloco"] = "none"
    """diloco: after `steps` steps alone, the mean of what members have changed is the gradient of
    an outer step (Douillard et al., 2023)."""
    steps: int = 100
    """Steps of a round, which members take alone. train.num_steps must be a multiple of it."""
    members: int = 2
    """Places for members; each reads its share of every global batch."""
    member: int = 0
    """The place of this run, from 0."""
    folder: Path | None = None
    """Where members meet: a folder that all share. It keeps what the training is made with, and one
    that is made otherwise is refused."""
    lr: float = 0.7
    """Of the outer step. With 1 and momentum 0 the weights become the mean of all members'."""
    momentum: float = 0.9
    """Of the outer step, in Nesterov's form."""
    lease_s: float = 30.0
    """A member whose process has died for this long is left out of the round, as is one that lives
    and takes no step for parallel.timeout_s. In the first round, others wait this long for members
    that have not started yet."""

    def __post_init__(self) -> None:
        check_bounds(self, steps=(1, None), members=(1, None), lease_s=(0.1, None))
        if not 0 <= self.member < self.members:
            raise ConfigError(
                f"member ({self.member}) must be from 0 to {self.members - 1}, since members is"
                f" {self.members}; give each run another"
            )
        if not self.lr > 0 or not 0 <= self.momentum < 1:
            raise ConfigError(
                f"lr ({self.lr}) must be positive and momentum ({self.momentum}) from 0 to below 1;"
                " 0.7 and 0.9 are usual"
            )
        if self.kind != "none" and self.folder is None:
            raise ConfigError(
                "folder (null) must be where members meet; set it to a folder that all share"
            )

    @property
    def place(self) -> tuple[int, int] | None:
        """(which share of a global batch this run reads, of how many); None: it is not a member."""
        return None if self.kind == "none" else (self.member, self.members)

    @property
    def decides(self) -> dict[str, Any]:
        """The settings that change what a run gives."""
        if self.kind == "none":
            return {}
        names = ("kind", "steps", "members", "member", "lr", "momentum")
        return {name: getattr(self, name) for name in names}
