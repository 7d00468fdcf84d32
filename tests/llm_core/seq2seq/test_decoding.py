"""Decoding through caches gives what whole passes give."""

from __future__ import annotations

import pytest
import torch

from llm_core.config import ConfigError
from llm_core.seq2seq.batch import PADDING
from llm_core.seq2seq.decoding import Decoder, greedy
from tests.support.engine.small_seq2seq import KINDS, batch_of, small_model, small_pairs


@pytest.mark.parametrize("kind", KINDS)
def test_cached_passes_of_any_length_equal_the_whole_pass(kind: str) -> None:
    model = small_model(kind)
    batch = batch_of([[pair] for pair in small_pairs(3)], model.config, 12)
    # Padding of targets is not attended in rows: a decoder has none.
    inputs_BT, zeros_BT = batch.targets_BT.clamp(min=2), torch.zeros_like(batch.documents_BT)
    whole = model(batch._replace(inputs_BT=inputs_BT, documents_BT=zeros_BT))
    decoder = Decoder(model, batch.source_BS, batch.source_documents_BS, 12)
    pieces = [decoder.logits(piece) for piece in inputs_BT.split([1, 4, 1, 6], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=1e-10, atol=1e-10)
    with pytest.raises(ConfigError, match="max_tokens"):
        decoder.logits(inputs_BT[:, :1])


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_rows_end_on_their_own_and_equal_those_decoded_alone(kind: str) -> None:
    model = small_model(kind)
    batch = batch_of([[pair] for pair in small_pairs(4)], model.config, 12)
    sources = batch.source_BS, batch.source_documents_BS
    together = greedy(model, *sources, 10)
    alone = [greedy(model, *(x[n : n + 1] for x in sources), 10)[0] for n in range(4)]
    assert together == alone and all(1 not in row for row in together)


@pytest.mark.parametrize("kind", KINDS)
def test_sources_of_no_token_are_decoded_as_padding_is(kind: str) -> None:
    model = small_model(kind)
    padding_BS = torch.full((2, 3), model.config.pad_id)
    expected = greedy(model, padding_BS, torch.full_like(padding_BS, PADDING), 4)
    assert greedy(model, padding_BS[:, :0], padding_BS[:, :0], 4) == expected
