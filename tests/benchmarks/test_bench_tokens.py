"""The measurement ends with a line of numbers, compares ids before it speaks of speed, and refuses
what has no text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.data import tokens
from tests.support.data.sample_documents import SAMPLE


def test_the_last_line_has_speeds_and_the_ids_are_equal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (
        ("ROUNDS", 1),
        ("VOCAB_SIZE", 1200),
        ("SENTENCEPIECE_BYTES", 100_000),
        ("NUM_BATCHES", 2),
    ):
        monkeypatch.setattr(tokens, name, value)
    monkeypatch.setenv("BENCH_MB", "0.15")
    assert tokens.main([str(SAMPLE)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    wanted = {
        "train_mb_s",
        "encode_mb_s",
        "encode_vs_tokenizers",
        "ids_equal",
        "loader_tok_s",
        "loader_vs_memmap",
    }
    assert wanted <= result.keys() and result["ids_equal"] is True
    assert all(result[name] > 0 for name in wanted)


def test_a_folder_without_text_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tokens.main([str(tmp_path)]) == 2
    assert "has no text; name a file or folder of .jsonl" in capsys.readouterr().err
