"""Keeps the local services to the user who started them: the Prefect server's password, and the
modes of folders and files.

The password is random and stands in `<state>/prefect/auth`, which only its owner reads. It goes to
processes by their environment, never by a command line or an address, which others see.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

USER = "textmill"
HOST_NAMES = ("127.0.0.1", "localhost")
PRIVATE_FILES = (
    *("services.json", "services.lock", "deployments.json", "logs/*.log"),
    *("prefect/auth", "prefect/prefect.db*", "mlflow/mlflow.db*"),
)


def make_private(state: Path) -> None:
    """Create the state folder, or close one that others can look into, and what is in it that tells
    or permits something."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path, mode in (
        (state, 0o700),
        *((file, 0o600) for pattern in PRIVATE_FILES for file in state.glob(pattern)),
    ):
        with contextlib.suppress(FileNotFoundError):  # a journal that was finished meanwhile
            if path.stat().st_mode & 0o077:
                path.chmod(mode)


def private_file(path: Path) -> None:
    """Create an empty file that only its owner reads, where there is none. SQLite gives its
    journals the same mode."""
    with contextlib.suppress(FileExistsError):
        path.touch(mode=0o600, exist_ok=False)


def auth_file(state: Path) -> Path:
    return state.resolve() / "prefect" / "auth"


def make_auth_string(state: Path) -> bool:
    """Make the password of the local Prefect server where there is none; whether this made it. One
    process at a time."""
    file = auth_file(state)
    if file.exists():
        return False
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=file.parent)  # readable by its owner only
    with open(handle, "w") as stream:
        stream.write(f"{USER}:{secrets.token_urlsafe(32)}\n")
    os.replace(temporary, file)
    return True


def auth_string(state: Path) -> str:
    """User and password of the local Prefect server, in the form that Prefect takes them."""
    return auth_file(state).read_text("utf-8").strip()


def own_origins(port: int) -> list[str]:
    """Where pages of a local server come from."""
    return [f"http://{name}:{port}" for name in HOST_NAMES]


def basic_auth(auth: str) -> str:
    """The Authorization header of user and password."""
    return f"Basic {base64.b64encode(auth.encode()).decode()}"


def answers(url: str, auth: str | None = None) -> bool:
    """Whether a GET of `url` succeeds, with user and password where they are given."""
    request = urllib.request.Request(url)
    if auth is not None:
        request.add_header("Authorization", basic_auth(auth))
    # A proxy is for other hosts; these are ours.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=3) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False


def is_guarded(url: str, auth: str) -> bool:
    """Whether the Prefect server at `url` wants a password, and takes this one."""
    place = f"{url}/admin/version"
    return answers(place, auth) and not answers(place)
