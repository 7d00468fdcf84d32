"""The model of any step is written while training goes on, in the numbers that are asked for."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from llm_core.config import ConfigError
from llm_core.huggingface.export import export_model, load_model
from llm_core.huggingface.files import read_tensors
from llm_core.model.adapter import AdapterConfig
from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer
from llm_core.optim.config import GroupRule
from llm_core.training.metric_log import MetricLog
from llm_core.training.train import run_in
from tasks.training.export import ExportConfig, export_checkpoint, export_folder
from tests.support.engine.small_model import make_model
from tests.support.engine.small_runs import run_config, write_config

STEPS, EVERY = 12, 4


@pytest.mark.parametrize("ema", [0.0, 0.8])
def test_a_step_is_exported_while_training_goes_on_which_ends_with_the_same_model(
    ema: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = {"num_steps": STEPS, "checkpoint_every": EVERY, "keep_models_every": EVERY}
    config = run_config(tmp_path, train={**steps, "ema": ema})
    workdir, write, reports = tmp_path / "work", MetricLog.write, list[dict[str, Any]]()
    workdir.mkdir()
    write_config(workdir / "config.json", config)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text("{}", "utf-8")

    def write_and_export(self: MetricLog, row: dict[str, Any]) -> None:
        write(self, row)
        if row["step"] == EVERY + 1 and "train_loss" in row:
            reports.append(export_checkpoint(workdir, None, tmp_path / "now", ExportConfig()))

    monkeypatch.setattr(MetricLog, "write", write_and_export)
    run_in(workdir, config)
    assert reports[0]["step"] == EVERY and reports[0]["dtype"] == "float32"
    for name in ("model.safetensors", "config.json"):
        kept = workdir / "models" / f"step-{EVERY:08d}" / name
        assert (tmp_path / "now" / name).read_bytes() == kept.read_bytes()
    assert (tmp_path / "now" / "tokenizer.json").is_file()

    half = export_checkpoint(workdir, STEPS, tmp_path / "half", ExportConfig("bfloat16"))
    assert half["dtype"] == "bfloat16" and half["step"] == STEPS
    assert 0.45 < half["stored_bytes"] / reports[0]["stored_bytes"] < 0.6
    whole, rounded = read_tensors(workdir / "model"), read_tensors(tmp_path / "half")
    assert all(torch.equal(rounded[name], whole[name].bfloat16()) for name in whole)
    assert load_model(tmp_path / "half").config == config.model
    with pytest.raises(ConfigError, match=rf"no checkpoint of step 3; there are: 8, {STEPS}"):
        export_checkpoint(workdir, 3, tmp_path / "none", ExportConfig())
    assert not (tmp_path / "none").exists()


def test_a_checkpoint_without_its_frozen_weights_is_not_exported(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    frozen = dataclasses.replace(config.optim, groups=(GroupRule("^embedding", lr_factor=0),))
    config = dataclasses.replace(config, optim=frozen)
    write_config(tmp_path / "config.json", config)
    with pytest.raises(ConfigError, match=r"train\.keep_models_every"):
        export_checkpoint(tmp_path, None, tmp_path / "out", ExportConfig())


def test_a_folder_is_written_in_other_numbers_with_what_lies_beside(tmp_path: Path) -> None:
    model = make_model(dtype=torch.float32)
    export_model(model.config, model.state_dict(), tmp_path / "model", part_bytes=4_000)
    (tmp_path / "model" / "tokenizer.json").write_text("{}", "utf-8")
    report = export_folder(tmp_path / "model", tmp_path / "half", ExportConfig("float16"))
    assert report["dtype"] == "float16"
    values = json.loads((tmp_path / "half" / "config.json").read_text("utf-8"))
    assert values["dtype"] == "float16" and values.get("torch_dtype", "float16") == "float16"
    before, after = read_tensors(tmp_path / "model"), load_file(tmp_path / "half/model.safetensors")
    assert all(torch.equal(after[name], before[name].half()) for name in before)
    names = {path.name for path in (tmp_path / "half").iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json"}
    with pytest.raises(ConfigError, match=r"exists already; name a new folder"):
        export_folder(tmp_path / "model", tmp_path / "half", ExportConfig())


def trained_beside(base: Transformer, adapter: AdapterConfig, folder: Path) -> Path:
    """Work directory of a run that has trained an adapter; the base and its tokenizer are beside
    it."""
    export_model(base.config, base.state_dict(), folder / "base")
    dtype = adapter.base_dtype  # products are in it too
    config = run_config(folder, train={"init_from": folder / "base", "dtype": dtype})
    config = dataclasses.replace(config, model=base.config, adapter=adapter)
    workdir = folder / "work"
    workdir.mkdir()
    write_config(workdir / "config.json", config)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text("{}", "utf-8")
    (folder / "base" / "tokenizer.json").write_text("{}", "utf-8")
    run_in(workdir, config)
    return workdir


@pytest.mark.parametrize(("codes", "dtype"), [("nf4", "fp32"), ("nf4", "bf16"), ("none", "bf16")])
def test_factors_beside_a_base_of_fewer_bits_are_merged_with_the_numbers_it_rests_in(
    codes: Any, dtype: Any, tmp_path: Path
) -> None:
    small = make_model().config
    base = Transformer(dataclasses.replace(small, dim=64, ffn_dim=128, num_heads=4))
    init_weights(base, 0)
    adapter = AdapterConfig("lora", rank=2, base_codes=codes, base_dtype=dtype)
    workdir = trained_beside(base, adapter, tmp_path)
    export_checkpoint(workdir, None, tmp_path / "merged", ExportConfig())
    export_checkpoint(workdir, None, tmp_path / "alone", ExportConfig(adapter="peft"))
    export_folder(tmp_path / "alone", tmp_path / "joined", ExportConfig())
    published = read_tensors(workdir / "model")
    for name in ("merged", "joined"):
        found = read_tensors(tmp_path / name)
        assert all(torch.equal(found[each], published[each]) for each in published)


def test_a_note_of_the_base_that_is_not_understood_is_refused(tmp_path: Path) -> None:
    workdir = trained_beside(make_model(), AdapterConfig("lora", rank=2), tmp_path)
    file = workdir / "model" / "adapter" / "adapter_model.safetensors"
    save_file(load_file(file), file, {"format": "pt", "base_codes": "nf3"})
    with pytest.raises(ConfigError, match=r"base_codes \(nf3\) must be none or nf4"):
        export_folder(file.parent, tmp_path / "out", ExportConfig(base=tmp_path / "base"))


def test_an_adapter_is_exported_merged_or_alone_from_a_checkpoint_or_a_folder(
    tmp_path: Path,
) -> None:
    base = make_model(dtype=torch.float32)
    adapter = AdapterConfig("lora", rank=2, targets=("qkv", "down"))
    workdir = trained_beside(base, adapter, tmp_path)
    published = read_tensors(workdir / "model")

    export_checkpoint(workdir, None, tmp_path / "merged", ExportConfig())
    alone = ExportConfig(adapter="peft")
    report = export_checkpoint(workdir, None, tmp_path / "alone", alone)
    assert report["stored_bytes"] < 0.5 * sum(each.nbytes for each in published.values())
    export_folder(workdir / "model", tmp_path / "copied", alone)
    export_folder(tmp_path / "alone", tmp_path / "joined", ExportConfig())
    for name in ("merged", "joined"):
        found = read_tensors(tmp_path / name)
        assert all(torch.equal(found[each], published[each]) for each in published)
        assert (tmp_path / name / "tokenizer.json").is_file()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        files = [tmp_path / folder / name for folder in ("alone", "copied")]
        assert files[0].read_bytes() == files[1].read_bytes()
    with pytest.raises(ConfigError, match="has none"):
        export_folder(tmp_path / "base", tmp_path / "out", alone)
    with pytest.raises(ConfigError, match=r"set\s+export\.base=FOLDER"):
        elsewhere = ExportConfig(base=tmp_path / "nowhere")
        export_folder(tmp_path / "alone", tmp_path / "out", elsewhere)
    with pytest.raises(ConfigError, match=r"is for an adapter of PEFT"):
        export_folder(tmp_path / "base", tmp_path / "out", ExportConfig(base=tmp_path / "base"))
    with pytest.raises(ConfigError, match=r"export\.dtype \(bfloat16\) is for whole models"):
        ExportConfig("bfloat16", "peft")
    about = json.loads((tmp_path / "alone/adapter_config.json").read_text("utf-8"))
    about["base_model_name_or_path"] = None
    (tmp_path / "alone/adapter_config.json").write_text(json.dumps(about), "utf-8")
    with pytest.raises(ConfigError, match="names no frozen model"):
        export_folder(tmp_path / "alone", tmp_path / "out", ExportConfig())
    (tmp_path / "alone/adapter_model.safetensors").unlink()
    with pytest.raises(ConfigError, match="only safetensors are read"):
        export_folder(tmp_path / "alone", tmp_path / "out", ExportConfig(base=tmp_path / "base"))
    named = ExportConfig(base=tmp_path / "base")
    with pytest.raises(ConfigError, match=r"export\.base \(.*base\) is for an adapter of PEFT"):
        export_folder(workdir / "model", tmp_path / "out", named)
    with pytest.raises(ConfigError, match=r"export\.base \(.*base\) is for an adapter of PEFT"):
        export_checkpoint(workdir, None, tmp_path / "out", named)

    other = {name: weight + 1 for name, weight in base.state_dict().items()}
    export_model(base.config, other, tmp_path / "base")
    with pytest.raises(ConfigError, match="is not the model that the factors were trained beside"):
        export_checkpoint(workdir, None, tmp_path / "out", ExportConfig())
    assert not (tmp_path / "out").exists()
