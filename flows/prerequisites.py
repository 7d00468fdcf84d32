"""Checks what this machine must have before anything is installed. Runs on any Python 3, to be able
to say it is too old."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile

NEEDED_DISK_BYTES = 4 * 1024**3


def missing(root: str) -> "list[str]":
    """One line for each thing that is missing, each with a way out."""
    found = []
    version = ".".join(map(str, sys.version_info[:3]))
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        found.append(
            "Python %s is not supported; textmill needs 3.11, 3.12 or 3.13: make run"
            " PYTHON=python3.12" % version
        )
    else:
        for module in ("venv", "ensurepip"):
            if subprocess.call(
                [sys.executable, "-c", "import " + module], stderr=subprocess.DEVNULL
            ):
                found.append(
                    "Python has no %s module; install it, e.g. apt-get install python3-venv"
                    % module
                )
        if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
            found.append(
                "the C headers of Python are missing (fasttext needs them); e.g. apt-get install"
                " python3-dev"
            )
    compiler = os.environ.get("CXX", "").split()[:1] or ["c++", "g++", "clang++"]
    if not any(shutil.which(name) for name in compiler):
        found.append(
            "no C++ compiler found (fasttext is built from source); e.g. apt-get install g++, or"
            " set CXX"
        )
    free = shutil.disk_usage(root).free
    if free < NEEDED_DISK_BYTES:
        found.append(
            "%.1f GB free in %s, 4 GB are needed for the environment; free some"
            % (free / 1e9, root)
        )
    try:
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        found.append(
            "%s is not writable (%s); clone into a folder of your own" % (root, error.strerror)
        )
    return found


def main() -> int:
    lines = missing(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    for line in lines:
        sys.stderr.write("textmill: " + line + "\n")
    return 2 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
