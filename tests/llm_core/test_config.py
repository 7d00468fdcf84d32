"""The strict builder: unknown keys, wrong types and broken rules are one clear error each."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_core.config import ConfigError, build, check_bounds, to_plain


@dataclass(frozen=True)
class Inner:
    num_perms: int = 112
    ratio: float = 0.5

    def __post_init__(self) -> None:
        if self.num_perms % 2:
            raise ConfigError(
                f"num_perms ({self.num_perms}) must be even; try {self.num_perms + 1}"
            )


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner = Inner()
    kind: Literal["bpe", "unigram"] = "bpe"
    path: Path | None = None
    sizes: tuple[int, ...] = ()
    flag: bool = False
    table: dict[str, float] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"name": "x", "knid": "bpe"}, "knid is not a known setting; did you mean kind?"),
        (
            {"name": "x", "inner": {"num_prems": 3}},
            "inner.num_prems is not a known setting; did you mean num_perms?",
        ),
        (
            {"name": "x", "inner": {"num_perms": 2.5}},
            r"inner.num_perms \(2.5\) must be a whole number",
        ),
        ({"name": "x", "inner": {"num_perms": True}}, "must be a whole number"),
        ({"name": "x", "inner": {"num_perms": 3}}, r"inner\.num_perms \(3\) must be even; try 4"),
        ({"name": "x", "kind": "bpee"}, r"kind \(bpee\) is not a choice; did you mean bpe"),
        ({"name": "x", "sizes": 3}, "sizes .* must be a list"),
        ({"name": "x", "sizes": ["a"]}, r"sizes\[0\] .* must be a whole number"),
        ({"name": "x", "flag": "yes"}, "flag .* must be true or false"),
        ({"name": None}, "name must not be null"),
        ({"name": "x", "inner": 4}, "inner must be a group of values"),
        ({"name": "x", "table": {"a": "b"}}, "table.a .* must be a finite number"),
        ({}, "name has no value; set it"),
    ],
)
def test_bad_config_names_place_rule_and_way_out(mapping: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(Outer, mapping)


INTS = st.integers(-(2**63) + 2, 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 10**400])
def test_what_is_no_finite_number_is_refused(number: float) -> None:
    with pytest.raises(ConfigError, match=r"table\.a .* must be a finite number"):
        build(Outer, {"name": "x", "table": {"a": number}})


@pytest.mark.parametrize("number", [2**63, -(2**63), 1e30])
def test_whole_number_beyond_64_bits_is_refused(number: float) -> None:
    with pytest.raises(ConfigError, match=r"sizes\[0\] .* at most 64 bits"):
        build(Outer, {"name": "x", "sizes": [number]})


@given(
    st.builds(
        Outer,
        name=st.text(),
        inner=st.builds(Inner, num_perms=INTS.map(lambda n: n // 2 * 2), ratio=FLOATS),
        kind=st.sampled_from(["bpe", "unigram"]),
        path=st.none() | st.just(Path("a/b")),
        sizes=st.lists(INTS).map(tuple),
        flag=st.booleans(),
        table=st.dictionaries(st.text(), FLOATS),
    )
)
def test_plain_form_builds_back_to_the_same_config(config: Outer) -> None:
    assert build(Outer, to_plain(config)) == config


def test_whole_number_written_as_float_is_a_count() -> None:
    assert build(Inner, {"num_perms": 1e3}).num_perms == 1000


@dataclass(frozen=True)
class Bounded:
    frac: float = 0.5
    count: int | None = None

    def __post_init__(self) -> None:
        check_bounds(self, frac=(0, 1), count=(1, None))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"frac": 1.5}, r"^frac \(1\.5\) must be from 0 to 1; the default is 0\.5$"),
        ({"count": 0}, r"^count \(0\) must be at least 1; the default is null$"),
    ],
)
def test_a_value_outside_of_its_bounds_is_named_with_them(values: dict, message: str) -> None:
    assert Bounded(frac=0, count=None) and Bounded(frac=1, count=1)
    with pytest.raises(ConfigError, match=message):
        Bounded(**values)
