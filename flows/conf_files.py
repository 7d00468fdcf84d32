"""Lists the groups of `conf/` and their choices, by the names of folders and files."""

from __future__ import annotations

from pathlib import Path

from tasks.runtime.code import ROOT

PLACES = ("store", "shared", "state")
"""Settings that say where a run is kept, and not what it does."""
CONF_DIR = ROOT / "conf"


def groups(conf_dir: Path = CONF_DIR) -> list[str]:
    """Config groups: the folders of `conf/`."""
    return sorted(path.name for path in conf_dir.iterdir() if path.is_dir())


def choices(group: str, conf_dir: Path = CONF_DIR) -> list[str]:
    """The choices of a group: its files."""
    return sorted(path.stem for path in (conf_dir / group).glob("*.yaml"))
