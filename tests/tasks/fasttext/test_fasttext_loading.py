"""fastText's own loader, which trusts a file, sees only files that hold what they claim."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from llm_core.config import ConfigError
from tasks.fasttext.files import HEAD, SIZES, check_fasttext, load_fasttext
from tasks.runtime.code import ROOT
from tasks.scores.classifier import classify_lines
from tests.support.data.fasttext_models import WORDS, write_model

NEGATIVE_SAMPLING, SOFTMAX, ONE_VS_ALL = 2, 3, 4
MATRIX_AT = (
    HEAD.size
    + SIZES.size
    + sum(len(word.encode()) + 10 for word in (*WORDS, *(f"__label__{x}" for x in "xyz")))
    + 1
)


def put(file: Path, place: int, layout: str, *values: int) -> Path:
    data = bytearray(file.read_bytes())
    struct.pack_into(layout, data, place, *values)
    file.write_bytes(data)
    return file


@pytest.mark.parametrize("loss", [1, NEGATIVE_SAMPLING, SOFTMAX, ONE_VS_ALL])
@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"quantised": True},
        {"quantised": True, "norms": True},
        {"quantised": True, "pruned": True},
        {"ngrams": 3},
    ],
)
def test_sound_models_are_loaded(loss: int, kind: dict[str, bool], tmp_path: Path) -> None:
    model = load_fasttext(write_model(tmp_path / "a.bin", loss=loss, **kind))  # type: ignore[arg-type]
    assert len(model.f.predict("abc de\n", 1, 0.0, "strict")) == 1


@pytest.mark.parametrize(
    ("place", "layout", "values", "words"),
    [
        (0, "<i", (1,), "not a fastText model"),
        (4, "<i", (13,), "not a fastText model"),
        (8, "<i", (0,), "settings"),
        (8, "<i", (2**31 - 1,), "settings"),
        (8, "<i", (7,), "do not fit"),
        (32, "<i", (9,), "settings"),
        (40, "<i", (0,), "no buckets"),
        (40, "<i", (-1,), "settings"),
        (40, "<i", (501,), "too few"),
        (48, "<i", (1 << 20,), "settings"),
        (HEAD.size, "<i", (2**31 - 1,), "numbers of words"),
        (HEAD.size, "<i", (-7,), "numbers of words"),
        (HEAD.size, "<3i", (2**31 - 1, 2**31 - 4, 3), "end early|is not that of a model"),
        (HEAD.size + 20, "<q", (2**62,), "longer than the file"),
        (MATRIX_AT, "<q", (2**40,), "longer than the file"),
        (MATRIX_AT, "<q", (-1,), "do not fit"),
        (MATRIX_AT, "<2q", (10, 6), "too few|do not fit|longer"),
        (MATRIX_AT, "<2q", (2**61, 6), "longer than the file"),
    ],
)
def test_sizes_that_a_file_only_claims_are_one_line(
    place: int, layout: str, values: tuple[int, ...], words: str, tmp_path: Path
) -> None:
    file = put(write_model(tmp_path / "a.bin", loss=NEGATIVE_SAMPLING), place, layout, *values)
    with pytest.raises(ValueError, match=words):
        check_fasttext(file)
    with pytest.raises(ConfigError, match=r"a\.bin is not a fastText model \(") as caught:
        classify_lines(["abc"], file, "__label__x")
    assert "\n" not in str(caught.value)


LOAD = """
import sys, fasttext
for file in sys.argv[1:]:
    print(file, flush=True)
    try:
        fasttext.load_model(file).f.predict("abc de fgh\\n", 1, 0.0, "strict")
    except (ValueError, RuntimeError):  # NaN is the latter
        pass
"""


def test_whatever_passes_the_check_does_not_end_the_process(tmp_path: Path) -> None:
    rng, passed = random.Random(5), []
    sources = [
        write_model(
            tmp_path / f"{loss}{kind}.bin",
            loss=loss,
            buckets=50,
            quantised=kind > 0,
            pruned=kind > 1,
            norms=kind > 1,
        )
        for loss in (1, NEGATIVE_SAMPLING, SOFTMAX, ONE_VS_ALL)
        for kind in range(3)
    ]
    for number in range(300):
        data = bytearray(rng.choice(sources).read_bytes())
        for _ in range(rng.randint(1, 3)):
            place = rng.choice([rng.randrange(MATRIX_AT + 40), rng.randrange(len(data))])
            data[place] = rng.choice([0, 1, 2, 127, 128, 255, rng.randrange(256)])
        if rng.random() < 0.1:
            del data[rng.randrange(len(data)) :]
        file = tmp_path / f"changed-{number}.bin"
        file.write_bytes(data)
        try:
            check_fasttext(file)
            passed.append(str(file))
        except ValueError:
            file.unlink()
    assert 20 < len(passed) < 300
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *passed], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout.splitlines()[-1:]} {done.stderr[-300:]}"
