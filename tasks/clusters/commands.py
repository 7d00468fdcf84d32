"""Runs the commands of a scheduler and turns their errors into one line."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from llm_core.printing import one_line
from tasks.runtime.stage import StageFailure

ANSWER_S = 60.0
"""A scheduler that takes longer counts as not answering."""


class Refused(Exception):
    """The command failed; the message is what it printed, on one line."""


def call(
    command: Sequence[str], environment: Mapping[str, str] | None = None, given: str | None = None
) -> str:
    """What a command writes to stdout. given: its stdin.

    Raises StageFailure where there is no such command, and Refused where it fails.
    """
    try:
        done = subprocess.run(
            command,
            env=environment,
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise StageFailure(
            f"{command[0]} is not on PATH; run this where the scheduler's commands are, or set"
            " cluster=local"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise Refused(f"{command[0]} did not answer within {ANSWER_S:.0f} s") from error
    if done.returncode:
        said = one_line(done.stderr.strip() or done.stdout.strip())
        raise Refused(said or f"{command[0]} ended with code {done.returncode}")
    return done.stdout
