"""The softmax tree of a fastText model against fastText itself."""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from tasks.corpus.documentset import text_buffers
from tasks.fasttext.tree import SoftmaxTree, label_prefixes, read_tree
from tasks.kernels.models.softmax_tree import CORRECTED
from tasks.kernels.text.scripts import count_scripts
from tasks.language.config import LanguageConfig
from tasks.language.stage import label_texts
from tests.support.data.any_bytes import BYTES, assert_neighbours_do_not_matter
from tests.support.data.fasttext_models import stock, write_model

SAMPLE = Path(__file__).parents[3] / "data" / "sample" / "sample.jsonl"
MODEL = LanguageConfig().input_files()["lid_model"]
# ẞ and İ change their length, Ⱥ its bytes; \x1f is white space to Python alone.
LETTERS = "aeT hs</>_\n\t\x1fßẞİȺσЖ文カ한é́ا\u064b😀\u2028"


@functools.cache
def lid176() -> SoftmaxTree:
    tree = read_tree(MODEL)
    assert tree is not None
    return tree


def read(
    tree: SoftmaxTree, texts: Sequence[str], allowed: Any = None
) -> tuple[list[str], np.ndarray, np.ndarray]:
    written = np.ones((2, len(tree.labels)), bool)
    if allowed is not None:
        written[1] = allowed
    buf, begins = text_buffers(pa.array(texts, pa.large_string()))
    labels, scores, facts = label_prefixes(
        tree, (buf, begins, begins[1:]), np.ones(len(texts), np.int64), written, -1, ()
    )
    return [tree.labels[label] if label >= 0 else "" for label in labels], scores, facts


def line_of(text: str) -> str:
    return " ".join(text.lower().replace("</s>", " ").split()) + "\n"


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(LETTERS, max_size=40), min_size=1, max_size=4))
@example(["ΟΔΟΣ ΣΑΣ Σ, ΑΣ. ΣΟΦΟΣ"])
@example(["__label__de und das </s> __label__ </S>x"])
@example(["the of and " * 40 + "donaudampfschifffahrtsgesellschaftskapitänsmützen " * 3])
def test_labels_and_scores_are_those_of_fasttext(texts: list[str]) -> None:
    labels, scores, _ = read(lid176(), texts)
    for text, label, score in zip(texts, labels, scores.tolist(), strict=True):
        known = {
            name: probability
            for probability, name in stock(MODEL)(line_of(text), -1, 0.0, "strict")
        }
        assert score == pytest.approx(min(max(known.values()), 1), abs=2e-5)
        assert min(known[label], 1) == pytest.approx(score, abs=2e-5)


def test_a_label_that_is_not_allowed_gives_way_to_the_best_that_is() -> None:
    texts = [
        json.loads(line)["text"][:400] for line in SAMPLE.read_text("utf-8").splitlines()[::20]
    ]
    tree = lid176()
    allowed = np.array([name.removeprefix("__label__") < "en" for name in tree.labels])
    for text, label, score, fact in zip(texts, *read(tree, texts, allowed), strict=True):
        ranked = stock(MODEL)(line_of(text), -1, 0.0, "strict")
        best = [(p, name) for p, name in ranked if allowed[tree.labels.index(name)]][:1] or [
            (0.0, "")
        ]
        assert (label, pytest.approx(score, abs=2e-5)) == (best[0][1], min(best[0][0], 1))
        assert bool(fact & CORRECTED) == (ranked[0][1] != label)


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"minn": 0, "maxn": 0, "buckets": 0},
        {"quantised": True, "norms": True, "dim": 10},  # the last part of a row is shorter
        {"quantised": True, "pruned": True},
    ],
    ids=["dense", "words alone", "quantised with norms", "pruned"],
)
def test_every_form_of_the_file_is_read(tmp_path: Path, form: dict[str, Any]) -> None:
    file = write_model(tmp_path / "model.bin", **form)
    texts = ["abc de bade", "éa éa", "fff unheard zz", "", "d"]
    tree = read_tree(file)
    assert tree is not None
    labels, scores, _ = read(tree, texts)
    for text, label, score in zip(texts, labels, scores.tolist(), strict=True):
        best = stock(file)(line_of(text), 1, 0.0, "strict")[0]
        assert (label, pytest.approx(score, abs=2e-5)) == (best[1], min(best[0], 1))


