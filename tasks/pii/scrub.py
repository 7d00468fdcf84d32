"""What may be shown of a text? The text with every found piece of personal data replaced by a typed
tag.

`scrub` is what each excerpt in a report, a log or a tracker has passed. It is idempotent:
replacements hold nothing that a detector looks at, and detection goes on until nothing is left to
find (`tasks.pii.spans`).
"""

from __future__ import annotations

from collections.abc import Iterable


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
    from tasks.pii.stage import PiiConfig, find_spans

    data = text.encode("utf-8", "surrogatepass")
    return apply_spans(data, find_spans(data, PiiConfig())).decode("utf-8", "surrogatepass")
