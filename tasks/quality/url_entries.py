"""Reads entries of URL lists, and URLs, in the form in which they are compared.

Hosts in lower case and punycode (IDNA), without user, port and trailing dot; URLs without scheme,
`www.`, fragment and final slash. A domain stands for all domains under it, never above the
registrable domain of the public suffix list."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from llm_core.config import ConfigError
from tasks.corpus.urls import normal_escapes

if TYPE_CHECKING:
    from publicsuffixlist import PublicSuffixList

PIECES = re.compile(r"[^\W_]+")
_SCHEME = re.compile(r"(?i)[a-z][a-z0-9+.-]*://")
_IDNA_DOTS = str.maketrans("。．｡", "...")


def split_url(url: str) -> tuple[str, str] | None:
    """(host, what follows it up to the fragment) of an absolute URL or one without a scheme; None
    where there is no host."""
    url = url.strip()
    try:
        # Behind // urlsplit reads a host, also where the scheme is missing.
        pieces = urlsplit(url if _SCHEME.match(url) or url.startswith("//") else f"//{url}")
        host = normal_host(pieces.hostname or "")
    except ValueError:  # a bracketed host that is none
        return None
    rest = pieces.path + (f"?{pieces.query}" if pieces.query else "")
    return (host, normal_escapes(rest)) if host else None


def normal_host(host: str) -> str:
    """Lower case, punycode, no dots at the end; a name that IDNA does not allow stays as it is, but
    for case."""
    host = host.translate(_IDNA_DOTS).lower().rstrip(".")
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError:
        return host


def domains_above(host: str, suffixes: PublicSuffixList) -> list[str]:
    """The host and the domains above it, down to the registrable one; an address or an unknown host
    alone."""
    is_address = host.replace(".", "").isdigit() or ":" in host
    registrable = None if is_address else suffixes.privatesuffix(host)
    if registrable is None:
        return [host]
    labels, least = host.split("."), registrable.count(".") + 1
    return [".".join(labels[i:]) for i in range(len(labels) - least + 1)]


def places_above(host: str, rest: str) -> list[str]:
    """The URL, without its query, and every folder above it, as `host/path`; `www.` and final
    slashes are left out."""
    path, mark, query = rest.partition("?")
    names = [host.removeprefix("www."), *filter(None, [path.strip("/")])]
    names = "/".join(names).split("/")
    places = ["/".join(names[: i + 1]) for i in range(len(names))]
    return [*places, f"{places[-1]}?{query}"] if mark else places


@lru_cache(maxsize=1)
def public_suffixes() -> PublicSuffixList:
    from publicsuffixlist import PublicSuffixList

    return PublicSuffixList(only_icann=True)


def domain_entry(entry: str, where: str) -> str:
    host = normal_host(entry.strip().removeprefix("*.").lstrip("."))
    if not host or any(char in host for char in "/:@ ") or ".." in host or not host.isprintable():
        raise ConfigError(
            f"{where} holds {entry!r}, which is not a domain; write it like example.com, and set"
            " URLs of pages under urls"
        )
    if not host.replace(".", "").isdigit() and public_suffixes().is_public(host):
        raise ConfigError(
            f"{where} holds {entry!r}, a public suffix, under which anybody can register a domain;"
            " list domains under it"
        )
    return host


def place_entry(entry: str, where: str) -> str:
    split = split_url(entry)
    if split is None or not entry.isprintable():
        raise ConfigError(
            f"{where} holds {entry!r}, which is not a URL; write it like example.com/path"
        )
    host, rest = split
    if not rest.strip("/"):
        raise ConfigError(f"{where} holds {entry!r}, which is a whole host; set it under domains")
    return places_above(host, rest)[-1]


def keyword_entry(entry: str, where: str) -> str:
    word = entry.strip().casefold()
    if not PIECES.fullmatch(word):
        raise ConfigError(
            f"{where} holds {entry!r}, which is not one word of letters and digits; split it up, or"
            " set it under urls"
        )
    return word
