"""Keys: equal for equal work on every machine and process, different for anything that changes
bytes."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_core.config import NOT_IN_KEY
from tasks.runtime.code import ROOT
from tasks.runtime.keys import canonical_json, digest, explain_change, key_config

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), values))
def test_key_order_does_not_change_the_digest(mapping: dict) -> None:
    assert digest(mapping) == digest(dict(reversed(mapping.items())))


@given(values, values)
def test_different_values_have_different_texts(a: object, b: object) -> None:
    # repr tells 1 from 1.0 and 0.0 from -0.0, as a key must; lists and tuples are the same JSON.
    assert (canonical_json(a) == canonical_json(b)) == (repr(a) == repr(b)) or json.dumps(
        a, sort_keys=True
    ) == json.dumps(b, sort_keys=True)


@pytest.mark.parametrize(
    "value",
    [{1: "x"}, {"x": {1, 2}}, {"x": Path("p")}, {"x": b"bytes"}, {"x": object()}, lambda: None],
)
def test_values_without_one_text_are_refused(value: object) -> None:
    with pytest.raises(TypeError):
        digest(value)


def test_digest_is_the_same_in_every_process() -> None:
    code = (
        "from tasks.runtime.keys import digest; print(digest({'b': [1, 2.5, None], 'a': {'ü':"
        " True}}))"
    )
    outputs = set()
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        outputs.add(
            subprocess.run(
                [sys.executable, "-c", code],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
    assert outputs == {digest({"a": {"ü": True}, "b": [1, 2.5, None]}) + "\n"}


@dataclasses.dataclass(frozen=True)
class Config:
    threshold: float = 0.8
    num_workers: int = dataclasses.field(default=1, metadata=NOT_IN_KEY)


def test_how_a_result_is_made_stays_out_of_its_key() -> None:
    assert (
        key_config(Config(num_workers=1)) == key_config(Config(num_workers=8)) == {"threshold": 0.8}
    )


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        ({"code": "2"}, "code changed"),
        ({"config": {"lr": 0.003}}, "changed lr: 0.001 → 0.003"),
        ({"parents": {"ingest": "b"}}, "after ingest"),
        ({"inputs": {"x.jsonl": "2"}}, "changed inputs.x.jsonl: other content"),
        ({"inputs": {"y.jsonl": "2"}}, "changed inputs.x.jsonl: gone; inputs.y.jsonl: new"),
        ({"libraries": {"torch": "2.13.0"}}, "changed libraries.torch: 2.11.0 → 2.13.0"),
    ],
)
def test_a_plan_names_the_field_that_changed(new: dict, reason: str) -> None:
    old = {
        "code": "1",
        "config": {"lr": 0.001},
        "parents": {"ingest": "a"},
        "inputs": {"x.jsonl": "1"},
        "libraries": {"torch": "2.11.0"},
    }
    assert explain_change(old, old | new) == reason


def test_a_list_read_back_from_a_record_is_no_change() -> None:
    assert (
        explain_change({"config": {"drop": ["a"], "x": 1}}, {"config": {"drop": ("a",), "x": 2}})
        == "changed x: 1 → 2"
    )
