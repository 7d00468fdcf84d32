"""Turns what a command raises into one line on stderr and an exit code.

A user error is 2, never a traceback; a stop is 130 or 143, or 75 (try again) where training
was asked to stop and saved; a reader of stdout that has gone away is 141. A defect is a traceback.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable

import click

from flows.services.registry import ServiceError
from flows.stops import STOPS
from llm_core.config import ConfigError
from llm_core.printing import note, one_line
from tasks.runtime.artifact import ArtifactMismatch
from tasks.runtime.stage import StageFailure, StageInterrupted


def exit_code(action: Callable[[], int]) -> int:
    """What `action` gives; what it raises is said in one line, and has a code. A defect raises."""
    try:
        return action()
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        return _complain(
            f"{error.format_message().rstrip('.')}; `textmill --help` lists flows and commands"
        )
    except (ConfigError, StageFailure, ArtifactMismatch, ServiceError) as error:
        return _complain(error)
    except BrokenPipeError:
        return _stop_speaking()
    except MemoryError:
        return _complain(
            "out of memory; raise the limit (ulimit -v), or use fewer workers (num_workers=1) and"
            " smaller pieces (source.max_text_bytes_per_file); finished work is kept, run again"
        )
    except OSError as error:
        if error.errno not in _WAYS_OUT:
            raise
        return _complain(
            f"{error.filename or 'a file'}: {os.strerror(error.errno)}; {_WAYS_OUT[error.errno]}"
        )
    except STOPS as error:
        return _complain_of_stop(error)


_ELSEWHERE = "allow it, or set store, state or source.paths to another place"
_ANOTHER_DISK = (
    "free some (textmill gc) or set store and state to another disk; finished work is kept, run"
    " again"
)
_OPEN_FILES = (
    "raise the limit of open files (ulimit -n) or lower num_workers; finished work is kept, run"
    " again"
)
_WAYS_OUT = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR), _ELSEWHERE),
    **dict.fromkeys((errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG), _ELSEWHERE),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _ANOTHER_DISK),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), _OPEN_FILES),
    errno.EIO: (
        "the disk failed to read or write there; finished work is kept, run again when it works"
    ),
    errno.ESTALE: "the network disk has changed there; finished work is kept, run again",
}
"""What the place, not the program, can be wrong with, and what to do about it."""


def _stop_speaking() -> int:
    """Whoever read stdout has gone, as `head` does; what else is held for it goes nowhere. The code
    of a closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


def _complain(error: object) -> int:
    note(f"textmill: {one_line(error)}")
    return 2


def _complain_of_stop(error: BaseException) -> int:
    said = one_line(error)
    note(f"textmill: stopped; the same command resumes here{f' ({said})' if said else ''}")
    if isinstance(error, StageInterrupted):  # what queues and launchers take for: start it again
        return os.EX_TEMPFAIL
    return 130 if isinstance(error, KeyboardInterrupt) else 143
