"""Text in any encoding is read as UTF-8, and what has no meaning in it costs its record."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.readers import Fault, Item, Layout, Record
from tasks.readers.encodings import is_encoding
from tests.support.data.encoded_texts import TEXTS
from tests.support.data.input_files import COMPRESS, read_bytes

AUTO = Layout(encoding="auto")


def texts(items: list[Item]) -> list[str]:
    return [item.values["text"] for item in items if isinstance(item, Record)]


def errors(items: list[Item]) -> list[str]:
    return [item.error for item in items if isinstance(item, Fault)]


def lines(text: str) -> str:
    records = [{"id": str(i), "text": text[i:]} for i in range(3)]
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("encoding", TEXTS)
def test_a_known_encoding_is_read_and_an_unknown_one_found(encoding: str, suffix: str) -> None:
    text = TEXTS[encoding]
    files = {
        "a.txt": (text * 3, [text * 3]),
        "a.jsonl": (lines(text), [text[i:] for i in range(3)]),
        "a.csv": (f'id,text\r\n1,"{text}"\r\n2,x\r\n', [text, "x"]),
    }
    for name, (content, wanted) in files.items():
        data = COMPRESS[suffix](content.encode(encoding))
        for layout in (AUTO, Layout(encoding=encoding)):
            items = read_bytes(name + suffix, data, layout=layout)
            assert (texts(items), errors(items)) == (wanted, []), (name, layout)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_a_wide_text_with_a_mark_is_read_without_a_setting(encoding: str) -> None:
    items = read_bytes("a.csv", "id,text\r\n1,größer\r\n".encode(encoding))
    assert texts(items) == ["größer"]
    assert isinstance(items[0], Record) and items[0].repaired == ("RECODED",)


def test_lines_of_two_encodings_are_each_read_in_their_own() -> None:
    text = TEXTS["cp1252"]
    of_both = [lines(text).encode(name) for name in ("utf-8", "cp1252", "utf-8")]
    for mixed in (b"".join(of_both), of_both[1] * 3 + of_both[0]):
        items = read_bytes("a.jsonl", mixed, layout=AUTO)
        assert {read[-20:] for read in texts(items)} == {text[-20:]} and not errors(items)
    repaired = [item.repaired for item in read_bytes("a.jsonl", b"".join(of_both), layout=AUTO)]  # type: ignore[union-attr]
    assert repaired == [()] * 3 + [("RECODED",)] * 3 + [()] * 3


def test_a_line_without_a_meaning_costs_itself() -> None:
    record = lines(TEXTS["gb18030"]).encode("gb18030")
    bad = b'{"id": "9", "text": "\x81\x20"}\n'
    for layout in (AUTO, Layout(encoding="gb18030")):
        items = read_bytes("a.jsonl", record + bad + record, layout=layout)
        assert len(texts(items)) == 6
        assert errors(items) == ["undecodable: bytes without a meaning in gb18030"]
    plain = errors(read_bytes("a.jsonl", record))
    assert len(plain) == 3 and all(error.startswith("invalid UTF-8: byte") for error in plain)


@pytest.mark.parametrize("name", ["utf-7", "cp037", "idna", "rot13", "no-such"])
def test_an_encoding_that_writes_ascii_otherwise_is_none_of_files(name: str) -> None:
    assert not is_encoding(name)
    assert all(is_encoding(other) for other in (*TEXTS, "utf-16", "utf-32-be", "shift_jis", "hz"))


def test_bytes_that_are_no_text_are_not_guessed_at() -> None:
    data = b"some words\n" + "größer\n".encode("cp1252") * 9 + bytes(range(128))
    (fault,) = read_bytes("a.txt", data, layout=AUTO)
    assert isinstance(fault, Fault) and fault.error.startswith("invalid UTF-8")


@given(st.binary(max_size=300), st.sampled_from(["auto", *TEXTS]))
def test_any_bytes_are_records_or_faults(data: bytes, encoding: str) -> None:
    for name in ("a.txt", "a.jsonl", "a.csv", "a.txt.gz"):
        for unit in ("file", "line", "paragraph"):
            layout = Layout(encoding=encoding, unit=unit)
            for text in texts(
                [i for i in read_bytes(name, data, layout=layout) if name == "a.txt"]
            ):
                text.encode()


def test_a_file_is_one_document_or_one_a_line_or_paragraph() -> None:
    data = "\ufeffone\nof two\n\n \nthree\r\n\r\n\nfour".encode()
    for unit, wanted in {
        "file": [("a.txt", 0, data.decode("utf-8-sig"))],
        "line": [
            ("a.txt:1", 0, "one"),
            ("a.txt:2", 7, "of two"),
            ("a.txt:5", 17, "three\r"),
            ("a.txt:8", 27, "four"),
        ],
        "paragraph": [
            ("a.txt:1", 0, "one\nof two"),
            ("a.txt:5", 17, "three\r"),
            ("a.txt:8", 27, "four"),
        ],
    }.items():
        items = read_bytes("a.txt", data, layout=Layout(unit=unit))
        found = [
            (i.values["id"], i.position, i.values["text"]) for i in items if isinstance(i, Record)
        ]
        assert found == wanted and len(items) == len(wanted)
