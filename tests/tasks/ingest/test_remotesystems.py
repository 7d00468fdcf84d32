"""A server decides nothing about this machine or its network: where it leads is checked at every
connection."""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_core.config import ConfigError
from tasks.ingest import remotesystems, retries
from tasks.ingest.remotesystems import (
    HERE,
    PRIVATE,
    PUBLIC,
    HubConnections,
    RefusedConnection,
    nearness,
)
from tasks.ingest.sourcefiles import list_files
from tests.support.data.hub_server import REPO, serve_hub

TEXT = b'{"text": "secret of this machine"}\n'


class Server(BaseHTTPRequestHandler):
    """Redirects what is in `moved` and answers the rest; keeps the headers it was sent."""

    moved: dict[str, str]
    links: Callable[[str], list[str]] | None
    seen: list[tuple[str, dict[str, str]]]

    def do_GET(self) -> None:
        self.seen.append((self.path, dict(self.headers)))
        if self.path in self.moved:
            self.send_response(302)
            self.send_header("Location", self.moved[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        folder = self.links is not None and not self.path.endswith(".jsonl")
        body = (
            "".join(f'<a href="{link}">x</a>' for link in self.links(self.path)).encode()
            if folder and self.links
            else TEXT
        )
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if folder else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"one"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serve() -> Iterator[tuple[int, type[Server]]]:
    handler = type("Handler", (Server,), {"moved": {}, "seen": [], "links": None})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server.server_address[1], handler
    server.shutdown()
    server.server_close()


@pytest.fixture
def far_and_near(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[tuple[int, type[Server]], tuple[int, type[Server]]]]:
    """Two servers. The name `far.example` leads to the first, whose address counts as public; the
    second is of this machine."""
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.01)
    with ExitStack() as servers:
        far, near = servers.enter_context(serve()), servers.enter_context(serve())
        lead_to(monkeypatch, {"far.example": "127.0.0.1"})
        ports = {far[0]}
        kind_of = remotesystems.nearness

        def by_port(sockaddr: Any) -> int:
            return PUBLIC if sockaddr[1] in ports else kind_of(str(sockaddr[0]))

        monkeypatch.setattr(remotesystems, "nearness_of", by_port)
        yield far, near


def lead_to(monkeypatch: pytest.MonkeyPatch, names: dict[str, str]) -> None:
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *rest, **more: real(names.get(host, host), *rest, **more),
    )


PUBLIC_THEN_HERE = ("8.8.8.8", "127.0.0.1")


