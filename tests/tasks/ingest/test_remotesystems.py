"""A server decides nothing about this machine or its network: where it leads is checked at every
connection."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_core.config import ConfigError
from tasks.ingest import remotesystems
from tasks.ingest.remotesystems import (
    HERE,
    PRIVATE,
    PUBLIC,
    RefusedConnection,
    nearness,
)
from tasks.ingest.sourcefiles import list_files
from tests.support.data.far_and_near import (
    PUBLIC_THEN_HERE,
    TEXT,
    Pair,
    lead_in_turn,
    serve_far_and_near,
)


@pytest.fixture
def far_and_near(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    with serve_far_and_near(monkeypatch) as pair:
        yield pair


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
