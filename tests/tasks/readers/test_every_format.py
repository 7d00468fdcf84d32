"""Every format gives the same records, and no file, however broken, crashes a reader or loses a
record in silence."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tasks.readers import Fault, Record, Skipped, codecs, read_streams
from tests.support.data.every_format import FILES, WANTED, faults, found
from tests.support.data.input_files import COLUMNS, as_tar, as_zip, read_bytes, read_items


@pytest.mark.parametrize("name", FILES)
def test_same_records_in_every_format(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    items = read_items(tmp_path / name)
    assert found(items) == WANTED
    assert faults(items) == []
    positions = [item.position for item in items if isinstance(item, Record)]
    assert "tar" in name or "zip" in name or "tgz" in name or positions == sorted(set(positions))


@pytest.mark.parametrize(
    "name", [n for n in FILES if n.startswith(("r.jsonl.", "r.csv.", "r.warc.wet.", "r.tar."))]
)
def test_identity_does_not_depend_on_compression(name: str, tmp_path: Path) -> None:
    plain = name.rpartition(".")[0]
    for one in (name, plain):
        (tmp_path / one).write_bytes(FILES[one])
    compressed, uncompressed = (
        [(i.position, i.line) for i in read_items(tmp_path / one) if isinstance(i, Record)]
        for one in (name, plain)
    )
    assert compressed == uncompressed


def test_members_without_a_reader_are_skipped_and_members_of_one_name_are_told_apart(
    tmp_path: Path,
) -> None:
    line = b'{"text": "a"}\n'
    members = {
        "a.txt": b"plain",
        "b.exe": b"MZ",
        ".hidden.txt": b"",
        "inner.zip": as_zip({"c.jsonl": line}),
        "d.jsonl": line,
    }
    for name, data in (("m.zip", as_zip(members)), ("m.tar", as_tar(members))):
        (tmp_path / name).write_bytes(data)
        items = read_items(tmp_path / name)
        assert [i.values["text"] for i in items if isinstance(i, Record)] == ["plain", "a", "a"]
        assert [i.kind for i in items if isinstance(i, Skipped)] == ["archive_member"] * 2
    twice = as_tar({"d.jsonl": line})[:1024] * 2 + b"\0" * 1024
    names = [
        name for name, items in read_streams(io.BytesIO(twice), "twice.tar", COLUMNS) if list(items)
    ]
    assert names == ["twice.tar!d.jsonl", "twice.tar!d.jsonl#2"]


def test_archives_in_archives_are_read_a_few_levels_deep() -> None:
    data = b'{"text": "a"}\n'
    name = "d.jsonl"
    for depth in range(1, 6):
        as_archive, ending = [(as_zip, "zip"), (as_tar, "tar")][depth % 2]
        data, name = as_archive({name: data}), f"{depth}.{ending}"
        streams = [(n, list(i)) for n, i in read_streams(io.BytesIO(data), name, COLUMNS)]
        ((inner, (item,)),) = streams
        if depth <= 4:
            assert isinstance(item, Record) and inner.count("!") == depth
        else:
            assert isinstance(item, Fault) and item.error.startswith("over the limit: an archive")


def test_archives_in_archives_expand_no_more_than_one_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "FREE_BYTES", 1 << 20)
    lines = b'{"text": "a"}\n' * 200_000
    inner = as_zip({"d.jsonl": lines})
    assert len(read_bytes("a.zip", inner)) == 200_000
    twice = as_zip({"one.zip": as_zip({f"{i}.jsonl": lines for i in range(9)})})
    items = read_bytes("a.zip", twice)
    assert any("archives in archives expand" in f.error for f in faults(items))
    assert len(items) < 1_800_000


def test_members_are_named_without_the_folder_that_an_archive_was_made_in() -> None:
    line = b'{"text": "a"}\n'
    members = {
        "./d.jsonl": line,
        "/e.jsonl": line,
        "../up.jsonl": line,
        "./.hidden/f.jsonl": line,
        "./sub//g.jsonl": line,
    }
    for name, data in (("m.zip", as_zip(members)), ("m.tar", as_tar(members))):
        streams = [
            (inner, list(items)) for inner, items in read_streams(io.BytesIO(data), name, COLUMNS)
        ]
        read = [inner for inner, items in streams if isinstance(items[0], Record)]
        assert read == [
            f"{name}!{member}" for member in ("d.jsonl", "e.jsonl", "../up.jsonl", "sub/g.jsonl")
        ]
        assert [items for _, items in streams if not isinstance(items[0], Record)] == [
            [Skipped("archive_member")]
        ]


def test_a_quote_in_tab_separated_values_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(
        b'id\ttext\n1\t"Hello, he said\n2\tsecond "x"\n3\t"third"\n4\tone\ttoo many\n5\t\n'
    )
    items = read_items(tmp_path / "a.tsv")
    texts = [i.values["text"] for i in items if isinstance(i, Record)]
    assert texts == ['"Hello, he said', 'second "x"', '"third"', ""]
    assert [fault.line for fault in faults(items)] == [5]
