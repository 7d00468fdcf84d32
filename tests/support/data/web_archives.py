"""Web archives of small pages, and what must be read of them around one damaged record."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tasks.readers import Fault, Record
from tests.support.data.input_files import COMPRESS, http_response, read_items, warc_record

EMBEDDED = (
    b"<pre>\r\n\r\nWARC/1.0\r\nWARC-Type: response\r\nContent-Length:"
    b" 7\r\n\r\nexample\r\n\r\n</pre>"
)
FUZZED = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
PAGES = st.tuples(st.binary(max_size=300), st.booleans())
FRAMES: Mapping[str, Callable[[bytes], bytes]] = {
    suffix: COMPRESS[suffix] for suffix in ("", ".gz", ".zst", ".bz2", ".xz")
}


def page(number: int, noise: bytes = b"", embeds: bool = False) -> bytes:
    """A record whose text may hold what looks like a record."""
    body = (
        b"<p>page %d " % number + noise.hex().encode() + EMBEDDED * embeds + b" is at its end</p>"
    )
    block = http_response(body, "Content-Type: text/html")
    named = {
        "WARC_Record_ID": f"<urn:uuid:{number}>",
        "WARC_Target_URI": f"https://x.example/{number}",
    }
    return warc_record(
        "response", block, Content_Type="application/http; msgtype=response", **named
    )


def with_length(record: bytes, say: Callable[[int], object]) -> bytes:
    """The record with another Content-Length of its own."""
    return re.sub(
        rb"Content-Length: (\d+)",
        lambda m: b"Content-Length: %s" % str(say(int(m[1]))).encode(),
        record,
        count=1,
    )


def check_others(path: Path, records: list[bytes], hit: int, offsets: list[int]) -> Fault:
    """Every record but one is read as from a sound file, and that one is the only fault; gives the
    fault."""
    (path.parent / "sound.warc").write_bytes(b"".join(records))
    wanted = [
        item.values for item in read_items(path.parent / "sound.warc") if isinstance(item, Record)
    ]
    items = read_items(path)
    assert len(wanted) == len(records) and len(items) == len(records)
    assert [item.values for item in items if isinstance(item, Record)] == wanted[:hit] + wanted[
        hit + 1 :
    ]
    assert [item.position for item in items if isinstance(item, Record)] == offsets[:hit] + offsets[
        hit + 1 :
    ]
    (fault,) = [item for item in items if isinstance(item, Fault)]
    assert (fault.line, fault.byte_offset) == (hit + 1, offsets[hit])
    return fault


def offsets_of(records: list[bytes]) -> list[int]:
    return [sum(map(len, records[:i])) for i in range(len(records))]
