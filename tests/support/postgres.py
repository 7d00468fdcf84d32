"""A PostgreSQL server of its own for a test, on loopback and a free port."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from flows.services.processes import free_port

PASSWORD = "Pl4ntedPostgres"


def server_programs() -> Path | None:
    """The folder of the newest installed server's programs; Debian keeps them off the path."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = places[-1] if places else shutil.which("initdb")
    return Path(found).parent if found else None


@contextmanager
def postgres_server(*databases: str) -> Iterator[str]:
    """`user:password@host:port` of a server with these databases; removed afterwards."""
    programs = server_programs()
    assert programs is not None
    # The server refuses to run as root.
    user = "postgres" if os.geteuid() == 0 else None
    port = free_port()
    with TemporaryDirectory(prefix="pg-", dir="/tmp") as place:
        if user:
            os.chown(place, pwd.getpwnam(user).pw_uid, -1)
        password = Path(place) / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)

        def run(*command: str) -> None:
            subprocess.run(
                command, check=True, user=user, cwd=place, stdout=subprocess.DEVNULL, env=_env()
            )

        data = f"{place}/data"
        rules = ("--auth=scram-sha-256", f"--pwfile={password}", "--no-sync", "-E", "UTF8")
        run(f"{programs}/initdb", "-D", data, "-U", "textmill", *rules)
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={place}"
        log = f"{place}/log"
        run(f"{programs}/pg_ctl", "-D", data, "-w", "-l", log, "-o", f"{options} -F", "start")
        try:
            for name in databases:
                run(
                    *(f"{programs}/createdb", "-h", "127.0.0.1", "-p", str(port)),
                    *("-U", "textmill", name),
                )
            yield f"textmill:{PASSWORD}@127.0.0.1:{port}"
        finally:
            run(f"{programs}/pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")


def _env() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "PGPASSWORD": PASSWORD}
