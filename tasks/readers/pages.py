"""Has pages and documents read in a sandbox (tasks.runtime.sandbox; the other side is
tasks.ingest.pagetext).

A page can be made that takes hours to read, so none is read in the process that must go on. Order
and answer are a JSON header and bytes, one frame each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tasks.readers.recordlimits import USUAL, Limits
from tasks.runtime.sandbox import Sandbox

READ_PAGE = "tasks.ingest.pagetext:read_page"


@dataclass(frozen=True, slots=True)
class Encoded:
    """A text that is still bytes: its encoding is to be found, and its text extracted."""

    data: bytes
    charset: str | None
    """What the transport says about the encoding; None where it says nothing."""
    kind: str
    """`html`, `text`, or a format of tasks.ingest.extraction."""
    codings: tuple[str, ...] = ()
    """What the transport did to the bytes, in order: `chunked`, `gzip`, `deflate`, `br`, `zstd`."""


class BrokenPage(ValueError):
    """Bytes that are not what the transport said: the message is a fault's error."""


class PageText(NamedTuple):
    """The text of a page, and what was found out about it on the way."""

    text: str
    title: str | None = None
    encoding: str | None = None
    repaired: bool = False
    """Whether bytes without a meaning became U+FFFD."""
    values: Mapping[str, str] = {}
    """`language`, `added` and `license`, where the document says so."""


def extract(
    page: Encoded, sandbox: Sandbox, main_content: bool, limits: Limits = USUAL
) -> PageText:
    """The text of a page. Raises BrokenPage, OutOfBounds."""
    header = {
        "charset": page.charset,
        "kind": page.kind,
        "codings": page.codings,
        "main_content": main_content,
        "max_bytes": limits.record_bytes,
    }
    answer, text = split_frame(sandbox.call(join_frame(header, page.data)))
    if "error" in answer:
        raise BrokenPage(answer["error"])
    return PageText(**{**answer, "text": text.decode("utf-8")})


def join_frame(header: dict[str, Any], data: bytes) -> bytes:
    """A header and bytes as one."""
    head = json.dumps(header).encode()
    return len(head).to_bytes(4, "little") + head + data


def split_frame(frame: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the bytes of a frame."""
    end = 4 + int.from_bytes(frame[:4], "little")
    return json.loads(frame[4:end]), frame[end:]
