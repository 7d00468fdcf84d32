"""`textmill plan hardware=NAME` says what a training needs, without text and without a device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.cli import main
from flows.compose import compose
from flows.conf_files import choices
from llm_core.config import ConfigError
from llm_core.profiling import roofline
from tasks.tokenizer.encoder import load_tokenizer
from tests.support.served_models import publish_model

LARGE = [
    "model=llama_8b", "tokenizer.vocab_size=128256", "train.seq_len=8192", "train.dtype=bf16",
    "train.compile=true", "train.global_batch_sequences=64", "train.micro_batch_sequences=1",
]  # fmt: skip


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, dict[str, object]]:
    assert main(["plan", *LARGE, *words]) == 0
    shown = capsys.readouterr().out
    return shown, json.loads(shown.splitlines()[-1])


def test_a_plan_says_what_inference_needs(capsys: pytest.CaptureFixture[str]) -> None:
    shown, values = plan(capsys, "hardware=h100", "parallel=fsdp", "parallel.num_processes=8")
    served: list[dict[str, object]] = values["inference"]  # type: ignore[assignment]
    assert served[0]["weights_bytes"] == 2 * 8030261248
    assert "inference on 1 x H100" in shown


def test_a_plan_names_memory_time_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    shown, values = plan(capsys, "hardware=h100", "parallel=fsdp", "parallel.num_processes=8")
    parts = ("8.030 B weights", "optimizer state", "matrix products", "MFU, half", "device hours")
    for part in parts:
        assert part in shown
    assert values["weights"] == 8030261248
    speed = values["speed"]
    hours = speed["cost"]["device_hours"]  # type: ignore[index]
    assert speed["cost"]["money"] == pytest.approx(2.69 * hours)  # type: ignore[index]
    assert sum(v for k, v in values["memory"].items() if k != "total") == values["memory"]["total"]  # type: ignore[attr-defined, index]


@pytest.mark.parametrize(("schedule", "head"), [("1f1b", 3), ("zero_bubble_v", 0)])
def test_each_rank_of_a_pipeline_has_a_bar(
    schedule: str, head: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train.compile=false", "parallel=ddp", "parallel.num_processes=4", "parallel.pp=4"]
    words += [f"parallel.pp_schedule={schedule}"]
    shown, values = plan(capsys, "hardware=h200", *words)
    ranks: list[dict[str, int]] = values["ranks"]  # type: ignore[assignment]
    totals = [sum(each.values()) for each in ranks]
    assert max(totals) == values["memory"]["total"]  # type: ignore[index]
    lines = shown.split("rank of the pipeline")[1].split("\n\n")[0].splitlines()[2:6]
    bars = [line.split()[-1] for line in lines]
    # The last stage, with head and loss, is on the first rank of a schedule in the shape of a V.
    assert ["l" in bar for bar in bars] == [rank == head for rank in range(4)]
    assert len(bars[totals.index(max(totals))]) == 40
    assert all(
        len(bar) == pytest.approx(40 * total / max(totals), abs=0.6)
        for bar, total in zip(bars, totals, strict=True)
    )


def test_the_planner_chooses_a_layout_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    shown, values = plan(capsys, "hardware=h100", "parallel=auto", "parallel.num_processes=8")
    assert "layouts can run" in shown
    assert values["fits"]
    assert values["parallel"]["kind"] != "auto"  # type: ignore[index]
    config = compose([*LARGE, "source=sample", "hardware=h100", "parallel=auto"])
    assert config.parallel.num_processes == 8
    assert config.parallel.kind == values["parallel"]["kind"]  # type: ignore[index]
    assert config.train.micro_batch_sequences == values["micro_batch_sequences"]


def test_an_open_vocabulary_is_that_of_the_tokenizer_or_the_initial_model(tmp_path: Path) -> None:
    folder = publish_model(tmp_path / "model")
    there = load_tokenizer(folder).vocab_size

    def planned(*words: str) -> int:
        return compose(["source=sample", *words], lays_out=False).planned.model.vocab_size

    imported = ["tokenizer=import", f"tokenizer.path={folder}"]
    assert planned("tokenizer.vocab_size=5000") == 5000 != there == planned(*imported)
    assert planned("tokenizer.vocab_size=5000", "tokenizer.pad_vocab_to=64") == 5056
    padded = planned(*imported, "tokenizer.special_tokens=[new]", "tokenizer.pad_vocab_to=64")
    assert there < padded < there + 65 and padded % 64 == 0
    assert planned(f"train.init_from={folder}") == there
    grown = planned(
        f"train.init_from={folder}",
        "train.init_vocab=grow",
        *imported[:2],
        "tokenizer.special_tokens=[new]",
    )
    assert there < grown < there + 9 and grown % 8 == 0
    with pytest.raises(ConfigError, match="tokenizer.path"):
        planned("tokenizer=import")


def test_a_layout_that_is_too_large_is_said_to_lack_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown, values = plan(capsys, "hardware=a100_40", "parallel=ddp", "parallel.num_processes=8")
    assert "does not fit" in shown
    assert not values["fits"]


def test_choosing_needs_devices_to_choose_for() -> None:
    with pytest.raises(ConfigError, match="hardware=h100"):
        compose(["source=sample", "parallel=auto"])


def test_peaks_are_those_that_a_card_of_the_name_is_known_by() -> None:
    for name, card in (("h100", "H100"), ("h200", "H200"), ("b200", "B200"), ("a100", "A100")):
        hardware = compose(["source=sample", f"hardware={name}"]).hardware
        assert hardware.tflops * 1e12 == roofline.BF16_FLOPS[card]
        assert hardware.memory_gb_s * 1e9 == roofline.BYTES_PER_S[card]


@pytest.mark.parametrize(
    "name", [name for name in choices("hardware") if name not in ("none", "this")]
)
def test_every_device_is_described_soundly(name: str) -> None:
    config = compose(["source=sample", f"hardware={name}"])
    # No device multiplies for less than 50 or more than 1,000 operations per byte it can read.
    assert 50 < config.hardware.tflops * 1e3 / config.hardware.memory_gb_s < 1000
    assert bool(config.hardware.price_per_hour) == bool(config.hardware.price_source)
