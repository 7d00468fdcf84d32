"""Damage in a dump of a wiki costs its page, and a mailbox is cut where its mails begin."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.readers import Fault, Item, Record, Skipped
from tasks.readers.recordlimits import Limits
from tests.support.data.document_files import wiki
from tests.support.data.input_files import COMPRESS, read_bytes

NUM_PAGES = 6
PAGES = [("", f"Text number {i} & <b>more</b> größere 数据") for i in range(NUM_PAGES)]
DUMP = wiki(PAGES)


def texts(items: list[Item]) -> list[str]:
    return [item.values["text"].data.decode() for item in items if isinstance(item, Record)]


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2"])
def test_every_page_is_a_record_at_its_place(suffix: str) -> None:
    items = read_bytes(f"w.xml{suffix}", COMPRESS[suffix](DUMP))
    assert texts(items) == [text for _, text in PAGES]
    positions = [item.position for item in items if isinstance(item, Record)]
    assert positions == [i for i in range(len(DUMP)) if DUMP.startswith(b"<page>", i)]


@given(st.integers(0, len(DUMP) - 1), st.integers(0, 7))
def test_a_flipped_bit_costs_one_page_at_most(place: int, bit: int) -> None:
    damaged = bytearray(DUMP)
    damaged[place] ^= 1 << bit
    items = read_bytes("w.xml", bytes(damaged))
    wanted = {text for _, text in PAGES}
    assert len(items) >= NUM_PAGES and len(wanted & set(texts(items))) >= NUM_PAGES - 1


@given(st.integers(0, len(DUMP)))
@example(len(DUMP) - len(">\n"))
def test_a_dump_that_is_cut_off_says_so(length: int) -> None:
    items = read_bytes("w.xml", DUMP[:length])
    num_whole = DUMP[:length].count(b"</page>")
    assert texts(items) == [text for _, text in PAGES[:num_whole]]
    is_cut = 0 < length < DUMP.index(b"</mediawiki>") + len("</mediawiki>")
    assert len(items) > num_whole if is_cut else len(items) == num_whole


@given(
    st.lists(st.sampled_from([b"<page>", b"</page>", b"<mediawiki ", b"x", b" ", b"<revision>"]))
)
@settings(max_examples=200)
def test_pieces_of_a_dump_in_any_order_are_survived(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    items = read_bytes("w.xml", data)
    assert len(items) >= data.count(b"<page>") or data.count(b"<mediawiki ") == 0


def test_other_xml_is_skipped_and_a_page_over_the_limit_is_a_fault() -> None:
    feed = b"<?xml version='1.0'?>\n<rss><item/></rss>"
    assert read_bytes("a.xml", feed) == [Skipped("other_xml")]
    pages = [("", "one"), ("", "x" * 200_000), ("", "three")]
    items = read_bytes("w.xml", wiki(pages), Limits(100_000))
    assert texts(items) == ["one", "three"]
    assert [i.error for i in items if isinstance(i, Fault)] == [Limits(100_000).over("a page")]
    entities = DUMP.replace(b"Text number 3", b"Text &number; 3")
    faults = [i for i in read_bytes("w.xml", entities) if isinstance(i, Fault)]
    assert len(faults) == 1 and faults[0].error.startswith("broken XML: undefined entity")


def mailbox(bodies: list[bytes]) -> bytes:
    return b"".join(b"From a@b Sun Nov 29 2026\nSubject: s\n\n%s\n\n" % body for body in bodies)


def test_a_mail_is_cut_at_from_lines_behind_blank_ones() -> None:
    bodies = [b"one\nFrom here\n>From there\n>>From x", b"", b"two\r\n"]
    items = read_bytes("m.mbox", mailbox(bodies))
    assert [text.partition("\n\n")[2].strip("\n") for text in texts(items)] == [
        "one\nFrom here\nFrom there\n>From x",
        "",
        "two\r",
    ]
    assert [i.values["id"] for i in items if isinstance(i, Record)] == [
        f"m.mbox:{line}" for line in (1, 9, 14)
    ]


def test_a_mail_over_the_limit_is_a_fault_and_the_next_is_read() -> None:
    data = mailbox([b"one", b"x\n" * 60_000, b"y" * 120_000, b"two"])
    items = read_bytes("m.mbox", data, Limits(100_000))
    assert len(texts(items)) == 2
    assert [i.error for i in items if isinstance(i, Fault)] == [Limits(100_000).over("a mail")] * 2
    (fault,) = read_bytes("m.mbox", b"no mailbox\n")
    assert isinstance(fault, Fault) and "not a mailbox" in fault.error
    assert read_bytes("m.mbox", b"\n\n") == []


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_bytes_of_a_mailbox_are_survived(before: bytes, after: bytes) -> None:
    for data in (before, b"From x\n" + before + b"\n\nFrom y\n" + after):
        items = read_bytes("m.mbox", data)
        assert items or not data.strip()
