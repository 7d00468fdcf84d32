"""Refuses network disks whose locks other machines do not see: two runs would both hold one key.

Linux sends flock to an NFS server, which keeps it for all machines and ends those of a machine that
no longer renews its lease (RFC 8881, section 8.4). The mount options `nolock` and `local_lock` turn
that off (nfs(5)). Only Linux is checked.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from llm_core.config import ConfigError

MOUNTS = Path("/proc/self/mountinfo")


def require_shared_locks(folder: Path) -> None:
    """Raise ConfigError where other machines that mount a folder do not see its locks."""
    if MOUNTS.exists() and (option := private_locks(MOUNTS.read_text("utf-8"), folder.resolve())):
        raise ConfigError(
            f"{folder} is on a network disk that is mounted with {option}, so other machines do not"
            " see locks; mount it without that, with NFS 4, or set store to another place"
        )


@functools.lru_cache(16)
def private_locks(mountinfo: str, folder: Path) -> str | None:
    """The mount option that hides locks in a folder from other machines; None without one.

    mountinfo: as in proc(5), of which later lines lie over earlier ones.
    """
    holding, option = Path("/"), None
    for line in mountinfo.splitlines():
        fields, _, system = line.partition(" - ")
        # Spaces and similar characters are octal.
        place = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields.split()[4])
        if folder.is_relative_to(place) and Path(place).is_relative_to(holding):
            holding, (kind, _, options) = Path(place), system.rsplit(" ", 2)
            found = re.search(r"(?:^|,)(nolock|local_lock=(?:all|flock))(?:,|$)", options)
            option = found[1] if found and kind.startswith("nfs") else None
    return option
