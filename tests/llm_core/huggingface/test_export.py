"""An exported model computes the same logits when it is read again, here and by transformers."""

import json
import weakref
from pathlib import Path

import pytest
import torch

from llm_core.config import ConfigError
from llm_core.huggingface.export import export_model, load_model, read_weights
from tests.support.engine.small_runs import MODEL, VOCAB_SIZE
from tests.support.engine.uneven_model import make_model


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
        # Transformers takes rotary angles in float32 whatever the model's dtype: that bounds the
        # agreement.
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
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.state_dict().values(), loaded.state_dict().values(), strict=True)
    )
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
        len(parts) > 2
        and all(part.stat().st_size < 22_000 for part in parts)
        and not (tmp_path / "model.safetensors").exists()
    )
    assert all(
        torch.equal(read_weights(tmp_path, MODEL)[name], weight)
        for name, weight in model.state_dict().items()
    )
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).state_dict()
    assert torch.equal(theirs["model.norm.weight"], model.norm.weight)


def change(folder: Path, file: str = "config.json", **values: object) -> None:
    found = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(found | values))


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    export_model(MODEL, make_model(MODEL).state_dict(), tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vocab_size", 10**18),
        ("hidden_size", 10**12),
        ("intermediate_size", 10**12),
        ("num_attention_heads", 10**9),
        ("num_key_value_heads", 10**9),
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", 10**7),
        ("max_position_embeddings", 10**12),
        ("head_dim", 10**9),
    ],
)
def test_sizes_that_no_model_has_are_one_line(name: str, value: int, exported: Path) -> None:
    change(exported, **{name: value})
    with pytest.raises(
        ConfigError, match=rf"config\.json: {name} \({value:,}\) must be at most [0-9,]+; give"
    ):
        load_model(exported)


def test_layers_that_the_files_do_not_hold_are_refused_before_a_model_is_made(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llm_core.huggingface import names as huggingface
    from llm_core.quantize import model as quantize

    def made(config: object) -> None:
        raise AssertionError("a model of 4,000 layers was made")

    change(exported, num_hidden_layers=4000)
    monkeypatch.setattr(quantize, "Transformer", made)
    monkeypatch.setattr(huggingface, "Transformer", made)
    with pytest.raises(
        ConfigError, match=r"num_hidden_layers \(4,000\) is wrong, the files hold [0-9]+ tensors"
    ):
        load_model(exported)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"vocab_size": ' + "9" * 5000 + "}", "a number of more than 100 digits"),
        ('{"vocab_size": 1' + "0" * 400 + "}", "a number of more than 100 digits"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested deeper than 64 levels"),
        ("{", "Expecting"),
    ],
)
@pytest.mark.parametrize("file", ["config.json", "model.safetensors.index.json"])
def test_json_beyond_the_limits_is_one_line(
    file: str, text: str, words: str, exported: Path
) -> None:
    (exported / file).write_text(text)
    with pytest.raises(ConfigError, match=f"{file} cannot be read as JSON .*{words}") as caught:
        load_model(exported)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "name", ["../model/model.safetensors", "/etc/passwd", "sub/model.safetensors", "..", ""]
)
def test_an_index_names_files_of_its_own_folder(name: str, exported: Path) -> None:
    (exported / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"model.norm.weight": name}})
    )
    with pytest.raises(ConfigError, match=r"names .*, which is not a file of its folder"):
        load_model(exported)
