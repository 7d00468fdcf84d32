"""Encoder–decoder models compute what their definitions say, whatever rows they stand in."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from llm_core.config import ConfigError
from llm_core.seq2seq.batch import PADDING, Seq2SeqBatch
from llm_core.seq2seq.config import Seq2SeqConfig
from llm_core.seq2seq.dropout import dropout_of
from llm_core.seq2seq.model import EncoderDecoder
from llm_core.seq2seq.positions import sinusoids
from tests.support.engine.small_seq2seq import (
    KINDS,
    batch_of,
    small_config,
    small_model,
    small_pairs,
)

TOLERANCE = 1e-10
kinds = pytest.mark.parametrize("kind", KINDS)


def rows_of(batch: Seq2SeqBatch, rows: slice) -> Seq2SeqBatch:
    return Seq2SeqBatch(*(part[rows] for part in batch))


def gradients(model: EncoderDecoder, batches: list[Seq2SeqBatch], seed: int | None) -> list[Tensor]:
    model.zero_grad()
    for batch in batches:
        model(batch, seed, losses=True)[0].backward()
    return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


@kinds
def test_a_padded_pair_has_the_scores_it_has_alone(kind: str) -> None:
    model, pairs = small_model(kind), small_pairs(4)
    padded = model(batch_of([[pair] for pair in pairs], model.config))
    for row, pair in enumerate(pairs):
        source, target = (torch.from_numpy(side)[None] for side in pair)
        batch = batch_of([[pair]], model.config)
        alone = model(
            Seq2SeqBatch(
                source,
                batch.inputs_BT[:, : target.shape[1]],
                target,
                torch.zeros_like(source),
                torch.zeros_like(target),
                batch.numbers_B,
            )
        )
        torch.testing.assert_close(
            padded[row, : target.shape[1]], alone[0], rtol=TOLERANCE, atol=TOLERANCE
        )


@kinds
def test_packed_pairs_have_the_losses_and_gradients_they_have_in_rows_of_their_own(
    kind: str,
) -> None:
    model, pairs = small_model(kind), small_pairs(4, longest=5)
    packed = batch_of([pairs[:3], pairs[3:]], model.config)
    alone = batch_of([[pair] for pair in pairs], model.config)
    for one, other in zip(
        gradients(model, [packed], None), gradients(model, [alone], None), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=TOLERANCE, atol=TOLERANCE)
    total = [model(batch, losses=True)[0].item() for batch in (packed, alone)]
    assert total[0] == pytest.approx(total[1], rel=TOLERANCE)


@kinds
def test_gradients_of_rows_in_pieces_add_up_to_those_of_all_with_dropout(kind: str) -> None:
    model = small_model(kind, dropout=0.3)
    batch = batch_of([[pair] for pair in small_pairs(5)], model.config)
    pieces = [rows_of(batch, slice(0, 2)), rows_of(batch, slice(2, 5))]
    whole = gradients(model, [batch], 11)
    for one, other in zip(whole, gradients(model, pieces, 11), strict=True):
        torch.testing.assert_close(one, other, rtol=TOLERANCE, atol=TOLERANCE)
    assert any(
        not torch.equal(one, other)
        for one, other in zip(whole, gradients(model, [batch], None), strict=True)
    )


@kinds
def test_dropout_does_not_depend_on_the_length_of_rows(kind: str) -> None:
    model, rows = small_model(kind, dropout=0.3), [[pair] for pair in small_pairs(3)]
    losses = [model(batch_of(rows, model.config, n), 5, losses=True)[0].item() for n in (12, 24)]
    assert losses[0] == pytest.approx(losses[1], rel=TOLERANCE)


def test_dropout_keeps_the_share_and_the_mean_at_each_site() -> None:
    drop = dropout_of(0.25, 0, torch.arange(8), 50)
    assert drop is not None
    first, second = (drop(torch.ones(8, 50, 64), site) for site in (1, 2))
    assert (first == 0).float().mean().item() == pytest.approx(0.25, abs=0.01)
    assert first.mean().item() == pytest.approx(1, abs=0.02)
    assert ((first == 0) & (second == 0)).float().mean().item() == pytest.approx(1 / 16, abs=0.005)


@kinds
def test_an_empty_source_gives_finite_scores_and_gradients(kind: str) -> None:
    model = small_model(kind)
    batch = batch_of([[pair] for pair in small_pairs(2)], model.config)
    nothing = torch.full_like(batch.source_documents_BS, PADDING)
    batch = batch._replace(source_documents_BS=nothing)
    assert all(grad.isfinite().all() for grad in gradients(model, [batch], None))


@kinds
def test_a_later_target_changes_no_earlier_score(kind: str) -> None:
    model = small_model(kind)
    batch = batch_of([[pair] for pair in small_pairs(2, longest=4)], model.config)
    before = model(batch)
    changed = batch.inputs_BT.clone()
    changed[:, 3] = 9
    after = model(batch._replace(inputs_BT=changed))
    assert torch.equal(before[:, :3], after[:, :3])


@kinds
def test_counts_are_those_of_the_model_and_its_products(kind: str) -> None:
    model = small_model(kind)
    assert model.config.num_parameters() == sum(weight.numel() for weight in model.parameters())
    batch = batch_of([[pair] for pair in small_pairs(1)], model.config, 12)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(batch)
    assert 3 * counter.get_total_flops() == model.config.training_flops(12, 12)


def test_t5_small_and_base_have_their_published_sizes() -> None:
    small = Seq2SeqConfig(32128, 512, 6, 6, 8, 64, 2048)
    v1_1 = Seq2SeqConfig(32128, 512, 8, 8, 6, 64, 1024, "t5", "geglu", False, False)
    assert small.num_parameters() == 60_506_624
    assert v1_1.num_parameters() == 76_961_152


def test_the_original_transformer_computes_what_torch_does() -> None:
    config = small_config("transformer", head_dim=8, dropout=0.0)
    model = small_model("transformer", head_dim=8)
    theirs = nn.Transformer(
        config.dim,
        config.num_heads,
        config.num_encoder_layers,
        config.num_decoder_layers,
        config.ffn_dim,
        dropout=0.0,
        layer_norm_eps=config.norm_eps,
        batch_first=True,
    ).double()
    theirs.encoder.norm = theirs.decoder.norm = None
    with torch.no_grad():
        for ours, layers in (
            (model.encoder, theirs.encoder.layers),
            (model.decoder, theirs.decoder.layers),
        ):
            for block, layer in zip(ours.blocks, layers, strict=True):
                parts = [(block.attention, layer.self_attn)]
                norms = [(block.attention_norm, layer.norm1)]
                if ours.in_decoder:
                    parts.append((block.cross, layer.multihead_attn))
                    norms.append((block.cross_norm, layer.norm2))
                norms.append((block.ffn_norm, layer.norm3 if ours.in_decoder else layer.norm2))
                for own, other in parts:
                    other.in_proj_weight.copy_(
                        torch.cat([own.q.weight, own.k.weight, own.v.weight])
                    )
                    other.out_proj.weight.copy_(own.out.weight)
                    other.in_proj_bias.zero_()
                    other.out_proj.bias.zero_()
                for own, other in [
                    *norms,
                    (block.ffn.up, layer.linear1),
                    (block.ffn.down, layer.linear2),
                ]:
                    other.load_state_dict(own.state_dict())
    batch = batch_of([[pair] for pair in small_pairs(3)], config, 12)
    table = sinusoids(torch.arange(12)[None], config.dim, torch.float64)
    stream = [
        model.embedding(ids) * config.dim**0.5 + table for ids in (batch.source_BS, batch.inputs_BT)
    ]
    hidden = theirs(
        *stream,
        tgt_mask=torch.ones(12, 12, dtype=torch.bool).triu(1),
        src_key_padding_mask=batch.source_documents_BS == PADDING,
        memory_key_padding_mask=batch.source_documents_BS == PADDING,
    )
    counted = batch.documents_BT != PADDING
    torch.testing.assert_close(
        model(batch)[counted], model.head(hidden)[counted], rtol=1e-10, atol=1e-10
    )


def test_sinusoids_are_those_of_the_paper() -> None:
    table = sinusoids(torch.tensor([[0, 7]]), 4, torch.float64)[0]
    angles = torch.tensor([7.0, 7.0 / 100.0], dtype=torch.float64)
    expected = torch.stack([angles.sin(), angles.cos()], dim=1).flatten()
    torch.testing.assert_close(table[1], expected)
    assert table[0].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"dim": 0}, "dim"),
        ({"kind": "bert"}, "kind"),
        ({"ffn": "gelu"}, "ffn"),
        ({"dropout": 1.0}, "dropout"),
        ({"pad_id": 40}, "pad_id"),
        ({"num_buckets": 7}, "num_buckets"),
        ({"max_distance": 4}, "max_distance"),
        ({"kind": "transformer"}, "scaled_head"),
        ({"kind": "transformer", "scaled_head": False, "dim": 15}, "dim"),
    ],
)
def test_a_shape_that_no_model_has_is_refused_by_name(changes: dict, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        small_config("t5", **changes)
