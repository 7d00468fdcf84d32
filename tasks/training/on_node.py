"""Starts the trainer on a node of a cluster, if its code is the code that the key names:
`python -m tasks.training.on_node RECIPE MODULE ARGUMENT...`.

A job may begin hours after it was submitted, again after each requeue, and from an image. Different
code there would write its result under the wrong key.
"""

from __future__ import annotations

import os
import sys

from llm_core.printing import note
from tasks.runtime.code import ROOT, code_digest
from tasks.runtime.keys import digest, library_versions

MODULES = ("tasks.training.stage", "llm_core.training.launch", "llm_core.training.train")
LIBRARIES = ("torch",)
"""As in the stage graph, for the train stage."""
REFUSED = 2


def recipe() -> str:
    """Digest of the code and libraries here that decide a training."""
    return digest({"code": code_digest(MODULES), "libraries": library_versions(LIBRARIES)})


def main(expected: str, module: str, *arguments: str) -> None:
    """Become the program, or end with code 2 and one line. Raises OSError where Python is gone."""
    if (found := recipe()) != expected:
        libraries = ", ".join(f"{n} {v}" for n, v in library_versions(LIBRARIES).items())
        note(
            f"tasks.training.on_node: the code in {ROOT} with {libraries} ({found}) is not what"
            f" this job was submitted with ({expected}); submit it again, from the code that the"
            " nodes have"
        )
        sys.exit(REFUSED)
    # Replaced and not waited for: signals of the scheduler reach the trainer itself.
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
