"""Loops of a decode step on a CPU that torch has no operation for, compiled by Numba.

They are for few float32 rows, of which torch spends more time on starting operations than on
numbers, and run on one thread. Each module is complete: Numba keeps compiled code by the date of
one file. It unpickles what it finds, so the code is kept in the user's own cache folder. Read
choose, decode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

from llm_core.private_folder import cache_folder


def compiled(function: Callable[..., Any]) -> Any:
    """Decorator of a kernel: sums may be regrouped, NaN and infinities stay what they are."""
    return _kept(function, {"reassoc", "contract", "nsz"})


def compiled_as_written(function: Callable[..., Any]) -> Any:
    """Decorator of a kernel whose every operation rounds as torch's own would."""
    return _kept(function, False)


def _kept(function: Callable[..., Any], fastmath: set[str] | bool) -> Any:
    # Read when a function is decorated, and set for all of Numba: others keep their code elsewhere.
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = before or str(cache_folder("cpu_kernels"))
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=fastmath)(function)
    finally:
        numba.config.CACHE_DIR = before
