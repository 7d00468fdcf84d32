"""Only who started the local services may use them: no other user, no page of another site."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets import ConnectionClosed, Subprotocol, connect

from flows.services.access import answers, auth_string, is_guarded
from flows.services.local import down, up
from flows.services.processes import descendants, free_port, proc_folders, start_time, stop
from tasks.runtime.artifact import write_json
from tasks.runtime.code import ROOT
from tests.support.local_services import UNGUARDED, Server, start_unguarded
from tests.support.whole_runs import make_corpus, run


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Server and worker, started over what an earlier version has left: services without a
    password, files that all may read."""
    state = tmp_path_factory.mktemp("local") / "state"
    for folder in ("prefect", "mlflow", "logs"):
        (state / folder).mkdir(parents=True)
    for file in ("prefect/prefect.db", "mlflow/mlflow.db", "logs/server.log"):
        (state / file).touch(mode=0o644)
    state.chmod(0o755)
    port = free_port()
    known = {
        "server": start_unguarded(state, "server", [UNGUARDED, str(port)], port),
        "worker": start_unguarded(state, "worker", ["import time; time.sleep(600)"]),
    }
    write_json(state / "services.json", known)
    before = os.environ.pop("PREFECT_API_URL", None)
    said: list[str] = []
    pids = tuple(int(entry["pid"]) for entry in known.values())
    try:
        until = time.monotonic() + 30
        while not answers(f"http://127.0.0.1:{port}/api/health") and time.monotonic() < until:
            time.sleep(0.1)
        url = up(state, said.append)
        yield Server(state, url, said, pids)
    finally:
        down(state)
        stop(pids, 1.0)
        if before is not None:
            os.environ["PREFECT_API_URL"] = before


slow = pytest.mark.slow


@slow
def test_services_of_earlier_versions_are_named_and_replaced(server: Server) -> None:
    assert any("were started without the password" in line for line in server.said)
    assert not [pid for pid in server.replaced if start_time(pid)]
    assert is_guarded(server.url, auth_string(server.state))
    del server.said[:]
    assert up(server.state, server.said.append) == server.url and server.said == [], (
        "and this one stays"
    )
    worker = json.loads((server.state / "services.json").read_text())["worker"]
    assert descendants([worker["pid"]]) == [worker["pid"]], (
        "an idle worker is one process: others are flow runs"
    )


@slow
@pytest.mark.parametrize("auth", [None, "textmill:", "admin:admin", "x" * 50], ids=repr)
def test_without_the_password_nothing_is_told_and_nothing_run(
    auth: str | None, server: Server
) -> None:
    place = f"/api/deployments/{server.deployment()['id']}/create_flow_run"
    before = server.num_flow_runs()
    attack = {"job_variables": {"command": "touch /tmp/owned"}}
    assert server.ask("POST", place, attack, auth)[0] == 401
    for path in (
        "/api/admin/settings",
        "/api/deployments/name/pipeline/local",
        "/api/variables/name/health",
    ):
        status, _, content = server.ask("GET", path, auth=auth)
        assert status == 401 and len(content) < 100
    assert server.num_flow_runs() == before


@slow
@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost.evil.example"],
)
def test_pages_of_other_sites_are_refused_even_with_the_password(
    origin: str, server: Server
) -> None:
    before = server.num_flow_runs()
    place = f"/api/deployments/{server.deployment()['id']}/create_flow_run"
    status, headers, _ = server.ask("POST", place, {}, Origin=origin)
    assert status == 403 and "access-control-allow-origin" not in headers
    status, headers, _ = server.ask(
        "OPTIONS", place, auth=None, Origin=origin, Access_Control_Request_Method="POST"
    )
    assert status == 403 and "access-control-allow-origin" not in headers
    assert server.num_flow_runs() == before


@slow
@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example:{port}", "0.0.0.0:{port}"],
)
def test_other_host_names_are_refused_even_with_the_password(host: str, server: Server) -> None:
    for path in ("/api/admin/version", "/api/health", "/", "/ui-settings"):
        assert server.ask("GET", path, Host=host.format(port=server.port))[0] == 400


@slow
def test_web_sockets_are_refused_too(server: Server) -> None:
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec_WebSocket_Key": "A" * 22 + "==",
        "Sec_WebSocket_Version": "13",
    }
    assert server.ask("GET", "/api/events/out", Origin="https://evil.example", **upgrade)[0] == 403
    assert server.ask("GET", "/api/events/out", Host="evil.example", **upgrade)[0] == 400

    async def sign_in(password: str) -> Any:
        address = f"{server.url.replace('http', 'ws')}/events/out"
        async with connect(address, subprotocols=[Subprotocol("prefect")]) as socket:
            await socket.send(json.dumps({"type": "auth", "token": password}))
            return json.loads(await socket.recv())

    assert asyncio.run(sign_in(auth_string(server.state))) == {"type": "auth_success"}
    with pytest.raises(ConnectionClosed):
        asyncio.run(sign_in("another"))


