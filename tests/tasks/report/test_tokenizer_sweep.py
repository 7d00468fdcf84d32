"""A sweep's page says which vocabulary costs least per byte of text, and why."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from llm_core.model.config import ModelConfig
from tasks.report.tokenizer_sweep import candidates, recommend, write_sweep
from tasks.runtime.artifact import Artifact

MODEL = ModelConfig(
    vocab_size=0, dim=256, num_layers=4, num_heads=4, num_kv_heads=4, ffn_dim=1024, max_seq_len=256
)


def artifact(size: int, per_token: float, kind: str = "bpe") -> Artifact:
    metrics: dict[str, Any] = {
        "kind": kind,
        "vocab_size": size,
        "bytes_per_token": {"train": 9.0, "validation": per_token},
    }
    metrics |= {"fertility": 1.5, "single_character_frac": 0.2, "round_trip_frac": 1.0}
    return Artifact(Path("/nowhere"), "tokenizer", {}, metrics, {"key": f"{kind}{size}"})


MADE = [
    artifact(4096, 3.0),
    artifact(16384, 3.6),
    artifact(8192, 3.4),
    artifact(8192, 3.5, "unigram"),
    artifact(4096, 3.0),
]


def test_compute_per_byte_is_that_of_the_model_with_the_vocabulary() -> None:
    found = {c.key: c for c in candidates(MADE, MODEL, 256)}
    assert len(found) == 4
    one = found["bpe8192"]
    body = 4 * (4 * 256 * 256 + 3 * 256 * 1024)
    assert one.flops_per_byte == (6 * (body + 8192 * 256) + 12 * 4 * 256 * 256) / 3.4
    assert one.embedding_parameters == 8192 * 256 * (1 if MODEL.tied_embeddings else 2)


def test_the_smallest_of_nearly_equal_sizes_is_recommended() -> None:
    equal = candidates([artifact(4096, 3.0), artifact(4160, 3.0 * 1.0105)], MODEL, 256)
    assert (
        min(equal, key=lambda c: c.flops_per_byte).vocab_size == 4160
        and recommend(equal).vocab_size == 4096
    )


def test_the_page_is_self_contained_and_shows_every_tokenizer(tmp_path: Path) -> None:
    found = candidates(MADE, MODEL, 256)
    text = write_sweep(found, MODEL, 256, tmp_path / "sweeps" / "page.html").read_text("utf-8")
    assert not re.search(r"(?:src|href)=[\"'][^#]", text) and text.count("<svg") >= 2
    for candidate in found:
        assert candidate.key in text and f"{candidate.bytes_per_token:.3f}" in text
    assert f"{recommend(found).vocab_size:,} ✓" in text
    assert text == write_sweep(found, MODEL, 256, tmp_path / "again.html").read_text("utf-8")
