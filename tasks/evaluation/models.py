"""Opens the models of a command in one process or several; a lost one fails the stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from llm_core.config import ConfigError
from tasks.runtime.environment import without_secrets
from tasks.runtime.stage import StageFailure

if TYPE_CHECKING:
    from llm_core.infer.ranks.team import Models


@contextmanager
def open_models(
    tensor_parallel: int,
    device: str,
    on_loss: Callable[[], None] | None = None,
    data_parallel: int = 1,
) -> Iterator[Models]:
    """As `llm_core.infer.ranks.team.open_models`; data_parallel: replicas.

    Raises StageFailure where a rank ends early, ConfigError for both kinds at once.
    """
    if tensor_parallel > 1 and data_parallel > 1:
        raise ConfigError(
            f"tensor_parallel ({tensor_parallel}) and data_parallel ({data_parallel}) cannot both"
            " be more than 1; set data_parallel=1"
        )
    from llm_core.infer.ranks import team

    try:
        count, are_whole = tensor_parallel * data_parallel, data_parallel > 1
        with team.open_models(count, device, on_loss, without_secrets(), are_whole) as models:
            yield models
    except team.RankLost as error:
        raise StageFailure(f"{error}; the model is incomplete without it, run again") from error
