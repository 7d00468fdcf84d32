"""Hot loops over Arrow buffers, compiled by Numba once and kept.

Numba checks only the file of the function it caches: after an edit of a helper in another module it
would go on with the old code, and an artifact would carry the digest of the new source and the
bytes of the old. So compiled code is kept in a folder named by the sources of all kernels together.
"""

import hashlib
import os
from pathlib import Path
from typing import Any

# While it infers types Numba makes thousands of errors that nobody sees, and colours each: an
# eighth of the time to compile.
os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")
import numba

from llm_core.private_folder import cache_folder, open_to_others


def compiled_code_dir(kernels: Path) -> Path:
    """Where compiled code of these sources is kept: beside them, or in the user's cache where they
    are read-only or others can write there. Numba unpickles what it finds, so whoever can write
    there runs code as this user."""
    sources = hashlib.blake2b(digest_size=8)
    # Names of features and kinds are constants of kernels too, but configs need them without Numba.
    for path in [
        *sorted(kernels.rglob("*.py")),
        *sorted((kernels.parent / "definitions").glob("*.py")),
    ]:
        sources.update(
            str(path.relative_to(kernels.parent)).encode() + b"\0" + path.read_bytes() + b"\0"
        )
    beside = kernels / "__pycache__"
    made = beside if beside.exists() else kernels
    base = (
        beside
        if os.access(made, os.W_OK) and open_to_others(made) is None
        else cache_folder("kernels")
    )
    return base / f"textmill-kernels-{sources.hexdigest()}"


if not os.environ.get("NUMBA_CACHE_DIR"):
    numba.config.CACHE_DIR = str(compiled_code_dir(Path(__file__).parent))

# No door from Python, which takes as long to compile as they do, and no copy on disk beside the one
# in the kernel; no Python errors of division, and no rewrites of array expressions, of which there
# are none.
_INNER: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "no_rewrites": True,
}
inner: Any = numba.njit(**_INNER)
"""Decorator of functions that only kernels call."""
inlined: Any = numba.njit(forceinline=True, **_INNER)
"""The same for the few that every character or row calls: each call of them has its own copy, which
compiles longer."""
