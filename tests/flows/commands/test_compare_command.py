"""`textmill compare` puts runs, or the points of a sweep, beside each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.commands.compare import describe
from flows.tracking.headline import headline
from tasks.evaluation.suite_results import ROWS_FILE
from tasks.evaluation.suite_scores import write_rows
from tests.flows.conftest import RunCli
from tests.support import stand_ins


@pytest.fixture
def sweep(
    stand_in_stages: list[str], run_cli: RunCli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> list[dict[str, Any]]:
    """Records of the points of a sweep, in order."""
    evaluate = stand_ins.evaluate
    train = stand_ins.train

    def scores(*arguments: Any) -> Any:
        made = evaluate(*arguments)
        bits = 10.0 if len(list((tmp_path / "store/evaluate").glob("*"))) else 12.0
        rows = [{"id": str(n), "bits": bits + n, "bytes": 10 + n} for n in range(30)]
        (made.path / "eval.json").write_text(json.dumps({"documents": rows}))
        # The better model of the two answers every question of its suite rightly.
        answers = [{"logprob": -1.0}, {"logprob": -2.0 if bits == 10 else -0.5}]
        known = {"suite": "cloze", "prompt_digest": "p", "label": 0, "choices": answers}
        items = [known | {"item": str(n), "cluster": str(n)} for n in range(30)]
        write_rows(items, made.path / ROWS_FILE)
        return made

    def trains(*arguments: Any) -> Any:
        made = train(*arguments)
        file = made.path / "metrics.jsonl"
        rows = [json.loads(line) for line in file.open()]
        rows = [row | {"tokens": 100 * row["step"]} if "train_loss" in row else row for row in rows]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return made

    monkeypatch.setattr(stand_ins, "evaluate", scores)
    monkeypatch.setattr(stand_ins, "train", trains)
    assert run_cli("run", "-m", "optim.lr=0.001,0.002")["code"] == 0
    records = [json.loads(file.read_text()) for file in (tmp_path / "store/.runs").glob("*.json")]
    return sorted(records, key=lambda record: str(record["started_at"]))


def test_points_of_a_sweep_are_compared_by_its_id_in_80_columns(
    sweep: list[dict[str, Any]], run_cli: RunCli, tmp_path: Path
) -> None:
    first, second = (record["run_id"] for record in sweep)
    assert sweep[0]["sweep"] and sweep[0]["sweep"] == sweep[1]["sweep"]
    page = tmp_path / "page.html"
    result = run_cli("compare", sweep[0]["sweep"], f"--html={page}")
    assert result["code"] == 0, result["err"]
    lines = result["out"].splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"A  {first}") and lines[1].startswith(f"B  {second}")
    assert "optim.lr" in result["out"] and "-0." in result["out"] and "*" in result["out"]
    assert result["out"].count("1.3000…1.5000") == 2, "intervals of both"
    (row,) = (line.split() for line in lines if " cloze " in line)
    # Alike for all items, so that the interval has no width.
    assert row == ["B", "cloze", "acc", "+1.0000*", "1.0000…1.0000", "0.000"]
    shown = page.read_text()
    assert "optim.lr" in shown and "<svg" in shown and ">cloze</td>" in shown
    found = run_cli("compare", second, first, "--json")["summary"]
    assert found["settings"] == {"optim.lr": [0.002, 0.001]}
    assert found["differences"][1]["value"] > 0 and found["differences"][1]["is_clear"]
    assert found["curves"][0]["val_loss"] == [[300, 1.25]]
    assert found["runs"]["B"]["results"]["val_bpb"] == 1.4


def test_every_run_of_many_has_its_results_and_curve() -> None:
    results = headline({})
    runs = {
        letter: {
            "run_id": letter,
            "name": "",
            "interval": None,
            "results": results | {"val_loss": n},
        }
        for n, letter in enumerate("ABCDEF", 1)
    }
    curves = [{"val_loss": [[100, 10.0 + n]]} for n in range(6)]
    clear = {"metric": "acc", "value": 0.25, "low": 0.125, "high": 0.375}
    clear |= {"verdict": "differs", "p_value_of_all": 0.001}
    refused = {"refused": "not compared: digest differ"}
    found = {"runs": runs, "settings": {}, "differences": [None] * 6, "curves": curves}
    found["suites"] = [None, {}, {"cloze": clear, "copying": refused}, None, None, None]
    shown = describe(found).splitlines()
    words = [line.split() for line in shown]
    assert ["C", "cloze", "acc", "+0.2500*", "0.1250…0.3750", "0.001"] in words
    assert "C  copying not compared: digest differ" in shown
    cells = [line.split()[1:] for line in shown if line.startswith("val_loss ")]
    assert [*cells[0], *cells[1]] == list("123456")
    losses = [line.split()[1:] for line in shown if line.split()[:1] == ["100"]]
    assert [float(value) for line in losses for value in line] == [10.0 + n for n in range(6)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["20"], "begins the ids of 2 runs"),
        (["nothing", "else"], "is not a run or sweep"),
        ([], "needs two runs"),
    ],
)
def test_what_cannot_be_compared_is_one_line(
    words: list[str], said: str, sweep: list[dict[str, Any]], run_cli: RunCli
) -> None:
    result = run_cli("compare", *words)
    assert result["code"] == 2 and said in result["err"] and "Traceback" not in result["err"]
