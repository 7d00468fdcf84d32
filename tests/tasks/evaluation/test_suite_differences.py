"""Two evaluations are compared on the same items, or refused with what differs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.corpus.statistics import mcnemar
from tasks.evaluation.suite_differences import differences, suite_differences
from tasks.evaluation.suite_results import ROWS_FILE
from tasks.evaluation.suite_scores import write_rows
from tasks.runtime.artifact import Artifact

ABOUT = {"digest": "d", "shots": 0, "asked": ["acc"], "headline": "acc", "bootstrap_samples": 300}


def evaluated(
    folder: Path, rights: dict[str, np.ndarray], cluster: int = 1, **about: Any
) -> Artifact:
    """rights: {suite: whether each item was answered rightly}."""
    folder.mkdir()
    rows = [
        {
            "suite": suite,
            "item": str(n),
            "cluster": str(n // cluster),
            "prompt_digest": about.get("prompt", f"p{n}"),
            "label": 0,
            "choices": [{"logprob": -1.0}, {"logprob": -2.0 if is_right else -0.5}],
        }
        for suite, right in rights.items()
        for n, is_right in enumerate(right)
    ]
    write_rows(rows, folder / ROWS_FILE)
    known = {name: {**ABOUT, **about} for name in rights}
    return Artifact(folder, "evaluate", {}, {"suites": known})


def answers(share: float, seed: int, count: int = 200) -> np.ndarray:
    return np.random.default_rng(seed).random(count) < share


def test_a_clear_difference_is_told_from_none(tmp_path: Path) -> None:
    first = {"a": answers(0.4, 1), "b": answers(0.5, 2)}
    other = {"a": first["a"] | answers(0.4, 3), "b": first["b"] ^ answers(0.1, 4)}
    found = suite_differences(evaluated(tmp_path / "a", first), evaluated(tmp_path / "b", other))
    assert found["a"]["value"] == pytest.approx(other["a"].mean() - first["a"].mean())
    assert 0 < found["a"]["low"] < found["a"]["value"] < found["a"]["high"]
    assert found["a"]["verdict"] == "differs"
    assert found["b"]["verdict"] == "no difference seen at this number of items"
    for one in found.values():
        assert one["p_value"] <= one["p_value_of_all"] <= 2 * one["p_value"]
    # Of two suites the least counts twice.
    assert found["a"]["p_value_of_all"] == pytest.approx(2 * found["a"]["p_value"], abs=0)


def test_equal_answers_do_not_differ(tmp_path: Path) -> None:
    right = {"a": answers(0.5, 0)}
    found = suite_differences(evaluated(tmp_path / "a", right), evaluated(tmp_path / "b", right))
    assert found["a"]["value"] == 0 and found["a"]["p_value"] == 1


def test_items_of_a_cluster_count_as_one_witness(tmp_path: Path) -> None:
    first, other = np.repeat(answers(0.5, 1, 20), 10), np.repeat(answers(0.5, 2, 20), 10)
    widths = []
    for cluster in (1, 10):
        pair = [
            evaluated(tmp_path / f"{name}{cluster}", {"a": right}, cluster)
            for name, right in (("a", first), ("b", other))
        ]
        found = suite_differences(*pair)["a"]
        widths.append(found["high"] - found["low"])
    assert widths[1] > 2 * widths[0]


def test_clusters_differ_by_chance_in_five_of_a_hundred() -> None:
    """Questions of a passage are answered alike: items alone would differ far more often."""
    rng, clear, of_items = np.random.default_rng(5), 0, 0
    for _ in range(300):
        one, two = (np.repeat(rng.random(30) < 0.5, 6) for _ in range(2))
        rows = [
            [
                {"item": str(n), "prompt_digest": "p", "cluster": str(n // 6), "label": 0}
                | {"choices": [{"logprob": -1.0}, {"logprob": -2.0 if is_right else -0.5}]}
                for n, is_right in enumerate(rights)
            ]
            for rights in (one, two)
        ]
        about = {"a": {**ABOUT, "bootstrap_samples": 100}}
        found = differences(about, about, {"a": rows[0]}, {"a": rows[1]})["a"]
        clear += found["verdict"] == "differs"
        of_items += mcnemar(one.astype(float), two.astype(float)) < 0.05
    assert clear / 300 <= 0.06 and of_items / 300 > 0.2


@pytest.mark.parametrize(
    ("change", "said"),
    [({"digest": "e"}, "digest"), ({"shots": 2}, "shots"), ({"prompt": "x"}, "prompts")],
)
def test_other_items_or_prompts_are_refused_by_name(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    right = {"a": answers(0.5, 0)}
    found = suite_differences(
        evaluated(tmp_path / "a", right), evaluated(tmp_path / "b", right, **change)
    )
    assert found == {"a": {"refused": f"not compared: {said} differ"}}


def test_fewer_items_are_refused_and_suites_of_one_run_are_left_out(tmp_path: Path) -> None:
    first = evaluated(tmp_path / "a", {"a": answers(0.5, 0), "own": answers(0.5, 1)})
    other = evaluated(tmp_path / "b", {"a": answers(0.5, 0)[:50]})
    assert suite_differences(first, other) == {"a": {"refused": "not compared: items differ"}}
    assert suite_differences(first, Artifact(tmp_path / "c", "evaluate", {}, {})) == {}
