"""A refresh says what changed beside the night before: a line, a page and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.commands import runs
from flows.run import Run, describe, summarize
from flows.tracking.described import SWEEP_VARIABLE, PointOfSweep
from tests.support.nights import Nights, kept


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    nights = Nights(tmp_path)
    for i in range(2):
        nights.write(f"a{i}", i, num_documents=40)
    return nights


def changes(run: Run) -> dict[str, Any]:
    assert run.changes is not None
    return json.loads(run.changes.file.read_text())


def test_files_and_documents_of_two_nights_are_compared(nights: Nights) -> None:
    first = nights.refresh()
    assert first.changes is None, "there is no night before"
    nights.write("b", 7, num_documents=12)
    nights.write("a1", 1, num_documents=30)
    (nights.folder / "a0.jsonl").unlink()
    second = nights.refresh()
    found, before, now = changes(second), kept(first.artifacts), kept(second.artifacts)
    assert found["before"] == first.record.run_id and not found["nothing_new"]
    assert found["inputs"] == {
        "new": 1,
        "changed": 1,
        "gone": 1,
        "same": 0,
        "names": {"new": ["b.jsonl"], "changed": ["a1.jsonl"], "gone": ["a0.jsonl"]},
    }
    assert found["documents"]["kept"] == {
        "now": len(now),
        "before": len(before),
        "added": len(now.keys() - before.keys()),
        "gone": len(before.keys() - now.keys()),
    }
    assert found["documents"]["kept"]["gone"] >= 50
    assert "files: 1 new, 1 changed, 1 gone; documents: 12 added" in describe(second)
    summary = summarize(second)["changes"]
    assert summary["inputs"] == {"new": 1, "changed": 1, "gone": 1, "same": 0}
    page = Path(summary["page"]).read_text()
    assert "a0.jsonl" in page and "<script" not in page


def test_reasons_stand_beside_those_of_the_night_before(nights: Nights) -> None:
    nights.refresh()
    copied = (nights.folder / "a0.jsonl").read_text()
    (nights.folder / "c.jsonl").write_text(copied + '{"text": " "}\n{"text": broken\n')
    found = changes(nights.refresh("source.max_bad_frac=0.5"))
    rows = {(r["stage"], r["reason"]): (r["now"], r["before"]) for r in found["dropped"]}
    assert rows["dedup", "EXACT_DUPLICATE"] == (40, 0) and rows["ingest", "EMPTY"] == (1, 0)
    assert found["documents"]["quarantined"] == {"now": 1, "before": 0}


def test_a_night_without_anything_new_says_so_and_of_which_night(nights: Nights) -> None:
    first = nights.refresh()
    again = nights.refresh()
    assert changes(again)["nothing_new"] and changes(again)["before"] == first.record.run_id
    assert f"nothing new since run {first.record.run_id}" in describe(again)
    assert summarize(again)["changes"]["page"] is None
    assert all(outcome.cached for outcome in again.outcomes.values())


def test_a_night_without_anything_new_starts_neither_prefect_nor_mlflow(
    nights: Nights, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [w for w in nights.overrides() if w not in ("tracking=off", "orchestrator=none")]
    first = nights.refresh()

    def refused(*arguments: Any) -> None:
        raise AssertionError("Prefect was started")

    monkeypatch.setattr(runs, "_server", refused)
    summary = runs.run_once("refresh", words)
    assert summary == json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["changes"]["before"] == first.record.run_id
    assert summary["changes"]["nothing_new"] and summary["mlflow_uri"] is None
    for more in (["force=[shards]"], ["tokenizer.vocab_size=290"], ["refresh.series=new"]):
        with pytest.raises(AssertionError, match="Prefect was started"):
            runs.run_once("refresh", [*words, *more])


def test_a_shift_in_new_documents_is_drift_and_more_of_the_same_is_none(nights: Nights) -> None:
    nights.refresh()
    nights.write("b", 7, num_documents=60)
    calm = nights.refresh()
    assert changes(calm)["drift"]["drifts"] == [] and changes(calm)["drift"]["new_documents"] == 60
    assert {t["measure"] for t in changes(calm)["drift"]["tests"]} >= {
        "language",
        "num_bytes",
        "personal data",
        "mean_word_chars",
    }
    nights.write("c", 8, num_documents=60, num_words=(90, 150))
    shifted = nights.refresh()
    assert "num_bytes" in changes(shifted)["drift"]["drifts"]
    assert "drift: " in describe(shifted) and "num_bytes (effect 1.00)" in describe(shifted)


@pytest.mark.slow
def test_few_new_documents_are_not_tested(nights: Nights) -> None:
    nights.refresh()
    nights.write("b", 7, num_documents=12, num_words=(300, 400))
    drift = changes(nights.refresh())["drift"]
    assert drift == {"new_documents": 12, "tests": [], "drifts": []}


def test_nights_are_compared_within_their_series_and_points_of_sweeps_with_none(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights.refresh()
    other = nights.refresh("refresh.series=other")
    assert other.changes is None
    monkeypatch.setenv(SWEEP_VARIABLE, PointOfSweep("sweep", "point").as_text())
    point = nights.refresh("documents.seed=3")
    assert point.changes is None and point.record.series is None
    monkeypatch.delenv(SWEEP_VARIABLE)
    assert changes(nights.refresh())["nothing_new"], "a point is nobody's night before"


@pytest.mark.slow
def test_a_failed_night_is_nobodys_night_before(nights: Nights) -> None:
    first = nights.refresh()
    nights.write("b", 7)
    with pytest.raises(KeyboardInterrupt):
        nights.stop_after("documents")
    assert changes(nights.refresh())["before"] == first.record.run_id


@pytest.mark.slow
def test_a_night_whose_data_is_gone_is_passed_over(nights: Nights) -> None:
    first = nights.refresh()
    nights.write("b", 7)
    second = nights.refresh()
    path = second.artifacts["documents"].path
    path.rename(path.with_name("elsewhere"))
    nights.write("c", 8)
    assert changes(nights.refresh())["before"] == first.record.run_id
