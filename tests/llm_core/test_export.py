"""An exported model computes the same logits when it is read again, here and by transformers."""

import weakref
from pathlib import Path

import pytest
import torch

from llm_core.export import export_model, load_model, read_weights
from tests.llm_core.model.test_transformer import make_model
from tests.llm_core.small_runs import MODEL, VOCAB_SIZE


@pytest.mark.parametrize("tied", [True, False])
def test_hugging_face_computes_the_same_logits(tmp_path: Path, tied: bool) -> None:
    import dataclasses

    from transformers import AutoModelForCausalLM

    config = dataclasses.replace(MODEL, tied_embeddings=tied, rope_theta=5000.0)
    model = make_model(config)
    export_model(config, model.state_dict(), tmp_path, eos_id=0)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids_BT = torch.randint(0, VOCAB_SIZE, (2, 60), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = model(ids_BT)
        assert logits.std() > 0.1
        torch.testing.assert_close(theirs(ids_BT).logits, logits, atol=1e-6, rtol=1e-6)
        # Transformers takes rotary angles in float32 whatever the model's dtype: that bounds the agreement.
        double = load_model(tmp_path, torch.float64)(ids_BT)
        torch.testing.assert_close(theirs.double()(ids_BT).logits, double, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_loading_an_export_gives_the_model_back(tmp_path: Path, tied: bool) -> None:
    import dataclasses

    model = make_model(dataclasses.replace(MODEL, tied_embeddings=tied))
    export_model(model.config, model.state_dict(), tmp_path / "a")
    loaded = load_model(tmp_path / "a")
    assert loaded.config == model.config
    assert (loaded.head.weight is loaded.embedding.weight) == tied
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), loaded.state_dict().values(), strict=True))
    export_model(loaded.config, loaded.state_dict(), tmp_path / "b")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_weights_are_read_one_at_a_time_in_the_numbers_of_the_file(tmp_path: Path) -> None:
    model = make_model(MODEL).to(torch.bfloat16)
    export_model(MODEL, model.state_dict(), tmp_path)
    weights = read_weights(tmp_path, MODEL)
    assert dict(weights.items()).keys() == model.state_dict().keys()
    assert all(torch.equal(weights[name], weight) for name, weight in model.state_dict().items())
    made = weakref.ref(weights["blocks.0.ffn.gate_up.weight"])
    assert made() is None  # nothing but the caller holds what was joined


def test_a_large_model_is_written_in_parts_that_are_read_as_one(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = make_model(MODEL)
    export_model(MODEL, model.state_dict(), tmp_path, part_bytes=20_000)
    parts = sorted(tmp_path.glob("*.safetensors"))
    assert (
        len(parts) > 2 and all(part.stat().st_size < 22_000 for part in parts) and not (tmp_path / "model.safetensors").exists()
    )
    assert all(torch.equal(read_weights(tmp_path, MODEL)[name], weight) for name, weight in model.state_dict().items())
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).state_dict()
    assert torch.equal(theirs["model.norm.weight"], model.norm.weight)