def lead_in_turn(monkeypatch: pytest.MonkeyPatch, names: dict[str, tuple[str, ...]]) -> None:
    """Answer each question for a name by the next of its addresses, and at last by the last."""
    real, left = socket.getaddrinfo, {name: list(answers) for name, answers in names.items()}

    def answer(host: Any, *rest: Any, **more: Any) -> Any:
        answers = left.get(host, [host])
        return real(answers.pop(0) if len(answers) > 1 else answers[0], *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", answer)


def test_a_redirect_from_elsewhere_to_this_machine_is_refused(
    far_and_near: Any, tmp_path: Path
) -> None:
    (far_port, far), (near_port, near) = far_and_near
    for host in ("127.0.0.1", "localhost", "127.1", "0x7f.1", "[::ffff:127.0.0.1]"):
        far.moved["/a.jsonl"] = f"http://{host}:{near_port}/b.jsonl"
        with pytest.raises(ConfigError) as caught:
            list_files([f"http://far.example:{far_port}/a.jsonl"], None, tmp_path / "cache").files
        why = (
            "refused: .* not a canonical"
            if host == "127.1"
            else "far.example leads to an address of this machine"
        )
        assert re.search(rf"a\.jsonl cannot be read \({why}", str(caught.value))
    assert near.seen == [] and not list(tmp_path.rglob("*.jsonl"))


def test_a_name_whose_address_changes_to_this_machine_is_refused(
    far_and_near: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (far_port, _), (near_port, near) = far_and_near
    system = remotesystems.open_system(f"http://far.example:{far_port}/a.jsonl")
    assert system.cat_file(f"http://far.example:{far_port}/a.jsonl") == TEXT
    with pytest.raises(OSError) as caught:
        system.cat_file(f"http://far.example:{near_port}/a.jsonl")
    assert isinstance(caught.value.__cause__, RefusedConnection)
    assert near.seen == []


def test_a_name_whose_second_answer_is_this_machine_is_not_connected_to(
    far_and_near: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (near_port, near) = far_and_near
    lead_in_turn(monkeypatch, {"two.example": PUBLIC_THEN_HERE})
    address = f"http://two.example:{near_port}/a.jsonl"
    system = remotesystems.open_system(address)
    with pytest.raises(OSError) as caught:
        system.cat_file(address)
    assert isinstance(caught.value.__cause__, RefusedConnection)
    assert near.seen == []


def test_redirects_elsewhere_and_among_servers_of_this_machine_are_followed(
    far_and_near: Any, tmp_path: Path
) -> None:
    (far_port, far), (near_port, near) = far_and_near
    far.moved["/a.jsonl"] = f"http://far.example:{far_port}/b.jsonl"
    near.moved["/a.jsonl"] = "/c.jsonl"
    near.moved["/far.jsonl"] = f"http://far.example:{far_port}/d.jsonl"
    for address in (
        f"far.example:{far_port}/a",
        f"127.0.0.1:{near_port}/a",
        f"localhost:{near_port}/far",
    ):
        (file,) = list_files([f"http://{address}.jsonl"], None, tmp_path / "cache").files.values()
        assert file.read_bytes() == TEXT


def test_redirects_that_never_end_are_one_line(far_and_near: Any, tmp_path: Path) -> None:
    (far_port, far), _ = far_and_near
    far.moved["/a.jsonl"] = "/a.jsonl"
    with pytest.raises(ConfigError, match="cannot be read"):
        list_files([f"http://far.example:{far_port}/a.jsonl"], None, tmp_path / "cache").files
    assert len(far.seen) < 200


@pytest.mark.parametrize("pattern", ["", "**/*.jsonl"])
def test_an_index_that_links_ever_deeper_is_one_line(
    pattern: str, far_and_near: Any, tmp_path: Path
) -> None:
    (far_port, far), _ = far_and_near
    far.links = staticmethod(lambda path: [f"{path.rstrip('/')}/deeper/"])
    with pytest.raises(ConfigError, match="its folders link on for more than 32 levels"):
        list_files(
            [f"http://far.example:{far_port}/data/{pattern}"], None, tmp_path / "cache"
        ).files
    assert len(far.seen) < 40


def test_an_index_of_ever_more_folders_is_one_line(
    far_and_near: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (far_port, far), _ = far_and_near
    monkeypatch.setattr(remotesystems, "MAX_FOLDERS", 50)
    far.links = staticmethod(lambda path: [f"{path.rstrip('/')}/{number}/" for number in range(8)])
    with pytest.raises(ConfigError, match="or 50 folders; name one that holds less"):
        list_files([f"http://far.example:{far_port}/data/"], None, tmp_path / "cache").files
    assert len(far.seen) <= 51


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        *[
            (a, HERE)
            for a in (
                "127.0.0.1",
                "127.255.0.9",
                "0.0.0.0",
                "::1",
                "::",
                "169.254.169.254",
                "fe80::1%eth0",
                "224.0.0.1",
            )
        ],
        *[
            (a, HERE)
            for a in (
                "::ffff:127.0.0.1",
                "64:ff9b::7f00:1",
                "2002:7f00:1::",
                "::ffff:169.254.169.254",
            )
        ],
        *[
            (a, PRIVATE)
            for a in (
                "10.0.0.1",
                "172.16.3.4",
                "192.168.1.1",
                "100.64.0.1",
                "fd00:ec2::254",
                "::ffff:10.0.0.1",
            )
        ],
        *[
            (a, PUBLIC)
            for a in ("8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808")
        ],
    ],
)
def test_addresses_are_as_near_as_what_they_stand_for(address: str, kind: int) -> None:
    assert nearness(address) == kind


@given(st.ip_addresses())
def test_no_address_that_is_not_global_counts_as_public(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    assert (
        address.is_global
        or nearness(str(address)) > PUBLIC
        or isinstance(address, ipaddress.IPv6Address)
    )


class Request:
    def __init__(self, url: str, **headers: str) -> None:
        self.url, self.headers, self.extensions = url, headers, dict[str, Any]()


def guard(**near: int) -> HubConnections:
    """Of hub.example, which knows how near some hosts are; all others are public."""
    return HubConnections(
        "https://hub.example",
        lambda host, port: near.get(host.removesuffix(".example"), PUBLIC),
    )


@pytest.mark.parametrize(
    ("url", "refused"),
    [
        ("https://hub.example/api", None),
        ("https://hub.example:443/api", None),
        ("https://files.example/x", "must not see your token"),
        ("https://hub.example.evil.example/x", "must not see your token"),
        ("http://hub.example/api", "must not see your token"),
    ],
)
def test_the_token_of_the_hub_is_shown_to_the_hub_alone(url: str, refused: str | None) -> None:
    request = Request(url, authorization="Bearer hidden")
    if refused is None:
        guard().check(request)
    else:
        with pytest.raises(RefusedConnection, match=refused) as caught:
            guard().check(request)
        assert "hidden" not in str(caught.value)


def test_the_hub_leads_nowhere_nearer_than_itself() -> None:
    hub = guard(intranet=PRIVATE)
    hub.check(Request("https://cdn.example/x"))
    with pytest.raises(
        RefusedConnection, match="hub.example leads to an address in a private network"
    ):
        hub.check(Request("https://intranet.example/x"))


@pytest.fixture
def hub_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Opens the file system of a hub; the factory of clients is that of the package afterwards."""
    hub = pytest.importorskip("huggingface_hub", "1.0")
    import fsspec
    from huggingface_hub.utils import _http

    def opened(endpoint: str) -> Any:
        monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": endpoint})
        return remotesystems.open_system("hf://datasets/me/texts")

    monkeypatch.setattr(hub.constants, "HF_HUB_DISABLE_XET", False)
    yield opened
    hub.set_client_factory(_http.default_client_factory)


@pytest.mark.parametrize("is_hub", [True, False])
def test_a_name_whose_second_answer_is_this_machine_gets_no_request_of_the_hub(
    is_hub: bool,
    far_and_near: Any,
    hub_of: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first answer, which is checked, is public; the connection is made by the second."""
    (far_port, _), (near_port, near) = far_and_near
    port = near_port if is_hub else far_port
    lead_in_turn(monkeypatch, {f"{name}.example": PUBLIC_THEN_HERE for name in ("hub", "cdn")})
    hub_of(f"http://hub.example:{port}")
    from huggingface_hub.utils import get_session

    with pytest.raises(RefusedConnection, match="hub.example leads to an address of this machine"):
        get_session().get(f"http://{'hub' if is_hub else 'cdn'}.example:{near_port}/a.jsonl")
    assert near.seen == []


def test_a_hub_on_this_machine_and_a_proxy_on_it_are_connected_to(
    far_and_near: Any, hub_of: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (far_port, _), (near_port, near) = far_and_near
    from huggingface_hub.utils import get_session

    hub_of(f"http://127.0.0.1:{near_port}")
    assert get_session().get(f"http://127.0.0.1:{near_port}/a.jsonl").content == TEXT
    hub_of(f"http://far.example:{far_port}")
    monkeypatch.setenv("http_proxy", f"http://localhost:{near_port}")
    monkeypatch.setenv("no_proxy", "")
    assert get_session().get(f"http://far.example:{far_port}/b.jsonl").content == TEXT
    assert len(near.seen) == 2


def test_the_library_that_connects_by_itself_is_not_used_for_a_hub(
    hub_of: Callable[[str], Any],
) -> None:
    from huggingface_hub.utils._runtime import is_xet_available

    hub_of("http://127.0.0.1:1")
    assert not is_xet_available()


def test_a_page_of_the_hub_on_another_host_gets_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub", "1.0")
    import fsspec

    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.01)
    monkeypatch.setenv("HF_TOKEN", "hidden")
    with (
        serve() as (port, other),
        serve_hub({"main": {f"{i}.jsonl": TEXT for i in range(5)}}) as (address, hub),
    ):
        hub.token = "hidden"
        monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": address})
        answer = hub._answer

        def misleading(
            self: Any, status: int, body: Any, code: str | None = None, headers: Any = None
        ) -> None:
            link = (
                {"Link": f'<http://127.0.0.1:{port}/next>; rel="next"'}
                if headers and "Link" in headers
                else headers
            )
            answer(self, status, body, code, link)

        monkeypatch.setattr(hub, "_answer", misleading)
        with pytest.raises(ConfigError, match="must not see your token"):
            list_files([f"hf://datasets/{REPO}/*.jsonl"], None, tmp_path / "cache").files
        assert other.seen == []
