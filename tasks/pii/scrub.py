"""Makes texts that may be shown: every found piece of personal data is replaced by a typed tag.

Each excerpt in a report, a log or a tracker has passed `scrub` or `scrub_excerpt`. Scrubbing is
idempotent: replacements hold nothing that a detector looks at, and detection goes on until nothing
is left to find (`tasks.pii.spans`).
"""

from __future__ import annotations

from collections.abc import Iterable

from tasks.pii.config import PiiConfig
from tasks.pii.spans import find_spans


def apply_spans(text: bytes, spans: Iterable[tuple[int, int, str]]) -> bytes:
    """Replace ordered, disjoint spans (start, end, type) of UTF-8 bytes by `<TYPE>`."""
    return apply_replacements(text, ((start, end, f"<{kind}>") for start, end, kind in spans))


def apply_replacements(text: bytes, spans: Iterable[tuple[int, int, str]]) -> bytes:
    """Replace ordered, disjoint spans (start, end, replacement) of UTF-8 bytes."""
    pieces, position = [], 0
    for start, end, replacement in spans:
        assert position <= start < end <= len(text), (
            "spans must be ordered, disjoint and inside the text"
        )
        pieces += [text[position:start], replacement.encode()]
        position = end
    return b"".join([*pieces, text[position:]])


def scrub(text: str) -> str:
    """The text with typed tags in place of personal data of every type that is found by default."""
    data = text.encode("utf-8", "surrogatepass")
    return apply_spans(data, find_spans(data, PiiConfig())).decode("utf-8", "surrogatepass")


def scrub_excerpt(text: bytes, start: int, end: int) -> str:
    """The bytes of a text from start to end, scrubbed; characters and spans that are cut are left
    out.

    All of the text is searched, so that no cut hides half a span.
    """
    spans = find_spans(text, PiiConfig())
    start = max([start, *(e for s, e, _ in spans if s < start < e)])
    end = min([end, *(s for s, e, _ in spans if s < end < e)])
    inside = [(s - start, e - start, kind) for s, e, kind in spans if start <= s and e <= end]
    return apply_spans(text[start:end], inside).decode("utf-8", "ignore")
