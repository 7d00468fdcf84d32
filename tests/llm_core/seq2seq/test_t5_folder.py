"""T5 folders are read and written so that both libraries compute the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from llm_core.config import ConfigError
from llm_core.seq2seq.decoding import greedy
from llm_core.seq2seq.positions import buckets
from llm_core.seq2seq.t5_folder import load_t5, their_name, write_t5
from tests.support.engine.small_seq2seq import batch_of, small_model, small_pairs

T5 = pytest.mark.parametrize("kind", ["t5", "t5_v1_1"])


@pytest.fixture(scope="module")
def transformers():  # type: ignore[no-untyped-def]
    return pytest.importorskip("transformers")


@T5
def test_a_written_folder_has_the_same_scores_gradients_and_decoded_ids_there(
    kind: str, tmp_path: Path, transformers
) -> None:
    write_t5(small_model(kind).float(), tmp_path)
    ours = load_t5(tmp_path)
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    batch = batch_of([[pair] for pair in small_pairs(4)], ours.config, 20)
    mask = (batch.source_documents_BS >= 0).long()
    answer = theirs(
        input_ids=batch.source_BS, attention_mask=mask, labels=batch.targets_BT, use_cache=False
    )
    counted = batch.targets_BT >= 0
    torch.testing.assert_close(ours(batch)[counted], answer.logits[counted], rtol=1e-5, atol=1e-5)
    loss = ours(batch, losses=True)[0] / counted.sum()
    loss.backward()
    answer.loss.backward()
    found = dict(theirs.named_parameters())
    for name, weight in ours.named_parameters():
        other = found[their_name(ours.config, name)]
        torch.testing.assert_close(weight.grad, other.grad, rtol=1e-4, atol=1e-5)
    # Their cache has room for as many layers as the encoder has, and this decoder has more.
    plain = {"do_sample": False, "num_beams": 1, "use_cache": False}
    written = theirs.generate(batch.source_BS, attention_mask=mask, max_new_tokens=8, **plain)
    rows = [[*row, 1] for row in written[:, 1:].tolist()]
    expected = [row[: row.index(1)] for row in rows]
    assert greedy(ours, batch.source_BS, batch.source_documents_BS, 8) == expected


@T5
def test_a_folder_of_the_other_library_is_read_and_written_back_to_the_bit(
    kind: str, tmp_path: Path, transformers
) -> None:
    shape = {"d_model": 16, "d_kv": 6, "d_ff": 24, "num_heads": 2, "num_layers": 2}
    own = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    config = transformers.T5Config(vocab_size=40, **shape, **(own if kind == "t5_v1_1" else {}))
    theirs = transformers.T5ForConditionalGeneration(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_t5(tmp_path / "theirs")
    batch = batch_of([[pair] for pair in small_pairs(3)], ours.config, 12)
    logits = theirs(
        input_ids=batch.source_BS,
        attention_mask=(batch.source_documents_BS >= 0).long(),
        decoder_input_ids=batch.inputs_BT,
    ).logits
    counted = batch.targets_BT >= 0
    torch.testing.assert_close(ours(batch)[counted], logits[counted], rtol=1e-5, atol=1e-5)
    write_t5(ours, tmp_path / "ours")
    again = load_t5(tmp_path / "ours")
    assert again.config == ours.config
    for name, weight in ours.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])


def test_buckets_are_those_of_the_other_library() -> None:
    attention = pytest.importorskip("transformers.models.t5.modeling_t5").T5Attention
    distances = torch.arange(-300, 300)
    for both_ways in (True, False):
        theirs = attention._relative_position_bucket(distances, both_ways, 32, 128)
        assert torch.equal(buckets(distances, both_ways, 32, 128), theirs)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", "bart"),
        ("feed_forward_proj", "gated-silu"),
        ("feed_forward_proj", ["relu"]),
        ("decoder_start_token_id", 5),
        ("d_model", "wide"),
        ("num_heads", None),
        ("vocab_size", 41),
    ],
)
def test_a_folder_that_is_not_t5_is_refused_by_the_field(
    field: str, value: object, tmp_path: Path
) -> None:
    write_t5(small_model("t5").float(), tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | {field: value}))
    named = "shared.weight" if field == "vocab_size" else field
    with pytest.raises(ConfigError, match=named):
        load_t5(tmp_path)


def test_missing_and_foreign_tensors_are_refused_by_name(tmp_path: Path) -> None:
    write_t5(small_model("t5").float(), tmp_path)
    file = tmp_path / "model.safetensors"
    # Files are mapped: what is written over needs a copy.
    weights = {name: weight.clone() for name, weight in load_file(file).items()}
    save_file(weights | {"adapter.weight": torch.ones(2)}, file)
    with pytest.raises(ConfigError, match=r"adapter\.weight"):
        load_t5(tmp_path)
    del weights["encoder.final_layer_norm.weight"]
    save_file(weights, file)
    with pytest.raises(ConfigError, match=r"encoder\.final_layer_norm"):
        load_t5(tmp_path)
    with pytest.raises(ConfigError, match="transformer"):
        write_t5(small_model("transformer"), tmp_path)
