"""Unigram on text without blanks ends soon, and says what it left out."""

from __future__ import annotations

import itertools
import logging
import random
from collections import Counter
from pathlib import Path

import pytest

from tasks.runtime.stage import StageFailure
from tasks.tokenizer.config import TokenizerConfig
from tasks.tokenizer.sentencepieces import (
    MAX_CHUNK_BYTES,
    MAX_UNBROKEN_WORK,
    ChunkCount,
    bound_unbroken,
    split_chunks,
)
from tasks.tokenizer.stage import train_tokenizer
from tests.support.data.sample_documents import sample_texts, write_documents


def drawn(letters: str, size: int) -> str:
    return "".join(random.Random(1).choices(letters, k=size))


def bounded(texts: list[str]) -> tuple[list[str], list[str], ChunkCount]:
    count = ChunkCount()
    chunks = [chunk for text in texts for chunk in split_chunks(text, {}, count)]
    characters = Counter(character for text in texts for character in text)
    return chunks, bound_unbroken(chunks, characters, count), count


def test_unbroken_text_is_bounded_by_its_work_and_evenly_spread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        chunks, kept, count = bounded([drawn("ACGT", 3_000_000)])
    (line,) = caplog.messages
    assert "% of the text without blanks (3.0 million characters)" in line
    places = [number for number, chunk in enumerate(chunks) if chunk in set(kept)]
    assert len(places) == len(kept)
    work = sum(map(len, kept)) * (14.9 / 1.386) ** 2
    assert work == pytest.approx(MAX_UNBROKEN_WORK, rel=0.02)
    gaps = {b - a for a, b in itertools.pairwise(places)}
    assert max(gaps) - min(gaps) <= 1
    assert count.used_bytes == sum(map(len, kept))


@pytest.mark.parametrize(
    "texts",
    [
        sample_texts(300, 3000),
        [drawn("ACGT", 200_000)],
        [drawn("".join(map(chr, range(0x4E00, 0x5200))), 1_000_000)],
    ],
    ids=["the sample", "200 kB of ACGT", "3 MB of Han"],
)
def test_usual_amounts_are_not_cut(texts: list[str], caplog: pytest.LogCaptureFixture) -> None:
    chunks, kept, _ = bounded(texts)
    assert kept == chunks and not caplog.messages


def test_words_with_blanks_are_all_kept_beside_unbroken_text() -> None:
    words = " ".join(drawn("abcdefgh", 5) for _ in range(2000))
    _, kept, _ = bounded([drawn("ACGT", 2_000_000), words])
    assert words[: MAX_CHUNK_BYTES // 2] in kept[-3] + kept[-2] + kept[-1]


@pytest.mark.slow
def test_a_megabyte_of_letters_without_blanks_is_learnt(tmp_path: Path) -> None:
    documents = write_documents(tmp_path / "d", [drawn("ACGT", 1_000_000), "held out"])
    made = train_tokenizer(documents, tmp_path, TokenizerConfig("unigram", 2000))
    assert made.metrics["vocab_size"] == 2000 and made.metrics["round_trip_frac"] == 1.0
    assert 500_000 < made.counters["skipped_bytes"] < 900_000


def test_characters_that_never_repeat_as_strings_are_said_to_be_too_few(tmp_path: Path) -> None:
    """Of three thousand characters at random, a small vocabulary leaves hardly two together."""
    han = drawn("".join(map(chr, range(0x4E00, 0x5A00))), 20_000)
    documents = write_documents(tmp_path / "d", [han, "held out"])
    with pytest.raises(StageFailure, match="more than the pieces that this text gives") as failure:
        train_tokenizer(documents, tmp_path, TokenizerConfig("unigram", 2000))
    assert "INTERNAL" not in str(failure.value)
