"""The log of a run keeps its rows in the file, and of them in memory what training asks for."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from llm_core.config import ConfigError
from llm_core.training.metric_log import METRICS_FILE, MetricLog, is_of_run, read_rows


def write_run(path: Path, num_steps: int, validate_every: int) -> None:
    with MetricLog(path) as log:
        for step in range(1, num_steps + 1):
            log.write({"step": step, "train_loss": 1 / step})
            if step % validate_every == 0:
                log.write({"step": step, "val_loss": 2 / step})


def test_a_cut_keeps_the_rows_up_to_a_step_and_all_events_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / METRICS_FILE
    write_run(path, 9, 3)
    with MetricLog(path) as log:
        log.tell("resumed", 9, "as asked")
        log.write({"step": 9, "event": "rollback", "number": 1})
        log.cut(7)
        assert log.last == {"step": 7, "train_loss": 1 / 7}
        assert log.val_losses == [2 / 3, 2 / 6] and log.events == []
        log.write({"step": 6, "event": "rollback", "number": 1})
        assert log.events == [{"step": 6, "event": "rollback", "number": 1}]
    rows = read_rows(path)
    assert [row["what"] for row in rows if is_of_run(row)] == ["as asked"]
    assert [row["step"] for row in rows if "train_loss" in row] == list(range(1, 8))


def test_memory_does_not_grow_with_steps(tmp_path: Path) -> None:
    path = tmp_path / METRICS_FILE
    tracemalloc.start()
    write_run(path, 20_000, 10_000)
    with MetricLog(path, 19_000) as log:
        log.cut(18_000)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1_000_000


def test_a_damaged_row_is_named_and_the_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / METRICS_FILE
    path.write_text('{"step": 1}\n{"step"\n{"step": 3}\n', "utf-8")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="line 2 of .* delete that line"):
        MetricLog(path)
    assert [file.name for file in tmp_path.iterdir()] == [METRICS_FILE]
    assert path.read_bytes() == before