@slow
@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_the_interface_works_by_its_own_address(name: str, server: Server) -> None:
    own = {"Host": f"{name}:{server.port}", "Origin": f"http://{name}:{server.port}"}
    status, headers, page = server.ask("GET", "/", auth=None, Accept="text/html", **own)
    if status == 307:
        status, headers, page = server.ask(
            "GET", headers["location"], auth=None, Accept="text/html", **own
        )
    assert status == 200 and b"<html" in page
    settings = json.loads(server.ask("GET", "/ui-settings", auth=None, **own)[2])
    assert settings["auth"] == "BASIC" and settings["api_url"] == server.url
    status, headers, _ = server.ask("POST", "/api/flows/filter", {}, **own)
    assert status == 200 and headers["access-control-allow-origin"] == own["Origin"]
    preflight = {
        "Access_Control_Request_Method": "POST",
        "Access_Control_Request_Headers": "authorization,content-type",
    }
    assert server.ask("OPTIONS", "/api/flows/filter", auth=None, **own, **preflight)[0] == 200


@slow
def test_a_shell_that_evaluates_env_may_run_deployments_and_no_other(
    server: Server, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "flows.cli", "env", f"state={server.state}"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    prefect = (
        f"""{sys.executable} -m prefect deployment run pipeline/local -p overrides='["+typo=1"]'"""
    )
    bare = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}

    def shell(script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", script], cwd=ROOT, env=bare, capture_output=True, text=True, check=False
        )

    without = "\n".join(line for line in lines.splitlines() if "AUTH_STRING" not in line)
    refused = shell(f"{without}\n{prefect}")
    assert refused.returncode != 0 and "401" in refused.stdout + refused.stderr
    done = shell(f"{lines}\n{prefect} --watch")
    assert done.returncode == 1 and "finished in state 'Failed'" in done.stdout, (
        done.stdout + done.stderr
    )
    runs = json.loads(server.ask("POST", "/api/flow_runs/filter", {})[2])
    # The worker took the run, and the run could tell how it ended.
    assert [run["state"]["message"][:26] for run in runs if run["deployment_id"]] == [
        "typo is not a known setting"[:26]
    ]
    assert auth_string(server.state) not in done.stdout + done.stderr


@slow
def test_a_run_finds_its_way_in_and_a_stale_environment_does_not_keep_it_out(
    server: Server, tmp_path: Path
) -> None:
    corpus = make_corpus(tmp_path / "corpus", num_files=1)
    stale = {
        "PREFECT_API_URL": server.url,
        "PREFECT_API_AUTH_STRING": "textmill:of-an-earlier-server",
    }
    controls = ["orchestrator=prefect", "only=ingest", f"state='{server.state}'"]
    done = run("refresh", corpus, tmp_path, *controls, **stale)
    assert json.loads(done.stdout.splitlines()[-1])["stages"]["ingest"]["kept"] > 0
    assert server.num_flow_runs() > 0


@slow
def test_the_password_stands_in_no_log_and_no_command_line(server: Server) -> None:
    password = auth_string(server.state).partition(":")[2].encode()
    assert len(password) > 40
    shown = [
        *server.state.glob("logs/*"),
        *server.state.glob("*.json"),
        *(folder / "cmdline" for folder in proc_folders()),
    ]
    assert len(shown) > 3
    for file in shown:
        try:
            assert password not in file.read_bytes(), file
        except (FileNotFoundError, ProcessLookupError):  # a process that has ended
            assert file.name == "cmdline"


@slow
def test_folders_and_files_of_services_are_their_owners(server: Server) -> None:
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    assert mode(server.state) == 0o700
    patterns = ("*.json", "logs/*", "prefect/*.db*", "mlflow/*.db", "prefect/auth")
    files = [file for pattern in patterns for file in server.state.glob(pattern)]
    assert {file.name for file in files} >= {
        "services.json",
        "server.log",
        "worker.log",
        "prefect.db",
        "mlflow.db",
        "auth",
    }
    assert [file for file in files if mode(file) & 0o077] == []
    written = [file for file in (server.state / "prefect").rglob("*") if file.is_file()]
    assert [file for file in written if mode(file) & 0o077 and "ui" not in file.parts] == []
