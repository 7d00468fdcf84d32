"""A comparison of runs names what differs, and pairs what both have scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.explain.compare import (
    MAX_CURVE_POINTS,
    compare_runs,
    curves,
    differing_settings,
    paired_difference,
)
from tasks.runtime.artifact import Artifact


def evaluated(folder: Path, name: str, rows: dict[str, tuple[float, int]]) -> dict[str, Artifact]:
    """rows: {document: (bits, bytes)}."""
    (folder / name).mkdir()
    documents = [{"id": id, "bits": bits, "bytes": size} for id, (bits, size) in rows.items()]
    (folder / name / "eval.json").write_text(json.dumps({"documents": documents}))
    return {"evaluate": Artifact(folder / name, "evaluate")}


def configured(stage: str, config: dict[str, Any]) -> Artifact:
    return Artifact(Path("/nowhere"), stage, record={"config": config})


def test_the_difference_is_that_of_shared_documents_whatever_their_own_spread(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(100, 1000, 60)
    hard = rng.uniform(1, 5, 60) * sizes  # some documents are much harder than others
    first = {f"d{i}": (float(hard[i]), int(sizes[i])) for i in range(60)}
    other = {f"d{i}": (float(hard[i] - 0.1 * sizes[i]), int(sizes[i])) for i in range(60)}
    found = paired_difference(
        evaluated(tmp_path, "a", first | {"alone": (1e6, 10)}), evaluated(tmp_path, "b", other)
    )
    assert found is not None and found.value == pytest.approx(-0.1)
    assert found.low == pytest.approx(-0.1) and found.is_clear
    assert (found.documents, found.documents_of_one) == (60, 1)


def test_equal_runs_do_not_differ_and_edited_documents_are_not_paired(tmp_path: Path) -> None:
    rows = {"x": (10.0, 5), "y": (20.0, 9)}
    found = paired_difference(evaluated(tmp_path, "a", rows), evaluated(tmp_path, "b", rows))
    assert found is not None and found.value == 0 and not found.is_clear
    edited = evaluated(tmp_path, "c", {"x": (10.0, 6)})
    assert paired_difference(evaluated(tmp_path, "d", rows), edited) is None
    assert paired_difference({}, edited) is None


def test_figures_of_two_window_policies_are_not_paired(tmp_path: Path) -> None:
    runs = []
    for name in ("overlapping", "disjoint"):
        runs.append(evaluated(tmp_path, name, {"x": (10.0, 5)}))
        file = tmp_path / name / "eval.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"policy": {"windows": name}}))
    assert paired_difference(*runs) is None
    # Results without a name of their windows are overlapping.
    assert paired_difference(runs[0], evaluated(tmp_path, "old", {"x": (9.0, 5)})) is not None


SETTINGS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 2), max_size=3)


@given(st.lists(SETTINGS, min_size=2, max_size=4))
def test_exactly_the_settings_that_differ_are_named(settings: list[dict[str, int]]) -> None:
    runs = [{"dedup": configured("dedup", {"cuts": each})} for each in settings]
    found = differing_settings(runs)
    for name in "abc":
        values = [each.get(name) for each in settings]
        assert (f"dedup.cuts.{name}" in found) == (len(set(values)) > 1)
        assert found.get(f"dedup.cuts.{name}", values) == values


def test_settings_have_the_names_that_a_user_types() -> None:
    runs = [
        {
            "train": configured("train", {"optim": {"lr": lr}}),
            "ingest": configured("ingest", {"name": str(lr)}),
        }
        for lr in (1, 2)
    ]
    assert differing_settings([*runs, {}]) == {
        "optim.lr": [1, 2, None],
        "source.name": ["1", "2", None],
    }


def test_curves_are_over_tokens_and_keep_their_ends(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"step": step, "train_loss": 1 / step, "tokens": 8 * step} for step in range(1, 1001)
    ]
    rows.append({"step": 1000, "val_loss": 0.5})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = curves({"train": Artifact(tmp_path, "train")})
    assert found["val_loss"] == [[8000, 0.5]] and found["train_loss"][-1] == [8000, 0.001]
    assert len(found["train_loss"]) <= MAX_CURVE_POINTS
    assert compare_runs([{}, {}])["differences"] == [None, None]
