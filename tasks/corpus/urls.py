"""Normalises URLs, and gives a 128-bit key to those of one page.

Of RFC 3986, section 6.2.2 and 6.2.3: scheme and host in lower case, the default port dropped,
escapes in upper case and undone for unreserved characters, an empty path is `/`. Beyond it: white
space is escaped; the fragment goes (it never reaches a server), and so do parameters that are named
as tracking ones; the others stay in their order, for a server may care. http and https stay apart,
and so do `www.` and the bare host.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from urllib.parse import quote, urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443, "ftp": 21}
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_SPACE = re.compile(r"\s")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def normalise_url(url: str, tracking_parameters: Sequence[str] = ()) -> str | None:
    """The normal form, or None for what is not an absolute URL.

    A tracking parameter that ends in `*` stands for all that begin so.
    """
    try:
        pieces = urlsplit(url.strip())
        port = pieces.port
    except ValueError:
        return None  # such as http://[half or http://host:port
    host = (pieces.hostname or "").rstrip(".")
    if not pieces.scheme or not host:
        return None
    host = f"[{host}]" if ":" in host else host
    if port is not None and port != _DEFAULT_PORTS.get(pieces.scheme):
        host = f"{host}:{port}"
    user = pieces.netloc.rpartition("@")[0]
    path = normal_escapes(pieces.path) or "/"
    given = filter(None, pieces.query.split("&"))
    kept = [p for p in given if not _is_tracking(p.partition("=")[0], tracking_parameters)]
    query = normal_escapes("&".join(kept))
    return f"{pieces.scheme}://{user}{'@' if user else ''}{host}{path}{'?' if query else ''}{query}"


def url_keys(
    urls: Sequence[str | None], tracking_parameters: Sequence[str] = ()
) -> list[bytes | None]:
    """128 bits for each URL, None where there is none."""
    normal = [normalise_url(url, tracking_parameters) if url else None for url in urls]
    return [hashlib.blake2b(n.encode(), digest_size=16).digest() if n else None for n in normal]


def _is_tracking(name: str, tracking_parameters: Sequence[str]) -> bool:
    return any(
        name.startswith(t[:-1]) if t.endswith("*") else name == t for t in tracking_parameters
    )


def normal_escapes(text: str) -> str:
    """Escapes in upper case, and undone for unreserved characters. White space is escaped: at the
    end of a path or query it would be lost when the result is read again."""

    def normal(match: re.Match[str]) -> str:
        char = chr(int(match[1], 16))
        return char if char in _UNRESERVED else match[0].upper()

    return _ESCAPE.sub(normal, _SPACE.sub(lambda match: quote(match[0]), text))
