"""Extracts the text of a mail (RFC 5322, MIME).

The body is its parts of text in their order. Of alternatives it is the plain one, or the page where
that is blank (RFC 2046, 5.1.4). The subject becomes the title. Left out: addresses, other headers,
attachments with all that is in them.
"""

from __future__ import annotations

import email
import email.header
from email import policy
from email.errors import HeaderParseError
from email.message import Message
from email.utils import parsedate_to_datetime

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from tasks.corpus.visible import shows
from tasks.ingest.decoding import Encoding, decode
from tasks.readers.pages import BrokenPage, PageText

HEADERS = ("from", "to", "subject", "date", "message-id", "received", "content-type")


def read(data: bytes, charset: str | None, max_bytes: int) -> PageText:
    """The body of a mail."""
    message = email.message_from_bytes(data, policy=policy.compat32)
    if not any(name in message for name in HEADERS):
        raise BrokenPage("unreadable mail: no header")
    texts = _texts(message, charset)
    encodings = [encoding for _, encoding in texts]
    values = {}
    if date := message.get("Date"):
        values["added"] = _date(str(date))
    return PageText(
        "\n\n".join(text for text, _ in texts),
        _header(message, "Subject"),
        encodings[0].name if encodings else None,
        any(encoding.repaired for encoding in encodings),
        {name: value for name, value in values.items() if value},
    )


def _texts(part: Message, charset: str | None) -> list[tuple[str, Encoding]]:
    if part.get_filename() or part.get_content_disposition() == "attachment":
        return []
    kind, payload = part.get_content_type(), part.get_payload()
    if isinstance(payload, list):
        inner = [member for member in payload if isinstance(member, Message)]
        members = [(member, _texts(member, charset)) for member in inner]
        if kind != "multipart/alternative":
            return [text for _, texts in members for text in texts]
        members.sort(key=lambda member: member[0].get_content_type() != "text/plain")
        return next((texts for _, texts in members if texts), [])
    data = part.get_payload(decode=True)
    if kind not in ("text/plain", "text/html") or not isinstance(data, bytes) or not data:
        return []
    text, encoding = decode(data, part.get_content_charset() or charset, kind == "text/html")
    if kind == "text/html":
        text = extract_plain_text(HTMLTree.parse(text), main_content=False)
    return [(text, encoding)] if shows(text) else []


def _header(message: Message, name: str) -> str | None:
    """A header as text: encoded words are decoded (RFC 2047). None where they are damaged."""
    value = message.get(name)
    if value is None:
        return None
    try:
        decoded = email.header.decode_header(str(value))
    except HeaderParseError:
        return None
    pieces = [
        decode(piece, charset, False)[0] if isinstance(piece, bytes) else piece
        for piece, charset in decoded
    ]
    return " ".join("".join(pieces).split()) or None


def _date(value: str) -> str | None:
    try:
        return parsedate_to_datetime(value).isoformat()
    except (ValueError, OverflowError, TypeError):
        return None
