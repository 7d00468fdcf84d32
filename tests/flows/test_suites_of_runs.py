"""The suites of a run are those that contamination looks for and evaluate scores."""

from pathlib import Path

import pytest

from flows.compose import compose
from llm_core.config import ConfigError
from tasks.evaluation import config as evaluation
from tests.flows.conftest import RunCli
from tests.support.data.written_suites import question, write_suite

ITEMS = [question("a", "1 + 1 =", ["2", "3"], 0)]


def test_one_group_feeds_contamination_and_evaluate(tmp_path: Path) -> None:
    folder = write_suite(tmp_path, "mine", ITEMS)
    own = f"contamination.suites.other.path={folder / 'items.jsonl'}"
    stages = compose([f"suites.folders=[{folder}]", own]).stages
    assert set(stages["contamination"].suites) == {"mine", "other"}
    assert [suite.name for suite in stages["evaluate"].suites.load()] == ["mine"]
    renamed = f"contamination.suites.mine.path={folder}/other.jsonl"
    stages = compose([f"suites.folders=[{folder}]", renamed]).stages
    assert stages["contamination"].suites["mine"].path.name == "other.jsonl"


def test_the_demo_has_the_small_suites_and_other_runs_have_none() -> None:
    assert len(compose(["run=demo"]).stages["contamination"].suites) == 7
    assert compose(["run=demo", "suites=none"]).stages["contamination"].suites == {}
    assert compose([]).stages["evaluate"].input_files() == {}


def test_an_unfit_suite_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    folder = write_suite(tmp_path, "x", [{**ITEMS[0], "answer": 2}])
    stages = compose([f"suites.folders=[{folder}]"]).stages
    with pytest.raises(ConfigError, match="from 0 to 1"):
        stages["evaluate"].input_files()


def test_a_backend_that_is_not_installed_is_an_error_before_anything_runs(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "find_spec", lambda _: None)
    asked = ["run", "run=demo", "evaluate.backend=lm_eval"]
    compose(asked[1:])  # another machine may have it
    result = run_cli(*asked)
    assert result["code"] == 2 and "needs the package lm-eval; install textmill" in result["err"]
    assert "ingest" not in result["err"] + result["out"]
