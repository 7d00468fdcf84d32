"""Every metric and parameter has a name that MLflow takes, and none takes the place of another."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flows.tracking.mlflow_names import (
    METRIC_SEPARATOR,
    PARAM_SEPARATOR,
    cut,
    name_of,
    numbers,
    numbers_of_stage,
    params,
)

SEPARATORS = st.sampled_from([METRIC_SEPARATOR, PARAM_SEPARATOR])
PIECES = st.text(
    alphabet=st.one_of(st.sampled_from("_x5f2e./: @-a\n"), st.characters()), max_size=8
)
PATHS = st.lists(PIECES, min_size=1, max_size=3).map(tuple)
TREES = st.recursive(
    st.integers(0, 9),
    lambda inner: st.dictionaries(PIECES, inner, min_size=1, max_size=4),
    max_leaves=12,
)


def path_of(name: str, separator: str) -> tuple[str, ...]:
    """The inverse of `name_of`, where it did not cut."""

    def character(match: re.Match[str]) -> str:
        return chr(int(match[1], 16)) if match[1] else ""

    return tuple(re.sub(r"_x([0-9a-f]*)_", character, piece) for piece in name.split(separator))


@given(PATHS, SEPARATORS)
def test_a_name_gives_its_path_back_and_is_one_that_mlflow_takes(
    path: tuple[str, ...], separator: str
) -> None:
    from mlflow.utils.validation import _validate_metric_name

    name = name_of(path, separator)
    _validate_metric_name(name)
    assert name and (path_of(name, separator) == path or len(name) == 250)


@given(TREES.filter(lambda tree: isinstance(tree, dict)))
def test_no_two_metrics_share_a_name(tree: dict[str, Any]) -> None:
    def leaves(values: Any) -> int:
        return sum(map(leaves, values.values())) if isinstance(values, dict) else 1

    assert len(numbers(tree)) == leaves(tree) == len(params(tree))


def test_names_that_were_legal_stay_as_they_are() -> None:
    values = {
        "val_bpb": 1,
        "by_source": {"deb:golang-1.19-src": {"loss": 2}},
        "max_xent": 3,
        "quality": {"num_bytes": 4},
    }
    assert numbers(values) == {
        "val_bpb": 1,
        "by_source/deb:golang-1.19-src/loss": 2,
        "max_xent": 3,
        "quality/num_bytes": 4,
    }


def test_metrics_that_differ_in_a_sign_keep_their_values() -> None:
    values = {"web.a": 1, "web": {"a": 2}, "web_a": 3, "web@a": 4, "web/a": 5, "web_x40_a": 6}
    assert sorted(numbers(values).values()) == [1, 2, 3, 4, 5, 6]
    assert sorted(params(values).values()) == ["1", "2", "3", "4", "5", "6"]
    long = {"n" * 300 + "a": 1, "n" * 300 + "b": 2}
    assert sorted(numbers(long).values()) == [1, 2] and {len(name) for name in numbers(long)} == {
        250
    }


def test_a_counter_and_a_metric_of_one_name_are_both_kept() -> None:
    assert numbers_of_stage({"read": 3, "same": 1}, {"read": 4, "same": 1}) == {
        "read": 4,
        "counters/read": 3,
        "same": 1,
    }


def test_texts_that_differ_past_the_limit_stay_different() -> None:
    one, other = "a" * 6000 + "1", "a" * 6000 + "2"
    assert cut(one, 5000) != cut(other, 5000) and len(cut(one, 5000)) == 5000
    assert cut("short", 5000) == "short"


def test_only_finite_numbers_become_metrics() -> None:
    values = {
        "a": 1,
        "b": {"c@": 2.5, "text": "x", "flag": True},
        "bad": float("nan"),
        "list": [1, 2],
        "huge": 10**400,
    }
    assert numbers(values) == {"a": 1.0, "b/c_x40_": 2.5}
    assert json.dumps(numbers(values))


def test_texts_of_parameters_and_tags_act_on_no_reader() -> None:
    assert params({"name": "a\x1b[2J\x9b\u202e\nb"}) == {"name": "a\\u001b[2J\\u009b\\u202e\nb"}
    assert (
        cut("\x1b" * 100, 250) == cut("\\u001b" * 100, 250) and len(cut("\x1b" * 100, 250)) == 250
    )
