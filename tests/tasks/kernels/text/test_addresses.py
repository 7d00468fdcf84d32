"""Kernels that are given bare addresses touch nothing beside their arrays, whatever the text."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numba import errors, njit

from tasks.fasttext.files import SOFTMAX, read_model
from tasks.fasttext.tree import label_prefixes, read_tree
from tasks.kernels.text.addresses import load_word, pointers
from tests.support.data.any_bytes import BYTES
from tests.support.data.fasttext_models import write_model
from tests.support.data.fenced import FencedNumpy, death_of, fence_all, fenced

Kernel = Callable[[np.ndarray, np.ndarray, bool], Any]
"""Of a buffer of bytes, where each text begins and which side the fence is on."""

PIECES = [
    "a",
    "a ",
    "ab\n",
    "the w1. ",
    "[12]",
    "'",
    "文",
    "ก็",
    "é",
    "e\u0301",
    "’",
    "Ⱥ",
    "İ",
    "ß",
    "😀",
    "\0",
    "</s>",
    "_",
    "__label__",
    "...",
]
NUMBERS = [
    "a@b.com ",
    "+1 212-555-0199",
    "4111 1111 1111 1111 ",
    "fe80::1 ",
    "10.1.2.3",
    "ghp_" + "aB3dE5gH" * 5,
]
# Ends within a character, and lengths around those of words, blocks of 64 bytes and tables that
# grow.
LONG = st.builds(
    lambda piece, count, cut: (piece.encode() * count)[: cut or None],
    st.sampled_from(PIECES + NUMBERS),
    st.sampled_from([1, 7, 8, 9, 63, 64, 65, 129, 300]),
    st.sampled_from([0, -1, -2, -3]),
)
DISTINCT = st.builds(
    lambda count, gap: gap.join(b"w%d" % i for i in range(count)),
    st.integers(0, 300),
    st.sampled_from([b" ", b"\n"]),
)
NO_CHARACTERS = st.builds(
    lambda piece, count: piece * count, st.sampled_from([b"\xff", b"\xe4\xb8"]), st.integers(0, 300)
)
TEXTS = st.lists(
    BYTES
    | LONG
    | DISTINCT
    | NO_CHARACTERS
    | st.binary(max_size=80)
    | st.text(max_size=20).map(str.encode),
    max_size=4,
)


def quality(buf: np.ndarray, begins: np.ndarray, behind: bool) -> Any:
    from tasks.kernels.quality.features import measure_texts

    return measure_texts(buf, begins, [["the", "be"], ["文", "w1"]], np.arange(len(begins) - 1) % 2)


def scripts(buf: np.ndarray, begins: np.ndarray, behind: bool) -> Any:
    from tasks.kernels.text.scripts import count_scripts

    return count_scripts(buf, begins, 17)


def views(buf: np.ndarray, begins: np.ndarray, behind: bool) -> Any:
    from tasks.kernels.text.view import view_of

    return [view_of(buf, begins, signs) for signs in (False, True)]


def exact(buf: np.ndarray, begins: np.ndarray, behind: bool) -> Any:
    from tasks.kernels.dedup.exact import _key_rows, _room_for, exact_forms

    count = len(begins) - 1
    longest = int(np.diff(begins).max(initial=0))
    work = (
        np.empty(_room_for(longest), np.uint8),
        np.empty(count, bool),
        np.empty((count, 2), np.uint64),
    )
    _key_rows(
        buf, begins, np.arange(count), exact_forms(), *(fenced(array, behind) for array in work)
    )


def units(buf: np.ndarray, begins: np.ndarray, behind: bool) -> Any:
    from tasks.kernels.text.chars import char_classes, document_units, fold_table
    from tasks.kernels.text.pieces import find_pieces

    for by_line in (False, True):
        find_pieces(
            buf, begins, np.arange(len(begins) - 1), by_line, 2, char_classes(), fold_table()
        )
    for begin, end in zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True):
        rooms = (
            fenced(np.empty(end - begin, dtype), behind)
            for dtype in (np.int64, np.int64, np.uint64)
        )
        document_units(buf, begin, end, char_classes(), fold_table(), *rooms)


def languages(buf: np.ndarray, begins: np.ndarray, behind: bool) -> Any:
    for tree in models(behind)[0]:
        written = np.ones((2, len(tree.labels)), bool)
        written[1, 0] = False
        label_prefixes(
            tree, (buf, begins, begins[1:]), np.arange(len(begins) - 1) % 2, written, 1, (0x64B,)
        )


def classes(buf: np.ndarray, begins: np.ndarray, behind: bool) -> Any:
    from tasks.kernels.models.softmax_classes import class_probabilities
    from tasks.kernels.text.chars import char_classes

    for model in models(behind)[1]:
        scores = fenced(np.zeros(len(begins) - 1, np.float32), behind)
        tables = model.words, model.lengths, model.grams, model.rows, model.outputs
        class_probabilities(buf, begins, 70, char_classes(), *tables, 1, scores)


def personal_data(buf: np.ndarray, begins: np.ndarray, behind: bool) -> Any:
    from tasks.pii.config import PiiConfig
    from tasks.pii.spans import find_all_spans

    return find_all_spans(buf, begins, PiiConfig())


KERNELS: dict[Kernel, list[str]] = {
    quality: ["kernels.quality.features", "kernels.quality.stopwords", "kernels.text.interning"],
    scripts: ["kernels.text.scripts"],
    views: [],
    exact: [],
    units: [],
    languages: ["kernels.models.softmax_tree", "kernels.models.fasttext_rows", "fasttext.tree"],
    classes: [],
    personal_data: ["pii.spans"],
}
"""Where the Python around each makes room for it."""


@functools.cache
def models(behind: bool) -> tuple[list[Any], list[Any]]:
    """Models with a tree and with classes, of every form that the kernels tell apart."""
    trees, others = [], []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.bin"
        for form in ({}, {"quantised": True, "pruned": True}, {"minn": 0, "maxn": 0}):
            tree = read_tree(write_model(file, **form))  # type: ignore[arg-type]
            assert tree is not None
            trees.append(dataclasses.replace(tree, model=fence_model(tree.model, behind)))
            others.append(
                fence_model(
                    read_model(write_model(file, loss=SOFTMAX, ngrams=2, **form), SOFTMAX), behind
                )
            )  # type: ignore[arg-type]
    return trees, others


def fence_model(model: Any, behind: bool) -> Any:
    names = ("words", "grams", "rows", "outputs")
    return dataclasses.replace(
        model, **{name: fence_all(getattr(model, name), behind) for name in names}
    )


def apply(kernel: Kernel, texts: list[bytes], behind: bool) -> Any:
    """The texts stand last in their buffer, behind half a character."""
    buf = np.frombuffer(b"\xe4\xb8" + b"".join(texts), np.uint8)
    begins = np.cumsum([2, *map(len, texts)]).astype(np.int64)
    return kernel(fenced(buf, behind), fenced(begins, behind), behind)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_a_kernel_touches_nothing_beside_its_arrays(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(kernel, [b"compiled with the NumPy that Numba knows"], True)

    def read_many(say: Callable[[bytes], None]) -> None:
        # A death cannot be made smaller from within.
        @settings(
            max_examples=150,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
        )
        @given(TEXTS, st.booleans())
        def read(texts: list[bytes], behind: bool) -> None:
            say(repr((behind, texts)).encode())
            for name in KERNELS[kernel]:
                monkeypatch.setattr(
                    importlib.import_module(f"tasks.{name}"), "np", FencedNumpy(behind)
                )
            apply(kernel, texts, behind)

        read()

    assert death_of(read_many) is None


@njit
def _word_at(buf, pos):  # type: ignore[no-untyped-def]
    return load_word(pointers(buf), pos)


@pytest.mark.parametrize(("pos", "behind"), [(1, True), (-1, False)])
def test_who_leaves_an_array_by_a_byte_dies(pos: int, behind: bool) -> None:
    array = fenced(np.arange(8, dtype=np.uint8), behind)
    assert _word_at(array, 0) == int.from_bytes(bytes(range(8)), "little")
    assert (
        death_of(lambda say: (say(b"here"), _word_at(array, pos))[0])
        == f"signal {signal.SIGSEGV:d} at b'here'"
    )


@njit
def _move_last(arrays):  # type: ignore[no-untyped-def]
    one, (two, three) = pointers(arrays)
    one[0], three[1] = two[1], one[1]


def test_pointers_reach_the_numbers_of_nested_arrays() -> None:
    one, two, three = np.arange(3), np.array([0.5, 7.25]), np.arange(4, dtype=np.int32)
    _move_last((one, (two, three[1:])))
    assert (one.tolist(), two.tolist(), three.tolist()) == ([7, 1, 2], [0.5, 7.25], [0, 1, 1, 3])


@pytest.mark.parametrize(
    "array", [np.zeros(16, np.uint8)[::2], np.zeros(8, np.int64)], ids=["in pieces", "no bytes"]
)
def test_what_are_no_bytes_in_one_piece_does_not_compile(array: np.ndarray) -> None:
    with pytest.raises(errors.TypingError, match="not an array in one piece|are not bytes"):
        _word_at(array, 0)
