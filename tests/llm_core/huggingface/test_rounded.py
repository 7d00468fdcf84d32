"""A folder with rounded weights holds the model that was written, and refuses anything else."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.huggingface.export import export_model, load_model, read_config
from llm_core.huggingface.rounded import write_rounded
from llm_core.model.transformer import Transformer
from llm_core.quantize.formats import FORMATS, Format, restore
from llm_core.quantize.layers import RoundedEmbedding, RoundedLinear
from llm_core.quantize.model import num_bytes, round_model, rounded_weights
from tests.support.engine.published_models import CASES, random_ids, reference
from tests.support.engine.small_model import make_model


def write(folder: Path, model: Transformer, source: Path, **about: Any) -> None:
    write_rounded(model, json.loads((source / "config.json").read_text("utf-8")), folder, **about)


def same_weights(found: Transformer, expected: Transformer) -> bool:
    weights = [{n: w.tensors() for n, w in rounded_weights(m).items()} for m in (found, expected)]
    plain = [model.state_dict() for model in (found, expected)]
    return (
        weights[0].keys() == weights[1].keys()
        and plain[0].keys() == plain[1].keys()
        and all(torch.equal(t, plain[0][name]) for name, t in plain[1].items())
        and all(
            torch.equal(tensor.float(), weights[0][name][part].float())
            for name, parts in weights[1].items()
            for part, tensor in parts.items()
        )
    )


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("case", CASES)
def test_a_written_model_of_every_family_comes_back_bit_by_bit(
    case: str, format: Format, tmp_path: Path
) -> None:
    reference(case, tmp_path / "theirs")
    model, ids_BT = load_model(tmp_path / "theirs", weights=format), random_ids()
    write(tmp_path / "a", model, tmp_path / "theirs")
    loaded = load_model(tmp_path / "a")
    assert same_weights(loaded, model) and loaded.config == model.config
    assert torch.equal(loaded(ids_BT), model(ids_BT))
    # Also after the processor ordered the numbers, and in parts.
    write(tmp_path / "b", loaded, tmp_path / "theirs", part_bytes=4000)
    assert len(list((tmp_path / "b").glob("*.safetensors"))) > 2
    assert same_weights(load_model(tmp_path / "b"), model)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("case", ["llama 3 rope", "qwen 2", "gpt 2"])
def test_a_rounded_model_computes_with_the_weights_that_it_stands_for(
    case: str, format: Format, tmp_path: Path
) -> None:
    reference(case, tmp_path)
    rounded, plain = (
        load_model(tmp_path, torch.float64, weights=format),
        load_model(tmp_path, torch.float64),
    )
    state, names = plain.state_dict(), rounded_weights(rounded)
    for name, weight in names.items():
        state[name] = restore(weight, torch.float64)
    if plain.config.tied_embeddings:
        state["head.weight"] = state["embedding.weight"]
    plain.load_state_dict(state)
    ids_BT = random_ids()
    assert float((rounded(ids_BT) - plain(ids_BT)).abs().max()) < 1e-12
    in_float32 = load_model(tmp_path, weights=format)(ids_BT)
    assert float((in_float32 - plain(ids_BT)).norm() / plain(ids_BT).norm()) < 0.1


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("format", FORMATS)
def test_rounding_in_memory_and_on_the_way_from_a_folder_agree(
    format: Format, tied: bool, tmp_path: Path
) -> None:
    model = make_model(dtype=torch.float32, tied=tied)
    export_model(model.config, model.state_dict(), tmp_path)
    found = load_model(tmp_path, weights=format)
    assert same_weights(round_model(model, format), found)
    assert isinstance(found.head, RoundedLinear)
    assert isinstance(found.embedding, RoundedEmbedding)
    assert found.head.format == found.embedding.table.format == "int8"
    assert (found.embedding.table is found.head) == tied


def test_bytes_of_a_model_count_every_weight_once() -> None:
    model = make_model(dtype=torch.float32)
    plain = sum(p.numel() for p in model.parameters()) * 4
    assert num_bytes(model) == plain
    matrices = {n: p.shape for n, p in model.named_parameters() if p.ndim == 2}
    expected = plain - sum(4 * n * k for n, k in matrices.values())
    expected += sum(n * (k + 4) for n, k in matrices.values())
    assert num_bytes(round_model(model, "int8")) == expected


def test_tensors_are_placed_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from llm_core.huggingface import names

    model = make_model(dtype=torch.float32, tied=False)
    export_model(model.config, model.state_dict(), tmp_path)
    made: list[Any] = []
    get = names.Made.__getitem__

    def watched(self: Any, name: str) -> Tensor:
        assert sum(one() is not None for one in made) == 0, "an earlier tensor is still held"
        found = get(self, name).clone()
        made.append(weakref.ref(found))
        return found

    monkeypatch.setattr(names.Made, "__getitem__", watched)
    load_model(tmp_path, torch.bfloat16)
    load_model(tmp_path, torch.bfloat16, weights="int4")
    assert len(made) > 20


def change_config(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    found = json.loads(file.read_text("utf-8"))
    found["quantization_config"] |= values
    file.write_text(json.dumps(found), "utf-8")


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


QKV = "blocks.0.attention.qkv.weight"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "another version": (lambda f: change_config(f, version=2), r"version \(2\) must be 1"),
    "no formats": (lambda f: change_config(f, formats=[]), "formats must map names"),
    "an unknown format": (lambda f: change_config(f, formats={QKV: "int3"}), f"{QKV}: int3"),
    "not a matrix": (lambda f: change_config(f, formats={"norm.weight": "int8"}), "norm.weight"),
    "a format that is not that of the files": (
        lambda f: change_config(f, formats={QKV: "int8"}),
        "is missing|is not part",
    ),
    "an embedding in 4 bits": (
        lambda f: change_config(f, formats={"embedding.weight": "int4"}),
        "embedding in int4",
    ),
    "a missing scale": (
        lambda f: change_tensors(f, lambda t: t.pop(f"{QKV}.scale")),
        f"{QKV}.scale is missing",
    ),
    "scales of other rows": (
        lambda f: change_tensors(f, lambda t: t.update({f"{QKV}.scale": torch.ones(3)})),
        r"scale is \(3,\) in float32",
    ),
    "numbers in another dtype": (
        lambda f: change_tensors(
            f, lambda t: t.update({f"{QKV}.numbers": t[f"{QKV}.numbers"].to(torch.int16)})
        ),
        r"numbers is .* in int16",
    ),
    "a tensor too many": (
        lambda f: change_tensors(f, lambda t: t.update({"more": torch.ones(3)})),
        "more is not part",
    ),
}


@pytest.mark.parametrize(("damage", "line"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_folder_of_rounded_weights_is_refused_in_one_line(
    damage: Callable[[Path], object], line: str, tmp_path: Path
) -> None:
    model = make_model(dtype=torch.float32)
    export_model(model.config, model.state_dict(), tmp_path / "plain")
    write(tmp_path / "int8", round_model(model, "int8"), tmp_path / "plain")
    damage(tmp_path / "int8")
    with pytest.raises(ConfigError, match=line) as found:
        load_model(tmp_path / "int8")
    assert "\n" not in str(found.value) and str(tmp_path) in str(found.value)


def test_rounded_weights_are_not_rounded_again_nor_trained(tmp_path: Path) -> None:
    model = make_model(dtype=torch.float32)
    export_model(model.config, model.state_dict(), tmp_path / "plain")
    write(tmp_path / "int8", round_model(model, "int8"), tmp_path / "plain")
    with pytest.raises(ConfigError, match="are not rounded again to int4"):
        load_model(tmp_path / "int8", weights="int4")
    with pytest.raises(ConfigError, match="give the original model"):
        read_config(tmp_path / "int8")


def test_a_model_of_experts_is_not_rounded(tmp_path: Path) -> None:
    reference("mixtral", tmp_path)
    with pytest.raises(ConfigError, match="weights are not rounded to int8 in a model of experts"):
        load_model(tmp_path, weights="int8")