@pytest.mark.parametrize("settings", [{"loss": 3}, {"ngrams": 2}])
def test_models_of_other_kinds_are_left_to_fasttext(
    tmp_path: Path, settings: dict[str, int]
) -> None:
    file = write_model(tmp_path / "model.bin", **settings)
    assert read_tree(file) is None
    labels, scores, _ = label_texts(
        pa.array(["abc de bade", "1 2"]), file, LanguageConfig(min_score=0.0)
    )
    assert labels == [
        stock(file)("abc de bade\n", 1, 0.0, "strict")[0][1].removeprefix("__label__"),
        "und",
    ]
    assert scores[0] > 0 == scores[1]


def test_both_ways_give_the_labels_of_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = pa.array(
        [json.loads(line)["text"] for line in SAMPLE.read_text("utf-8").splitlines()[::5]],
        pa.large_string(),
    )
    labels, scores, corrected = label_texts(texts, MODEL, LanguageConfig())
    monkeypatch.setattr("tasks.language.stage._load_tree", lambda model: None)
    stock_labels, stock_scores, stock_corrected = label_texts(texts, MODEL, LanguageConfig())
    assert (labels, corrected) == (stock_labels, stock_corrected)
    assert scores == pytest.approx(stock_scores, abs=2e-5)


@pytest.mark.parametrize("keep", [200, 50_000, 700_000])
def test_a_damaged_model_is_refused_with_its_name(tmp_path: Path, keep: int) -> None:
    (tmp_path / "cut.ftz").write_bytes(MODEL.read_bytes()[:keep])
    with pytest.raises(ConfigError, match=r"cut\.ftz.*damaged.*fetch"):
        label_texts(pa.array(["text"]), tmp_path / "cut.ftz", LanguageConfig())


@pytest.mark.parametrize(
    ("buckets", "at", "number", "said"),
    [
        (0, 48, 3, "no buckets"),  # n-grams of characters, and no buckets for them
        (500, 48, 1 << 20, "settings"),  # n-grams of so many characters
        (500, 68, 8, "numbers of words"),  # more words than entries
        (500, 68, -1, "numbers of words"),
        (500, 159, 1 << 28, "entry 4 .*not that of"),  # the upper half of a label's count
    ],
)
def test_tables_that_a_kernel_would_leave_are_refused(
    tmp_path: Path, buckets: int, at: int, number: int, said: str
) -> None:
    file = write_model(tmp_path / "model.bin", buckets=buckets)
    data = bytearray(file.read_bytes())
    data[at : at + 4] = struct.pack("<i", number)
    file.write_bytes(data)
    with pytest.raises(ValueError, match=said):
        read_tree(file)


@pytest.mark.parametrize("data", [b"", b"no model at all" * 9])
def test_a_file_that_is_no_model_is_refused_with_its_name(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "lid.bin").write_bytes(data)
    with pytest.raises(ConfigError, match=r"lid\.bin\) is not a fastText model of languages"):
        label_texts(pa.array(["text"]), tmp_path / "lid.bin", LanguageConfig())


@settings(max_examples=60, deadline=None)
@given(BYTES, BYTES)
def test_scripts_and_labels_of_any_bytes_do_not_depend_on_their_neighbours(
    data: bytes, beside: bytes
) -> None:
    written = np.ones((1, len(lid176().labels)), bool)

    def find(buf: np.ndarray, begins: np.ndarray) -> tuple[np.ndarray, ...]:
        found = label_prefixes(
            lid176(), (buf, begins, begins[1:]), np.zeros(3, np.int64), written, -1, ()
        )
        return (*(values[1] for values in found), count_scripts(buf, begins, 1000)[0][1])

    assert_neighbours_do_not_matter(data, beside, find)
