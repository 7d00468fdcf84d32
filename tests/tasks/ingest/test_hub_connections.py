"""A hub leads to no address nearer than its own, and no other host sees the token for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_core.config import ConfigError
from tasks.ingest import remotesystems, retries
from tasks.ingest.remotesystems import PRIVATE, PUBLIC, HubConnections, RefusedConnection
from tasks.ingest.sourcefiles import list_files
from tests.support.data.far_and_near import (
    PUBLIC_THEN_HERE,
    TEXT,
    Pair,
    lead_in_turn,
    serve,
    serve_far_and_near,
)
from tests.support.data.hub_server import REPO, serve_hub


@pytest.fixture
def far_and_near(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    with serve_far_and_near(monkeypatch) as pair:
        yield pair


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
