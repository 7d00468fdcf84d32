"""The report of a night says what changed since the night before, and is rebuilt only then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.compose import compose
from flows.refresh.changes import report_config
from flows.run import decide
from tasks.report.stage import REPORT_FILE, write_report
from tests.support.data import report_artifacts
from tests.support.nights import TINY, Nights
from tests.support.report_page import Page


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    nights = Nights(tmp_path, [*TINY, "refresh.series=nightly"])
    nights.write("a", 1, num_documents=40)
    return nights


def planned_report(nights: Nights, *more: str) -> Any:
    """The node of the report of the next run."""
    _, plan = decide(compose(nights.overrides(*more)), "report")
    return plan["report"].node


def test_the_report_of_a_night_shows_what_changed_since_the_last_one_with_other_documents(
    nights: Nights, tmp_path: Path
) -> None:
    first = nights.refresh()
    assert "before" not in planned_report(nights).config, "the same documents"
    nights.write("b", 7, num_documents=12)
    second = nights.refresh()
    node = planned_report(nights)
    assert node.config["before"] == {
        stage: first.artifacts[stage].key for stage in node.config["before"]
    }
    assert node.key == (nights.refresh(), planned_report(nights))[1].key, "nothing is new"
    assert "before" not in planned_report(nights, "refresh.series=null").config

    others = report_artifacts.realistic(tmp_path / "others")
    artifacts: Any = [second.artifacts.get(other.stage, other) for other in others]
    config = report_config(compose(nights.overrides()), node.config["before"])
    (tmp_path / "page").mkdir()
    write_report(*artifacts, tmp_path / "page", config)
    page = Page((tmp_path / "page" / REPORT_FILE).read_text("utf-8"))
    assert "1 new, 0 changed, 0 gone; documents: 12 added, 0 gone" in page.text
    assert not page.faults and "b.jsonl" in page.text

    first.artifacts["shards"].path.rename(tmp_path / "gone")
    assert "before" not in planned_report(nights).config, "a night whose data is gone"
    write_report(*artifacts, tmp_path / "page", config)
    page = Page((tmp_path / "page" / REPORT_FILE).read_text("utf-8"))
    assert "documents: 12 added" not in page.text
