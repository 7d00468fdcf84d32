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
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

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
        system = GCSFileSystem(use_listings_cache=False)
        _require_credentials(system)
        return system
    # That of the hub knows no such option, so each listing gets a new one.
    system = fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=scheme == "hf")
    if scheme == "hf":
        _guard_hub(system.endpoint)
    return system


def _require_credentials(system: Any) -> None:
    """Raise what is wrong with the credentials of Google, before any request: gcsfs goes on without
    them where their file is invalid, and tries six times where they are refused."""
    if system.on_google:
        names_a_file = bool(os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"))
        if names_a_file and system.credentials.credentials is None:
            system.credentials.connect("google_default")
        system.credentials.maybe_refresh()


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
        self._limit = nearness_of_host(self._host, _port(parts))

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
    from huggingface_hub import constants, set_client_factory
    from huggingface_hub.utils._http import default_client_factory

    guard = HubConnections(endpoint)

    def client() -> Any:
        made = default_client_factory()
        hooks = [*made.event_hooks["request"], guard.check]
        made.event_hooks = {**made.event_hooks, "request": hooks}
        return made

    set_client_factory(client)
    # That library connects by itself, to hosts that the hub names.
    constants.HF_HUB_DISABLE_XET = True


class HubConnections:
    """Requests to a hub, and to where it leads as long as that is not nearer.

    The name of a host is looked up again where a connection is made, and may then have another
    address. So the address that was connected to is checked too, before a byte is sent. Behind a
    proxy there is no such address: the proxy decides what it connects to.
    """

    def __init__(
        self, endpoint: str, look_up: Callable[[str, int], int] = nearness_of_host
    ) -> None:
        self._hub, self._look_up = urlsplit(endpoint), look_up
        self._host = self._hub.hostname or ""
        self._limit = look_up(self._host, _port(self._hub))

    def check(self, request: Any) -> None:
        """Raise RefusedConnection for a request that shows the token to another host, or leads
        nearer than the hub; let its connection be checked."""
        asked = urlsplit(str(request.url))
        is_hub = asked.hostname == self._host and (
            _port(asked) == _port(self._hub) or asked.scheme == "https"
        )
        if not is_hub:
            if "authorization" in request.headers:
                raise RefusedConnection(
                    f"{self._host} names another host, which must not see your token"
                )
            self._require_far(self._look_up(asked.hostname or "", _port(asked)))
        request.extensions = {**request.extensions, "trace": self._check_connections(request)}

    def _check_connections(self, request: Any) -> Callable[[str, Mapping[str, Any]], None]:
        """What httpx calls while a request makes its connection."""
        is_proxy = False

        def trace(event: str, facts: Mapping[str, Any]) -> None:
            nonlocal is_proxy
            if event.endswith("connect_tcp.started"):
                is_proxy = facts["host"] != request.url.raw_host.decode("ascii")
            elif event.endswith("connect_tcp.complete") and not is_proxy:
                connection = facts["return_value"]
                try:
                    self._require_far(nearness_of(connection.get_extra_info("server_addr")))
                except BaseException:
                    connection.close()
                    raise

        return trace

    def _require_far(self, near: int) -> None:
        if near > self._limit:
            raise _refusal(self._host, near)


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)
