"""Families are divided by their hash into training and validation of the wanted size."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from tasks.documents.config import DocumentsConfig
from tasks.documents.split import SplitRule, choose_split
from tasks.runtime.stage import StageFailure
from tests.support.data.judged_documents import family, write_judged
from tests.support.data.make_artifacts import read_documents


def test_split_holds_out_the_wanted_bytes_and_the_seed_chooses_them(parents, tmp_path) -> None:
    chosen = set()
    for seed in range(3):
        rows = read_documents(
            write_judged(parents, tmp_path / f"s{seed}", validation_frac=0.2, seed=seed)
        )
        total = sum(len(r["text"].encode()) for r in rows)
        held = sum(len(r["text"].encode()) for r in rows if r["split"] == "validation")
        assert 0.2 <= held / total < 0.25
        chosen.add(tuple(r["source_id"] for r in rows if r["split"] == "validation"))
    assert len(chosen) == 3


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 1000), min_size=2, max_size=40),
    st.floats(0.01, 0.5),
    st.integers(0, 5),
    st.randoms(),
)
def test_split_rule_ignores_order_and_leaves_something_on_both_sides(
    sizes, frac, seed, random
) -> None:
    families = {family(i): size for i, size in enumerate(sizes)}
    rule = choose_split(families, frac, seed)
    shuffled = list(families.items())
    random.shuffle(shuffled)
    assert (
        choose_split(dict(shuffled), frac, seed)
        == rule
        == SplitRule.from_payload(rule.to_payload())
    )
    sides = defaultdict(int)
    for one, size in families.items():
        sides[rule.split_of(one)] += size
    assert set(sides) == {"train", "validation"}
    # At most twice what is wanted, unless every family alone is more than that.
    assert sides["validation"] <= 2 * frac * sum(sizes) or sides["validation"] == min(sizes)
    assert len(rule.passed_over) <= 1 / frac


def test_one_book_does_not_become_the_validation_set() -> None:
    families = {family(i): 10 for i in range(100)} | {family(1000): 5000}
    for seed in range(30):
        rule = choose_split(families, 0.1, seed)
        assert rule.split_of(family(1000)) == "train"
        assert sum(rule.split_of(f) == "validation" for f in families) == 60


def test_too_little_to_divide_fails_with_a_way_out() -> None:
    with pytest.raises(StageFailure, match="need one each"):
        choose_split({family(0): 10}, 0.05, 0)
    for bad in (0.0, 0.6):
        with pytest.raises(ConfigError, match="validation_frac"):
            DocumentsConfig(validation_frac=bad)
