"""Classes of a fastText model with plain softmax against fastText itself."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba import njit

from llm_core.config import ConfigError
from tasks.kernels.models.fasttext_rows import to_buckets
from tasks.kernels.text.addresses import pointers
from tasks.scores.classifier import ClassifierConfig, classify_lines, classify_texts, text_line
from tests.support.data.fasttext_models import write_model

LABEL = "__label__y"
# Words of the model, what fastText takes for labels and ends of lines, white space that only Python
# knows, all lengths of UTF-8.
PIECES = st.sampled_from(
    [
        "abc",
        "de",
        "éa",
        " ",
        "\n",
        "\x1f",
        "\u2003",
        "__label__",
        "label__",
        "_",
        "</s>",
        "<",
        "文字",
        "😀",
        "x",
    ]
)
FORMS: dict[str, dict[str, Any]] = {
    "words alone": {"minn": 0, "maxn": 0, "buckets": 0},
    "pairs of words": {"minn": 0, "maxn": 0, "ngrams": 2},
    "characters and triples": {"ngrams": 3},
    "quantised with norms": {"quantised": True, "norms": True, "dim": 10, "ngrams": 2},
    "pruned": {"quantised": True, "pruned": True, "ngrams": 2},
}


@pytest.fixture(scope="module", params=FORMS.values(), ids=FORMS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(
        tmp_path_factory.mktemp("model") / "model.bin", **{"loss": 3, **request.param}
    )


def both(texts: list[str], model: Path, prefix_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    config = ClassifierConfig(model_path=model, label=LABEL, prefix_bytes=prefix_bytes)
    lines = [text_line(text, config) for text in texts]
    return classify_texts(pa.array(texts, pa.large_string()), model, config), classify_lines(
        lines, model, LABEL
    )


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(PIECES, max_size=12).map("".join), min_size=1, max_size=4), st.integers(1, 40)
)
@example(
    [
        "__label__label__ x __label__y abc",
        "a__label__label__label__b",
        "abc __label",
        "",
        " \u3000\x85",
    ],
    40,
)
def test_probabilities_are_those_of_fasttext(
    model: Path, texts: list[str], prefix_bytes: int
) -> None:
    ours, theirs = both(texts, model, prefix_bytes)
    np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-7)


def test_long_words_are_told_apart_to_the_last_byte(tmp_path: Path) -> None:
    # One byte differs, at every place, up to the end of the buffer; so many that all slots of the
    # table come up.
    model = write_model(
        tmp_path / "model.bin",
        loss=3,
        maxn=0,
        minn=0,
        buckets=0,
        words=["</s>", "a" * 8, "b" * 11, "c" * 21],
    )
    known = ["a" * 8, "b" * 11, "c" * 21]
    other = [
        word[:i] + z + word[i + 1 :]
        for word in known
        for i in range(len(word))
        for z in string.ascii_uppercase
    ]
    ours, theirs = both(other + known, model, 4000)
    np.testing.assert_allclose(ours, theirs, rtol=2e-6)
    assert len(np.unique(ours)) == 4


def test_a_damaged_classifier_is_refused_with_its_name(model: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.bin"
    cut.write_bytes(model.read_bytes()[:150])
    with pytest.raises(ConfigError, match=r"cut\.bin.*damaged.*fetch"):
        both(["text"], cut, 4000)


def test_a_classifier_that_gives_no_number_is_refused(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.bin", loss=3, maxn=0, minn=0, buckets=0)
    model.write_bytes(model.read_bytes()[:-4] + np.float32(np.nan).tobytes())
    with pytest.raises(ConfigError, match=r"model\.bin.*gives NaN.*train"):
        both(["text"], model, 4000)


@njit
def remainders(values, buckets):  # type: ignore[no-untyped-def]
    to_buckets(pointers(values), 0, values.size, buckets)


@given(st.integers(1, 2**31 - 1), st.integers(0, 2**32 - 1))
@example(2_000_000, 2**32 - 1)
@example(3, 2**32 - 1)
def test_hashes_fall_into_the_bucket_of_their_remainder(buckets: int, value: int) -> None:
    multiple = value // buckets * buckets
    values = np.array(
        [value, multiple, max(multiple - 1, 0), min(multiple + buckets - 1, 2**32 - 1), 2**32 - 1],
        np.int64,
    )
    expected = values % buckets
    remainders(values, buckets)
    np.testing.assert_array_equal(values, expected)
