"""Text is repaired once, and values that cannot be read are faults of their record."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tasks.ingest.documentrows import repair_text
from tests.support.data.ingested import quarantine, texts
from tests.support.data.make_artifacts import ingest_files, read_documents


def test_repairs_are_made_and_counted_per_document(tmp_path) -> None:
    (tmp_path / "a.jsonl").write_bytes(
        b'\xef\xbb\xbf{"text": "a"}\n{"text": "\\ufeffb\\u0000\\u0000c"}\n'
        b'{"text": "d\\r\\n\\r\\ne\\r"}\n{"text": "f\\ud83dg", "m": "\\udc00"}\n'
    )
    artifact = ingest_files(tmp_path, "out", [tmp_path / "a.jsonl"])
    assert texts(artifact) == ["a", "bc", "d\n\ne\r", "f\ufffdg"]
    assert artifact.counters["repaired"] == {
        "NUL": 1,
        "BOM": 2,
        "CRLF": 1,
        "LONE_SURROGATE": 1,
        "RECODED": 0,
    }
    assert json.loads(read_documents(artifact)[3]["metadata"]) == {"m": "\ufffd"}


def nested(levels: int, end: str = "") -> str:
    return "[" * levels + end + "]" * levels


def at_depth(calls: int, function: Callable[[], Any]) -> Any:
    """The result of a call from so many calls deep."""
    return function() if calls == 0 else at_depth(calls - 1, function)


def test_record_nested_too_deeply_is_the_same_fault_from_any_depth_of_calls(tmp_path) -> None:
    lines = [
        f'{{"text": "t", "{column}": {nested(253, end)}}}'
        for column in ("id", "kind", "m")
        for end in ("", "NaN")
    ]
    deep = [
        line.replace("[", "[" * n, 1).replace("]", "]" * n, 1)
        for line in lines
        for n in (2, 650, 740, 770)
    ]
    brackets = [
        json.dumps({"text": "t", "m": '"\\' + "[" * 2000}),
        '{"text": "t", "m": NaN, "n": "' + '{"'.replace('"', '\\"') * 900 + '"}',
    ]
    (tmp_path / "a.jsonl").write_text(
        "\n".join([*lines, *brackets, *deep, '{"m": ' + nested(3000, "x") + "}"])
    )
    made = [
        at_depth(
            calls,
            lambda n=calls: ingest_files(
                tmp_path, f"out{n}", [tmp_path / "a.jsonl"], exclude={"kind": ("bad",)}
            ),
        )
        for calls in (0, 250)
    ]
    assert [a.counters["kept"] for a in made] == [len(lines) + len(brackets)] * 2
    assert quarantine(made[0]) == quarantine(made[1])
    assert {q["error"] for q in quarantine(made[0])} == {"nested too deeply: more than 254 levels"}


def test_large_integers_keep_their_digits_wherever_they_are(tmp_path) -> None:
    number = "12345678901234567890123"
    values = [number, f"[{number}]", f'{{"a":[1,{{"b":{number}}}]}}']
    (tmp_path / "a.jsonl").write_text(
        "".join(f'{{"text": "t", "m": {value}}}\n' for value in values)
    )
    rows = read_documents(ingest_files(tmp_path, "out", [tmp_path / "a.jsonl"]))
    assert [row["metadata"] for row in rows] == [f'{{"m":{value}}}' for value in values]


@given(st.text(alphabet=st.sampled_from("a\0\r\n\ufeff"), max_size=12))
def test_repairing_twice_changes_nothing(text) -> None:
    once, _ = repair_text(text)
    assert repair_text(once) == (once, ())
    assert not {"\0", "\ufeff"} & set(once[:1]) and "\r\n" not in once
