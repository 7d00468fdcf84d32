"""Each weight is treated once, by the first rule that fits."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from llm_core.optim.config import GroupRule, OptimConfig
from llm_core.optim.groups import Treatment, treatments

SHAPES = {
    "embedding.weight": (51, 32),
    "blocks.0.attention.qkv.weight": (64, 32),
    "blocks.0.attention_norm.weight": (32,),
    "blocks.0.ffn.down.weight": (32, 48),
    "norm.weight": (32,),
}


def config(*rules: GroupRule) -> OptimConfig:
    return OptimConfig(lr=1.0, weight_decay=0.1, groups=rules)


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(["^embedding", "norm", "ffn", "weight", r"blocks\.0\.", "qkv"]), max_size=4
    )
)
def test_the_first_rule_that_fits_holds_and_every_weight_is_treated(patterns: list[str]) -> None:
    rules = [
        GroupRule(pattern, weight_decay=0.5 + i, lr_factor=2.0 + i)
        for i, pattern in enumerate(patterns)
    ]
    try:
        found = treatments(SHAPES, config(*rules))
    except ConfigError:  # some rule comes too late for all its weights
        return
    assert found.keys() == SHAPES.keys()
    for name, shape in SHAPES.items():
        first = next((rule for rule in rules if re.search(rule.match, name)), None)
        expected = (
            Treatment(0.1 if len(shape) == 2 else 0.0)
            if first is None
            else Treatment(first.weight_decay or 0, first.lr_factor)
        )
        assert found[name] == expected


def test_a_rule_may_leave_the_decay_as_it_is() -> None:
    found = treatments(SHAPES, config(GroupRule("blocks", lr_factor=0.5)))
    assert found["blocks.0.ffn.down.weight"] == Treatment(0.1, 0.5) and found[
        "blocks.0.attention_norm.weight"
    ] == Treatment(0.0, 0.5)


def test_a_rule_without_weights_is_refused_with_near_names() -> None:
    with pytest.raises(
        ConfigError,
        match=r"groups\[0\].match .*embeding.weight.* matches no weight; did you mean embedding",
    ):
        treatments(SHAPES, config(GroupRule("embeding.weight")))


def test_known_names_count_blocks_once() -> None:
    shapes = {f"blocks.{layer}.ffn.down.weight": (2, 2) for layer in range(999)} | {
        "norm.weight": (2,)
    }
    with pytest.raises(ConfigError, match=r"known: blocks\.N\.ffn\.down\.weight, norm\.weight$"):
        treatments(shapes, config(GroupRule("^9")))


def test_a_rule_that_comes_too_late_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"groups\[1\].match .ffn. matches only weights of earlier rules"
    ):
        treatments(SHAPES, config(GroupRule("blocks"), GroupRule("ffn")))


def test_a_broken_expression_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"match \(\(norm\) is not a regular expression"):
        GroupRule("(norm")
