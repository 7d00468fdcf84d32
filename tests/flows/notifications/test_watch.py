"""People are told of what went wrong in the night, once, and of nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.compose import compose
from flows.notifications.watch import watched
from flows.records import read_records, write_record
from flows.run import Run
from llm_core.config import ConfigError
from tasks.ingest.damagedfiles import TooManyFaults
from tasks.runtime.stage import StageFailure
from tasks.runtime.store import Store
from tests.support.nights import Nights
from tests.support.receivers import web_receiver


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    nights = Nights(tmp_path)
    nights.write("a", 0, num_documents=60)
    return nights


@pytest.fixture
def posted(nights: Nights) -> Iterator[list[dict[str, Any]]]:
    with web_receiver() as (address, got):
        nights.settings = [*nights.settings, f"notify.webhook={address}"]
        yield got


def died(run: Run) -> None:
    """Turn the record of a run into that of one whose process was killed."""
    run.record.outcome, run.record.finished_at = "running", None
    run.record.process |= {"pid": 2**22 - 1, "started": 1.0}
    write_record(run.store, run.record)


def test_a_night_that_goes_well_is_told_to_nobody(
    nights: Nights, posted: list[dict[str, Any]]
) -> None:
    nights.refresh()
    nights.write("b", 1, num_documents=60)
    nights.refresh()
    assert posted == []


def test_a_failure_is_told_with_its_cause_whether_there_is_a_plan_or_not(
    nights: Nights, posted: list[dict[str, Any]]
) -> None:
    with pytest.raises(StageFailure):
        nights.refresh("source.text_column=none", "source.max_bad_frac=1.0")
    with pytest.raises(ConfigError):
        nights.refresh("refresh.tokenizer=0123456789abcdef")
    first, second = posted
    assert first["event"] == "failed" and "none of 60 records is left" in first["cause"]
    assert json.loads(Path(first["links"]["record"]).read_text())["outcome"] == "failed"
    assert second["run"] is None and "0123456789abcdef) is missing" in second["cause"]


def test_too_many_unreadable_records_are_an_event_of_their_own(
    nights: Nights, posted: list[dict[str, Any]]
) -> None:
    (nights.folder / "bad.jsonl").write_text("{broken\n" * 30)
    with pytest.raises(TooManyFaults):
        nights.refresh()
    assert [p["event"] for p in posted] == ["quarantine"]
    assert "more than source.max_bad_frac" in posted[0]["cause"]


def test_drift_is_told_with_its_page(nights: Nights, posted: list[dict[str, Any]]) -> None:
    nights.refresh()
    nights.write("b", 1, num_documents=60, num_words=(90, 150))
    nights.refresh()
    (notice,) = posted
    assert notice["event"] == "drift" and "num_bytes" in notice["cause"]
    assert "What changed" in Path(notice["links"]["changes"]).read_text()


def test_a_stop_that_somebody_asked_for_is_told_to_nobody(
    nights: Nights, posted: list[dict[str, Any]]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        nights.stop_after("ingest")
    assert posted == []


def test_a_run_that_died_is_told_once_by_the_next_of_its_series(
    nights: Nights, posted: list[dict[str, Any]]
) -> None:
    dead = nights.refresh()
    died(dead)
    nights.refresh("refresh.series=other")
    assert posted == []
    nights.refresh()
    nights.refresh()
    (notice,) = posted
    assert notice["event"] == "died" and dead.record.run_id in notice["cause"]


def test_a_run_that_died_is_told_again_where_nobody_was_reached(
    nights: Nights, posted: list[dict[str, Any]]
) -> None:
    dead = nights.refresh()
    died(dead)
    nights.refresh("notify.webhook=http://127.0.0.1:9")
    assert posted == []
    nights.refresh()
    nights.refresh()
    (notice,) = posted
    assert dead.record.run_id in notice["cause"]


def test_a_late_run_is_told_while_it_goes_on(nights: Nights, posted: list[dict[str, Any]]) -> None:
    config = compose(nights.overrides("notify.late_after_s=1"))
    with watched(config, "refresh"):
        for _ in range(600):
            if posted:
                break
            time.sleep(0.1)
    assert [p["event"] for p in posted] == ["late"]
    assert "not ended 1.00 s after" in posted[0]["cause"].replace("\u202f", " ")
    with watched(compose(nights.overrides("notify.late_after_s=3600")), "refresh"):
        pass
    assert len(posted) == 1


def test_events_that_are_not_wanted_are_not_told(
    nights: Nights, posted: list[dict[str, Any]]
) -> None:
    with pytest.raises(ConfigError):
        nights.refresh("refresh.tokenizer=0123456789abcdef", "notify.on=[drift,late]")
    assert posted == []


def test_whom_nobody_reaches_leaves_the_outcome_of_a_run_as_it_is(
    nights: Nights, caplog: pytest.LogCaptureFixture
) -> None:
    nights.settings = [*nights.settings, "notify.webhook=http://127.0.0.1:9"]
    nights.refresh()
    nights.write("b", 1, num_documents=60, num_words=(90, 150))
    run = nights.refresh()
    assert run.record.outcome == "completed"
    assert "notify.webhook: drift was not delivered" in caplog.text
    with pytest.raises(ConfigError, match="is missing"):
        nights.refresh("refresh.tokenizer=0123456789abcdef")


def test_whom_a_run_tells_is_in_no_record_and_no_key(
    nights: Nights, posted: list[dict[str, Any]]
) -> None:
    more = ["+notify.email.to=[jane@example.org]", "notify.email.port=9"]
    run = nights.refresh(*more)
    records = read_records(Store(run.store.root))
    assert not any("notify" in one for record in records for one in record.overrides)
    assert "notify" not in run.config.tracked() and "notify" in run.config.resolved()
    assert all(outcome.cached for outcome in nights.refresh().outcomes.values())
