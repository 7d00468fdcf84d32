"""Opens the file system of an address, so that its server decides nothing about this machine or its
network.

A server may redirect, and the name of a host may change its address. So every connection is checked
where it is made: it may not lead nearer than the server that the user named, from the internet into
a private network or to this machine. That also covers metadata services of clouds, which answer on
link-local addresses. Credentials stay with the host that they are for: aiohttp and httpx drop them
on a redirect to another, and for the hub, whose pages name the next page, a request that still
carries them elsewhere is refused. Indexes of web servers may link on without end, so depth and
number of folders are bounded.
"""

from __future__ import annotations

import functools
import ipaddress
import logging
import os
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

PUBLIC, PRIVATE, HERE = range(3)
"""How near an address is: anywhere, in this network, on this machine or its link."""
WHERE = {PRIVATE: "in a private network", HERE: "of this machine or its link"}

MAX_DEPTH = 32
MAX_FOLDERS = 10_000
"""Folders that are listed for one address on a web server."""


class RefusedConnection(OSError):
    """A server led where it must not. The message says so in words that are the same for every
    address of a host."""


class EndlessFolders(Exception):
    """An index of a web server that links on and on; no OSError, which fsspec passes over."""


def open_system(address: str) -> Any:
    """The file system of an address. Listings must be of now: a process may outlive what it has
    once seen."""
    import fsspec

    scheme = address.partition("://")[0]
    if scheme in ("http", "https"):
        return _web_folders()(get_client=Connections(address).client, skip_instance_cache=True)
    if scheme in ("gs", "gcs") and "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT" not in os.environ:
        # The registered class asks before each request what kind of bucket it is, by gRPC. Who may
        # not know, as without credentials, gets a warning each time; a server that knows no gRPC
        # costs it a quarter of a minute.
        from gcsfs.core import GCSFileSystem

        logging.getLogger("gcsfs").setLevel(
            logging.CRITICAL
        )  # else it logs a traceback for what is one line here
        return GCSFileSystem(use_listings_cache=False)
    # That of the hub knows no such option, so each listing gets a new one.
    system = fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=scheme == "hf")
    if scheme == "hf":
        _guard_hub(system.endpoint)
    return system


def nearness(ip: str) -> int:
    """PUBLIC, PRIVATE or HERE, of an address as a socket names it."""
    address = ipaddress.ip_address(ip.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and (inner := _embedded(address)) is not None:
        address = inner
    if (
        address.is_loopback
        or address.is_link_local
        or address.is_unspecified
        or address.is_multicast
    ):
        return HERE
    return PUBLIC if address.is_global else PRIVATE


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that an IPv6 address stands for: mapped, 6to4, or by a translating gateway
    (RFC 6052)."""
    if address in ipaddress.IPv6Network("64:ff9b::/96"):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def nearness_of_host(host: str, port: int) -> int:
    """How near the nearest address of a host is; one whose name is unknown now is taken for
    public."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return PUBLIC
    return max(nearness_of(sockaddr) for *_, sockaddr in found)


def nearness_of(sockaddr: tuple[Any, ...]) -> int:
    return nearness(str(sockaddr[0]))


class Connections:
    """Connections to one named server, and to where it redirects as long as that is not nearer."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._host = parts.hostname or ""
        self._limit = nearness_of_host(self._host, parts.port or 443)

    def socket(self, addr_info: tuple[Any, ...]) -> socket.socket:
        """What aiohttp connects with, once a name has become an address. Raises
        RefusedConnection."""
        family, kind, protocol, _, sockaddr = addr_info
        if (near := nearness_of(sockaddr)) > self._limit:
            raise _refusal(self._host, near)
        return socket.socket(family, kind, protocol)

    async def client(self, **options: Any) -> Any:
        import aiohttp

        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(socket_factory=self.socket), **options
        )


def _refusal(host: str, near: int) -> RefusedConnection:
    return RefusedConnection(f"{host} leads to an address {WHERE[near]}, which only you may name")


@functools.cache
def _web_folders() -> Any:
    """fsspec's file system of web servers, made where a run needs it: aiohttp takes a while to
    import."""
    from fsspec.implementations.http import HTTPFileSystem

    class WebFolders(HTTPFileSystem):
        """Folders of a web server, listed to a bounded depth and number."""

        cachable = False

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self._num_listed = 0

        async def _ls(self, url: str, detail: bool = True, **options: Any) -> Any:
            self._num_listed += 1
            if url.rstrip("/").count("/") > MAX_DEPTH or self._num_listed > MAX_FOLDERS:
                raise EndlessFolders(
                    f"its folders link on for more than {MAX_DEPTH} levels or {MAX_FOLDERS:,}"
                    " folders; name one that holds less"
                )
            return await super()._ls(url, detail=detail, **options)

    return WebFolders


def _guard_hub(endpoint: str) -> None:
    """Check every request that huggingface_hub makes from now on, redirects and pages of listings
    among them."""
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils._http import default_client_factory

    def check(request: Any) -> None:
        check_hub_request(request, endpoint)

    def client() -> Any:
        made = default_client_factory()
        made.event_hooks = {**made.event_hooks, "request": [*made.event_hooks["request"], check]}
        return made

    set_client_factory(client)


def check_hub_request(
    request: Any, endpoint: str, look_up: Callable[[str, int], int] = nearness_of_host
) -> None:
    """Raise RefusedConnection for a request that shows the token to another host, or leads nearer
    than the hub."""
    hub, asked = urlsplit(endpoint), urlsplit(str(request.url))
    host = hub.hostname or ""
    ports = [parts.port or (443 if parts.scheme == "https" else 80) for parts in (hub, asked)]
    if asked.hostname == host and (ports[0] == ports[1] or asked.scheme == "https"):
        return
    if "authorization" in request.headers:
        raise RefusedConnection(f"{host} names another host, which must not see your token")
    if (near := look_up(asked.hostname or "", ports[1])) > look_up(host, ports[0]):
        raise _refusal(host, near)
