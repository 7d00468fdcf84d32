"""Journals lose no event and let none of them stand in the way of others."""

from __future__ import annotations

import fcntl
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from flows.tracking import shipping
from flows.tracking.journal import Event, Journal
from flows.tracking.mlflow_log import MlflowLog
from flows.tracking.runs import default_uri

AT = "2026-01-01T00:00:00+00:00"
BEGIN: Event = {
    "kind": "begin",
    "id": "r",
    "name": "run",
    "tags": {},
    "at": AT,
    "params": {},
    "texts": {},
    "swept": None,
}
END: Event = {"kind": "end", "status": "FINISHED", "at": AT}


@pytest.fixture
def log(tmp_path: Path) -> MlflowLog:
    return MlflowLog(default_uri(tmp_path), "journals", tmp_path)


def test_an_event_that_comes_when_the_rest_is_sent_is_sent_too(
    log: MlflowLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.create(tmp_path, "r")
    sent: list[str] = []

    class EndsLate(list[Event]):
        def __len__(self) -> int:
            known = super().__len__()
            if known == len(sent) == 1:  # as another thread may, after all have been sent
                self.append(END)
            return known

    journal.events = EndsLate([BEGIN])
    monkeypatch.setattr(shipping, "tell", lambda log, journal, event: sent.append(event["kind"]))
    with closing(journal):
        assert not shipping.send(log, journal)
        assert shipping.send(log, journal) and sent == ["begin", "end"]


def test_a_journal_that_was_removed_while_it_was_opened_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    made: list[Journal] = []
    with path.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: made.append(Journal.create(tmp_path, "r")))
        thread.start()
        time.sleep(0.2)  # it waits for the lock by now
        path.unlink()
    thread.join()
    with closing(made[0]) as journal:
        journal.append(BEGIN)
    assert path.read_text().count("\n") == 1


def test_what_utf8_does_not_have_is_replaced(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, "r")
    journal.append({**END, "error": "no file \udcff.txt"})
    journal.close()
    (left,) = Journal.left_over(tmp_path)
    assert left.events[0]["error"] == "no file ?.txt"


def test_a_journal_that_cannot_be_sent_keeps_no_other_back(log: MlflowLog, tmp_path: Path) -> None:
    folder = tmp_path / "artifact"
    folder.mkdir()
    (folder / "artifact.json").write_text("{")  # damaged since
    stage: Event = {
        "kind": "stage",
        "stage": "train",
        "key": "k",
        "code": "c",
        "params": {},
        "started_at": AT,
        "at": AT,
        "path": str(folder),
        "parents": {},
        "made": True,
    }
    for name in ("a", "b"):
        journal = Journal.create(log.unsent, name)
        for event in (
            {**BEGIN, "id": name},
            *([stage] if name == "a" else []),
            {**END, "error": "odd \udcff"},
        ):
            journal.append(event)
        journal.close()
    shipping.send_left_over(log)
    assert list(log.unsent.iterdir()) == []
    assert log.find({"textmill.run_id": "a"}, "FINISHED") and log.find(
        {"textmill.run_id": "b"}, "FINISHED"
    )


@pytest.mark.parametrize("damaged", ["a.jsonl", "a.sent.json"])
def test_a_damaged_journal_is_set_aside_and_keeps_no_other_back(
    damaged: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        journal = Journal.create(tmp_path, name)
        journal.append(BEGIN)
        journal.keep()
        journal.close()
    (tmp_path / damaged).write_text("{torn\n")
    assert [journal.events for journal in Journal.left_over(tmp_path)] == [[BEGIN]]
    assert not (tmp_path / "a.jsonl").exists() and (tmp_path / "a.damaged").exists(), (
        "nothing is lost"
    )
    assert "a.damaged" in caplog.text
