"""A suite is read whole and checked, or refused in one line that names file, record and rule."""

from pathlib import Path
from typing import Any

import pytest

from llm_core.config import ConfigError
from tasks.contamination.suites import read_items
from tasks.evaluation.config import EvaluateStageConfig, SuitesConfig
from tasks.evaluation.suite_results import CHOICE_SCORES
from tasks.evaluation.suites import CHOICE_METRICS, load_suite, suite_folders
from tests.support.data.written_suites import question
from tests.tasks.evaluation.conftest import Write

ROOT = Path(__file__).parents[3]
ITEMS = [question("a", "1 + 1 =", ["2", "3"], 0), question("b", "2 + 2 =", ["5", "4"], 1)]


def test_shipped_suites_are_small_and_sound() -> None:
    suites = SuitesConfig((ROOT / "data/suites",)).load()
    assert [suite.name for suite in suites] == sorted(suite.name for suite in suites)
    assert len(suites) == 7 and all(0 < len(suite.items) <= 200 for suite in suites)
    for suite in suites:
        labels = [item.label for item in suite.items if item.label is not None]
        most = max((labels.count(label) for label in set(labels)), default=0)
        assert most <= 0.65 * len(suite.items), f"{suite.name} gives itself away by its places"


def test_a_suite_of_a_user_takes_a_prompt_of_several_columns(write_suite: Write) -> None:
    records = [{"q": "Why?", "hint": "{x} stays as it is", "is": 1, "of": ["no", "yes"], "n": 7}]
    columns = {"question": "q", "answer": "is", "choices": "of", "id": "n", "cluster": "hint"}
    folder = write_suite("mine", records, prompt="{q} ({hint})", columns=columns)
    (item,) = load_suite("mine", folder).items
    assert (item.id, item.question) == ("7", "Why? ({x} stays as it is)")
    assert (item.choices, item.label, item.cluster) == (("no", "yes"), 1, "{x} stays as it is")


def test_every_metric_of_choices_is_measured() -> None:
    assert tuple(CHOICE_SCORES) == CHOICE_METRICS


def test_digest_follows_every_file(write_suite: Write) -> None:
    digests = {load_suite("x", write_suite("x", ITEMS)).digest}
    digests.add(load_suite("x", write_suite("y", ITEMS, version=2)).digest)
    digests.add(load_suite("x", write_suite("z", ITEMS[:1])).digest)
    assert len(digests) == 3


def changed(**values: Any) -> list[dict[str, Any]]:
    return [ITEMS[0], {**ITEMS[1], **values}]


@pytest.mark.parametrize(
    ("records", "lines", "said"),
    [
        ([ITEMS[0], {"id": "b", "question": "?"}], {}, r"record 2 has no column answer"),
        (changed(id="a"), {}, r"record 2: id \(a\) is that of an earlier record"),
        (changed(answer=2), {}, r"answer \(2\) must be the number of a choice, from 0 to 1"),
        (changed(answer=True), {}, r"answer \(True\) must be the number of a choice"),
        (changed(choices=["4"]), {}, "choices must be a list of two texts or more"),
        (changed(choices=["4", " "]), {}, "choices must be a list of two texts or more"),
        (ITEMS, {"file": "other.jsonl"}, "other.jsonl.* is not a file"),
        (ITEMS, {"sha256": "0" * 64}, "sha256 of items.jsonl is .*, not 000"),
        (ITEMS, {"prompt": "{question} {topic}"}, "has no column topic"),
        (ITEMS, {"shot": 2}, "shot is not a known setting; did you mean shots"),
        (ITEMS, {"licence": None}, "licence has no value"),
        (ITEMS, {"shots": 2}, r"shots \(2\) need more than 2 items"),
        (ITEMS, {"kind": "generation"}, "answer must be a text or a list of texts"),
        (ITEMS, {"kind": "likelihood"}, "answer must be a text"),
        (changed(of=["a"]), {"columns": {"stems": "of"}}, "no column of"),
        (
            [{**item, "of": ["a"]} for item in ITEMS],
            {"columns": {"stems": "of"}},
            "record 1: of must be a list with a text for each choice",
        ),
        (ITEMS, {"kind": "generation", "metrics": ["blue"]}, r"\(blue\).*did you mean bleu"),
        (ITEMS, {"headline": "acc_byte"}, r"headline \(acc_byte\) .* did you mean acc_bytes"),
        ([], {}, "has no item"),
    ],
)
def test_an_unfit_suite_is_refused_in_one_line(
    write_suite: Write, records: list[dict[str, Any]], lines: dict[str, Any], said: str
) -> None:
    folder = write_suite("x", records, **lines)
    with pytest.raises(ConfigError, match=said) as refused:
        load_suite("x", folder)
    assert "\n" not in str(refused.value) and str(folder) in str(refused.value)


def test_what_is_not_yaml_or_not_a_suite_is_named(write_suite: Write, tmp_path: Path) -> None:
    folder = write_suite("x", ITEMS)
    (folder / "suite.yaml").write_text("version: [1")
    with pytest.raises(ConfigError, match="is not YAML") as refused:
        load_suite("x", folder)
    assert "\n" not in str(refused.value)
    with pytest.raises(ConfigError, match="has no suite.yaml"):
        suite_folders((tmp_path / "nowhere",))
    (tmp_path / "other").mkdir()
    folder.rename(tmp_path / "other/x")
    with pytest.raises(ConfigError, match="two suites x"):
        suite_folders((tmp_path / "other", write_suite("x", ITEMS)))


def test_contamination_looks_for_the_questions_and_answers_that_are_scored(
    write_suite: Write,
) -> None:
    config = SuitesConfig((write_suite("x", ITEMS).parent,))
    found = list(read_items("x", config.searched()["x"]))
    assert [(item.name, item.question, item.answers) for item in found] == [
        ("a", "1 + 1 =", ("2",)),
        ("b", "2 + 2 =", ("4",)),
    ]
    files = EvaluateStageConfig(suites=config).input_files()
    assert list(files) == ["x/suite.yaml", "x/items.jsonl"]


def test_a_suite_is_named_after_its_folder_however_it_is_written(
    write_suite: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_suite("mine", [question("0", "Which?", ["a", "b"], 0)])
    monkeypatch.chdir(folder)
    for written in (".", "..", "../mine"):
        assert suite_folders((Path(written),)) == {"mine": folder}
