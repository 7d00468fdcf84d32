"""The benchmark times what it says, on texts that are what they are said to be."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.data import dedup
from benchmarks.data.planted_texts import NUM_WORDS, make_vocabulary, write_texts
from tasks.dedup.config import DedupConfig
from tests.support.data.dedup_runs import similarity


def texts(documents: list[int]) -> list[str]:
    buf, begins = (
        np.empty(len(documents) * NUM_WORDS * 11, np.uint8),
        np.empty(len(documents) + 1, np.int64),
    )
    write_texts(np.array(documents), *make_vocabulary(), buf, begins)
    return [buf[a:b].tobytes().decode() for a, b in pairwise(begins)]


def test_planted_texts_are_as_alike_as_stated() -> None:
    of = dict(zip(range(120), texts(list(range(120))), strict=True))
    assert of[0] == of[1] == of[110] and len(of[0].split()) == NUM_WORDS
    assert all(similarity(of[12], of[12 + i]) == pytest.approx(91 / 101) for i in range(1, 5))
    assert similarity(of[13], of[14]) == pytest.approx(86 / 106, abs=0.05)
    assert similarity(of[9], of[59]) == pytest.approx(95 / 97)
    assert (
        max(similarity(of[i], of[j]) for i in (17, 18, 19, 27) for j in (0, 2, 9, 12, 28, 37))
        == 0.0
    )


def test_everything_planted_is_found_and_speeds_are_told() -> None:
    result = dedup.measure(3000, DedupConfig())
    assert all(check["holds"] for check in result["checks"].values())
    assert result["documents_per_s"] > 0 and result["signature_mb_per_s"] > 0
    assert set(result["cpu_s"]) == {
        "signature",
        "exact",
        "candidates",
        "verification",
        "components",
    }


def test_speeds_are_withheld_where_near_copies_stay() -> None:
    result = dedup.measure(3000, DedupConfig(threshold=0.99))
    assert not result["checks"]["removed of near copies"]["holds"]
    assert result["documents_per_s"] is None and result["signature_mb_per_s"] is None


def test_the_last_line_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert dedup.main(["0.004"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [size["documents"] for size in json.loads(lines[-1])["sizes"]] == [1000, 2000, 4000]
    assert dedup.main(["0"]) == 2
