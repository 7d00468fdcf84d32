"""A model folder is scored suite by suite, and the last line says how many and how fast."""

import json
from pathlib import Path

import pytest

from benchmarks.evaluation import full
from llm_core.config import ConfigError
from tests.support.data.trained_run import make_run
from tests.support.data.written_suites import question, write_suite


def test_suites_that_fit_are_scored_and_one_that_does_not_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run")
    folder = run.train.path / "model"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes(run.tokenizer.file(name).read_bytes())
    monkeypatch.setattr(full, "find_spec", lambda _: None)  # as where lm-eval is not installed
    items = [question(str(n), f"The {n} of the", ["file", "king"], n % 2) for n in range(4)]
    suites = tmp_path / "suites"
    write_suite(suites, "fits", items)
    answer = [{"id": "0", "question": "The", "answer": " file" * 200}]
    write_suite(suites, "is_long", answer, kind="likelihood")
    out = tmp_path / "out"
    arguments = [str(folder), "--suites", str(suites), "--items", "3", "--out", str(out)]
    assert full.main(arguments) == 0
    told = capsys.readouterr()
    found = json.loads(told.out.splitlines()[-1])
    assert found.pop("items_per_s") > 0
    assert found == {
        "suites": 1,
        "items": 3,
        "agrees_with_lm_eval": None,
        "worst_difference": None,
    }
    assert "left out: suite is_long, item 0 has an answer of" in told.err
    assert json.loads((out / "suites.json").read_text())["fits"]["items"] == 3


def test_missing_records_are_one_line_before_anything_is_scored(tmp_path: Path) -> None:
    folder = write_suite(tmp_path, "gone", [], brought_by="make eval-data")
    (folder / "items.jsonl").unlink()
    model = Path("/nowhere")
    with pytest.raises(ConfigError, match=r"evaluate.folder .* is not a folder"):
        full.main([str(model)])
    with pytest.raises(ConfigError, match="`make eval-data` brings it"):
        full.score_all(full.Judged("", model, model, 8), {"gone": folder}, None, SCORING, tmp_path)


SCORING = full.EvaluateConfig()
