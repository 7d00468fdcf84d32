"""Puts the code on the path and starts the command line.

Processes that textmill starts get the folder by PYTHONPATH. Code of one's own calls `use()` before
it imports from `tasks` or `llm_core`.
"""

from __future__ import annotations

import sys
from pathlib import Path


def tree() -> Path:
    """The folder that holds `flows`, `tasks`, `llm_core` and `conf`."""
    package = Path(__file__).resolve().parent
    inside = package / "tree"
    return inside if inside.is_dir() else package.parent


def use() -> None:
    """Put the code before all other folders of the path."""
    folder = str(tree())
    if folder not in sys.path:
        sys.path.insert(0, folder)


def main() -> int:
    """Run the command line; its exit code."""
    use()
    from flows.cli import main as run

    return run()
