"""A token budget gives the published worth of repetition and of training longer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_core.planner.budget import (
    REREAD_WORTH,
    Corpus,
    over_train,
    token_budget,
    tokens_to_reach,
    worth_of_repeated,
)
from llm_core.planner.scaling import LAWS


@pytest.mark.parametrize(
    ("epochs", "worth"), [(0.5, 0.5), (1, 1), (2, 1.97), (4, 3.73), (8, 6.62), (16, 10.6)]
)
def test_worth_of_epochs(epochs: float, worth: float) -> None:
    """Muennighoff et al. (2023), equation 5."""
    assert worth_of_repeated(1e9, epochs * 1e9) / 1e9 == pytest.approx(worth, rel=2e-3)


@given(st.floats(1e6, 1e12), st.floats(1.0, 1e4))
def test_repetition_adds_less_and_less_up_to_a_limit(unique: float, epochs: float) -> None:
    worth = worth_of_repeated(unique, unique * epochs)
    assert unique * 0.999 <= worth <= unique * min(epochs, 1 + REREAD_WORTH) * 1.001
    assert worth_of_repeated(unique, unique * (epochs + 1)) >= worth


def test_over_training_of_13_billion_weights() -> None:
    """Sardana et al. (2024), section 3: as good as a Chinchilla of 13 B, 2 T tokens to answer: 7 B
    weights, 17 % and 1.7e22 operations less."""
    law = LAWS["sardana"]
    tokens = law.tokens_for(13e9)
    found = over_train("sardana", 13e9, tokens, 2e12)
    assert found.num_weights == pytest.approx(7.0e9, rel=0.02)
    assert found.num_tokens == pytest.approx(1.24e12, rel=0.02)
    assert found.saved_frac == pytest.approx(0.174, abs=0.003)
    planned = 6 * 13e9 * tokens + 2 * 13e9 * 2e12
    assert found.saved_frac * planned == pytest.approx(1.69e22, rel=0.02)
    other = over_train("besiroglu", 13e9, LAWS["besiroglu"].tokens_for(13e9), 2e12)
    assert other.saved_frac == pytest.approx(0.285, abs=0.01)


@pytest.mark.parametrize("law", ["besiroglu", "sardana"])
def test_without_answers_the_best_model_is_that_of_the_training(law: str) -> None:
    fit = LAWS[law]
    found = over_train(law, 1e9, fit.tokens_for(1e9), 0.0)
    assert found.num_weights == pytest.approx(1e9, rel=1e-3)
    assert found.saved_frac == pytest.approx(0, abs=1e-6)
    assert tokens_to_reach(fit, 1e9, fit.loss(1e9, 5e10)) == pytest.approx(5e10)
    assert tokens_to_reach(fit, 1e3, fit.loss(1e9, 5e10)) == float("inf")


def test_a_budget_compares_with_rules_and_the_corpus() -> None:
    found = token_budget(10**9, 4 * 10**10, Corpus(10**10, "shards"), 1e12)
    assert (found.per_weight, found.rule_tokens, found.epochs) == (40, 20e9, 4)
    assert found.fitted_low < found.fitted_tokens < found.fitted_high
    assert found.effective_tokens == pytest.approx(3.73e10, rel=2e-3)
    assert [each.law for each in found.over_trained] == ["besiroglu", "sardana"]
    assert all(each.num_weights < 10**9 < each.num_tokens for each in found.over_trained)
    unknown = token_budget(10**9, 4 * 10**10)
    assert unknown.epochs is None and unknown.over_trained == ()
