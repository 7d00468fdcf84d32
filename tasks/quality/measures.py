"""Measures the features of texts that rules judge, by one kernel call per column of texts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tasks.corpus.documentset import text_buffers
from tasks.definitions.features import COUNTS, FEATURES
from tasks.quality.fineweb2 import FINEWEB2


def measure_features(
    texts: pa.ChunkedArray | pa.Array, languages: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """{feature: values} of a column of texts, counts as int64 and ratios as float64.

    languages: labels, which choose the list of stop words; without them, or without a list, English
    ones are counted.
    """
    from tasks.kernels.quality.features import STOP_WORDS, measure_texts
    from tasks.kernels.text.view import view_of

    listed = {language: limits.stop_words for language, limits in FINEWEB2.items()}
    listed = {language: words for language, words in listed.items() if words}
    numbers = {language: i for i, language in enumerate(listed, start=1)}
    lists = None
    if languages is not None:
        lists = np.array([numbers.get(language, 0) for language in languages], np.int64)
    view = view_of(*text_buffers(texts), signs=False)
    rows = measure_texts(view.values, view.begins, [STOP_WORDS, *listed.values()], lists)
    return {
        name: rows[:, i].astype(np.int64) if name in COUNTS else rows[:, i].copy()
        for i, name in enumerate(FEATURES)
    }
