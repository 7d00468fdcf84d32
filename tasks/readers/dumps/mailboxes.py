"""Reads mailboxes (mbox, RFC 4155): every mail is a record, whose text is extracted later.

A mail begins with a line `From …` after a blank line; a line in it that begins so is written
`>From …` (mboxrd). Records are named by their Message-ID, else by file and line. A mail over the
limit of a record is a fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

from tasks.readers.bytestreams import DamagedStream
from tasks.readers.items import Columns, Fault, Item, Record, damaged
from tasks.readers.jsonlines import LongLine, split_lines
from tasks.readers.pages import Encoded
from tasks.readers.recordlimits import Limits

BORDER = b"From "
QUOTED_BORDER = re.compile(rb"^>(>*From )", re.MULTILINE)
MESSAGE_ID = re.compile(rb"^message-id:\s*<?([^<>\s]{1,500})", re.MULTILINE | re.IGNORECASE)


def read_mailbox(
    stream: BinaryIO, compression: str, name: str, columns: Columns, limits: Limits
) -> Iterator[Item]:
    """Records at the byte offset of their `From` line."""
    mail: list[bytes] = []
    first = begin = num_bytes = 0
    is_border_next = True
    for number, offset, line in split_lines(stream, compression, limits, b"\0"):
        if isinstance(line, DamagedStream):
            at = (first, begin) if mail else (number, offset)
            yield Fault(*at, damaged(line), True, line.stopped_at)
            return
        if is_border_next and isinstance(line, bytes) and line.startswith(BORDER):
            if mail:
                yield _record(mail, first, begin, num_bytes, name, columns, limits)
            mail, first, begin, num_bytes = [], number, offset, 0
        elif not mail and (isinstance(line, LongLine) or line.strip()):
            yield Fault(number, offset, "another format: not a mailbox, no `From ` line", True)
            return
        if first:
            num_bytes += len(line) + 1 if isinstance(line, bytes) else line.num_bytes
            # Of a mail that is over the limit, nothing more is kept.
            if isinstance(line, bytes) and num_bytes <= limits.record_bytes:
                mail.append(line)
        is_border_next = not isinstance(line, LongLine) and not line.strip()
    if mail:
        yield _record(mail, first, begin, num_bytes, name, columns, limits)


def _record(
    mail: list[bytes],
    first: int,
    begin: int,
    num_bytes: int,
    name: str,
    columns: Columns,
    limits: Limits,
) -> Item:
    if num_bytes > limits.record_bytes:
        return Fault(first, begin, limits.over("a mail"))
    data = QUOTED_BORDER.sub(rb"\1", b"\n".join(mail[1:]))
    header = re.split(rb"\r?\n\r?\n", data, maxsplit=1)[0]
    found = MESSAGE_ID.search(header)
    own = found[1].decode("utf-8", "replace") if found else f"{name}:{first}"
    return Record(begin, first, begin, columns.values(Encoded(data, None, "mail"), id=own))
