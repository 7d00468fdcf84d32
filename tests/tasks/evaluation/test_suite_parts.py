"""A killed evaluation resumes at the missing items, and its figures are those of an undisturbed
one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
import pytest

from tasks.evaluation import suite_parts
from tasks.evaluation.config import EvaluateConfig, EvaluateStageConfig, SuitesConfig
from tasks.evaluation.stage import evaluate_model
from tasks.evaluation.suite_parts import Judged, score_suites
from tasks.evaluation.suite_results import ROWS_FILE, read_rows
from tasks.runtime.code import ROOT
from tasks.runtime.parts import scratch_dir, serial
from tests.support.data.trained_run import Run

PART_ITEMS = 3
SCRIPT = """
import sys
from pathlib import Path
from tests.tasks.evaluation.test_suite_parts import evaluate
if __name__ == "__main__":
    evaluate(*map(Path, sys.argv[1:]))
"""


def evaluate(model: Path, tokenizer: Path, out: Path) -> dict[str, object]:
    """Score two of our suites in small parts."""
    suite_parts.PART_ITEMS = PART_ITEMS
    folders = tuple(ROOT / "data/suites" / name for name in ("agreement", "repeating"))
    config = EvaluateStageConfig(EvaluateConfig(), suites=SuitesConfig(folders, max_items=36))
    out.mkdir(exist_ok=True)
    return score_suites([Judged("", model, tokenizer, 95)], {}, config, out, serial)[""]


def test_answers_that_bfloat16_changes_are_counted(small_run: Run, tmp_path: Path) -> None:
    folders = tuple(ROOT / "data/suites" / name for name in ("copying", "repeating"))
    parents = small_run.documents, small_run.tokenizer, small_run.shards, small_run.train

    def chosen(dtype: Literal["float32", "bfloat16"]) -> tuple[list[int], dict[str, Any]]:
        scoring = EvaluateConfig(dtype=dtype, bootstrap_samples=100, max_documents=2)
        suites = SuitesConfig(folders, max_items=90)
        (out := tmp_path / dtype).mkdir()
        made = evaluate_model(*parents, out, EvaluateStageConfig(scoring, suites=suites))
        rows = [
            [choice["logprob"] for choice in row["choices"]] for row in read_rows(made)["copying"]
        ]
        return [row.index(max(row)) for row in rows], made.metrics["policy"]

    (whole, no_loss), (half, loss) = chosen("float32"), chosen("bfloat16")
    changed = sum(one != other for one, other in zip(whole, half, strict=True))
    assert 0 < changed < 90 == loss["dtypes_compared_on_items"]
    assert loss["answers_changed_from_float32_frac"] == pytest.approx(changed / 90, abs=1e-4)
    assert not [name for name in no_loss if "float32" in name]


@pytest.mark.slow
def test_a_killed_evaluation_resumes_at_the_missing_items(
    small_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite_parts, "PART_ITEMS", PART_ITEMS)
    read = small_run.train.path / "model", small_run.tokenizer.path
    expected = evaluate(*read, tmp_path / "undisturbed")
    num_parts = len(list(scratch_dir(tmp_path / "undisturbed").iterdir()))
    script, out = tmp_path / "program.py", tmp_path / "out"
    script.write_text(SCRIPT)
    words = [sys.executable, str(script), *map(str, (*read, out))]
    process = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and len(finished(out)) < 3:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = finished(out)
    assert 3 <= len(before) < num_parts, "killed too early or too late to tell"
    assert not (out / ROWS_FILE).exists()
    assert evaluate(*read, out) == expected
    after = finished(out)
    assert len(after) == num_parts and {name: after[name] for name in before} == before
    rows = [pq.read_table(tmp_path / name / ROWS_FILE) for name in ("undisturbed", "out")]
    assert rows[0].equals(rows[1])


def finished(out: Path) -> dict[str, int]:
    """{part: inode of its rows}, of those that are whole."""
    parts = scratch_dir(out).glob(f"*/{ROWS_FILE}")
    return {p.parent.name: p.stat().st_ino for p in parts if (p.parent / "part.json").exists()}
