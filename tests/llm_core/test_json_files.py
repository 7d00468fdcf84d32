"""JSON of others is read within limits, or is one phrase."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_core import json_files
from llm_core.config import ConfigError
from llm_core.json_files import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_DIGITS,
    UnreadableJson,
    dump_json,
    is_inside,
    is_plain_name,
    parse_json,
    read_json,
)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=30,
)


@given(VALUES, st.booleans())
def test_ordinary_json_is_read_as_it_is(value: object, ascii_only: bool) -> None:
    assert parse_json(json.dumps(value, ensure_ascii=ascii_only)) == value
    assert parse_json(json.dumps(value, ensure_ascii=ascii_only, indent=1).encode()) == value


@given(st.binary() | st.text(alphabet='{}[]",:\\0123e-x'))
def test_whatever_is_not_json_is_one_error(data: bytes | str) -> None:
    try:
        parse_json(data)
    except UnreadableJson:
        return
    json.loads(data)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000 + "]" * 100_000, "deeper than 64 levels"),
        ('{"a":' * 100_000, "deeper than 64 levels"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "deeper than 64 levels"),
        ("9" * 5000, "more than 100 digits"),
        ('{"vocab_size": 1' + "0" * 400 + "}", "more than 100 digits"),
        ("0." + "1" * 200, "more than 100 digits"),
        ("[", "Expecting"),
        ("", "Expecting"),
        ('"\\' + '\\"' * 10, "Extra data"),
    ],
)
def test_depth_and_digits_are_bounded(text: str, words: str) -> None:
    with pytest.raises(UnreadableJson, match=words):
        parse_json(text)


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_ordinary_json_is_written_so_that_it_is_read(
    value: object, ascii_only: bool, indent: int | None
) -> None:
    assert parse_json(dump_json("a.json", value, ensure_ascii=ascii_only, indent=indent)) == value


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"depth": nested(MAX_DEPTH)}, "nested deeper than 64 levels"),
        ({"digits": 10**MAX_DIGITS}, "a number of more than 100 digits"),
        ({"bytes": "x" * 90}, "more than 100 bytes"),
        ({"bytes": "\u20ac" * 30}, "more than 100 bytes"),
        ({"bytes": "\x9b" * 15}, "more than 100 bytes"),
    ],
)
def test_what_would_not_be_read_again_is_not_written(
    value: object, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_files, "MAX_BYTES", 100 if "bytes" in why else MAX_BYTES)
    with pytest.raises(ConfigError) as caught:
        dump_json("a.json", value, ensure_ascii=False)
    said = f"a.json would be JSON that is not read again ({why}); shorten what it records"
    assert str(caught.value) == said


def test_what_is_written_may_be_as_large_as_what_is_read(tmp_path: Path) -> None:
    value = [nested(MAX_DEPTH - 1), 10 ** (MAX_DIGITS - 1)]
    file = tmp_path / "a.json"
    file.write_text(dump_json(file.name, value))
    assert read_json(file) == value


def test_what_stands_in_strings_is_not_counted() -> None:
    text = json.dumps(["[" * 1000, "9" * 1000, '\\"[[[' * 1000, {"{" * 500: 1}])
    assert parse_json(text) == json.loads(text)
    assert parse_json("[" * MAX_DEPTH + "1" * MAX_DIGITS + "]" * MAX_DEPTH)


def test_strings_that_do_not_end_take_no_longer_than_others() -> None:
    for text in ('"' + '\\"' * 2_000_000, "[" + '"\\' * 2_000_000, '"' + "a" * 2_000_000):
        with pytest.raises(UnreadableJson):
            parse_json(text)


def test_a_file_that_is_too_large_or_not_utf8_is_one_error(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text("[1, 2, 3]")
    assert read_json(file, 9) == [1, 2, 3]
    with pytest.raises(UnreadableJson, match="more than 8 bytes"):
        read_json(file, 8)
    file.write_bytes(b'["\xff"]')
    with pytest.raises(UnreadableJson, match="utf-8"):
        read_json(file)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "b.json")


@pytest.mark.parametrize(
    ("path", "inside", "plain"),
    [
        ("a.arrow", True, True),
        ("...", True, True),
        ("a/b.arrow", True, False),
        *[
            (path, False, False)
            for path in (
                "",
                ".",
                "..",
                "../a",
                "a/../../b",
                "/etc/passwd",
                "a/..",
                "a\0b",
                3,
                None,
                [],
            )
        ],
    ],
)
def test_names_in_records_stay_in_their_folder(path: object, inside: bool, plain: bool) -> None:
    assert (is_inside(path), is_plain_name(path)) == (inside, plain)
