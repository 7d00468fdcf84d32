"""A ring holds the tokens of the window and gives the logits of the whole sequence."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.infer.cache.ring import RingCache, WindowPassed
from llm_core.infer.cache.rows import decode, prefill, ring_cache, static_cache
from llm_core.model.transformer import Transformer
from tests.support.engine.small_model import make_model, random_ids

WINDOW = 5


def windowed(
    num_kv_heads: int = 2, window: int = WINDOW, full: tuple[int, ...] = ()
) -> Transformer:
    plain = make_model(num_kv_heads)
    config = dataclasses.replace(plain.config, window=window, full_layers=full, qkv_bias=True)
    model = Transformer(config).double().eval()
    model.load_state_dict(plain.state_dict(), strict=False)
    return model


def logits_after(model: Transformer, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([tokens]))[0, -1]


class Rows:
    """Rows of a ring beside the tokens that they should have."""

    def __init__(self, model: Transformer, tokens: list[list[int]], cache: RingCache) -> None:
        self.model, self.tokens, self.cache = model, tokens, cache

    def extend(self, new: list[list[int]]) -> None:
        with torch.no_grad():
            ids_BT = torch.tensor(new)
            hidden = self.model.hidden(ids_BT, self.cache.positions(len(new[0])), self.cache)
            found = self.model.logits(hidden[:, -1])
        for row, more in enumerate(new):
            self.tokens[row] = self.tokens[row] + more
            assert (found[row] - logits_after(self.model, self.tokens[row])).abs().max() <= 1e-10


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_whatever_is_added_forked_and_taken_back_logits_are_those_of_the_whole_sequence(
    data: st.DataObject,
) -> None:
    """Or it is refused, and then nothing has changed."""
    full = data.draw(st.sampled_from([(), (0,), (1, 2)]))
    window = data.draw(st.sampled_from([1, 3, 5, 40]))
    model = windowed(data.draw(st.sampled_from([1, 2, 4])), window, full)
    prompts = [random_ids(data.draw(st.integers(1, 12)), seed=row) for row in range(2)]
    cache = ring_cache(model, [40, 40], 0)
    prefill(model, prompts, cache)
    rows = Rows(model, prompts, cache)
    for step in range(data.draw(st.integers(1, 6))):
        what = data.draw(st.sampled_from(["one", "several", "fork", "back"]))
        if what == "fork":
            chosen = [data.draw(st.integers(0, 1)) for _ in range(2)]
            twin = rows.cache.fork(chosen)
            other = Rows(model, [list(rows.tokens[row]) for row in chosen], twin)
            rows.extend([[7], [8]])
            rows = other
        elif what == "back":
            lengths = [data.draw(st.integers(1, len(tokens))) for tokens in rows.tokens]
            try:
                rows.cache.truncate(lengths)
            except WindowPassed:
                continue
            rows.tokens = [t[:n] for t, n in zip(rows.tokens, lengths, strict=True)]
        elif max(map(len, rows.tokens)) < 33:
            count = 1 if what == "one" else data.draw(st.integers(2, 7))
            rows.extend([random_ids(count, seed=step + 10 * row) for row in range(2)])
    rows.extend([[3], [4]])


def test_memory_is_that_of_the_window_and_grows_with_full_layers_alone() -> None:
    kept = {}
    for full in ((), (1,)):
        model = windowed(full=full)
        for capacity in (20, 40):
            cache = ring_cache(model, [capacity], 0)
            prefill(model, [random_ids(16, 0)], cache)
            decode(model, [1], cache)
            kept[full, capacity] = cache.num_bytes
    per_token = 2 * 2 * 8 * 8
    assert kept[(), 20] == kept[(), 40] == 3 * WINDOW * per_token + 4
    assert kept[(1,), 20] == (2 * WINDOW + 20) * per_token + 4
    assert kept[(1,), 40] - kept[(1,), 20] == 20 * per_token
    assert static_cache(windowed(), [40], 0).num_bytes == 3 * 40 * per_token + 4


def test_what_has_left_the_window_is_not_taken_back_and_a_last_pass_is() -> None:
    model, tokens = windowed(), random_ids(20, seed=4)
    cache = ring_cache(model, [20], 10)
    prefill(model, [tokens[:12]], cache)
    rows = Rows(model, [tokens[:12]], cache)
    rows.extend([tokens[12:16]])
    with pytest.raises(WindowPassed, match="row 0 cannot go back from 12 to 10 tokens"):
        cache.truncate([10])
    assert cache.lengths_B.tolist() == [16]
    cache.truncate([13])
    rows.tokens = [rows.tokens[0][:13]]
    rows.extend([[9]])
