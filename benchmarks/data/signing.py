"""Signs documents with min-hashes, as deduplication does with its default settings."""

from __future__ import annotations

import numpy as np

from tasks.dedup.config import DedupConfig
from tasks.kernels.dedup.minhash import EMPTY, make_permutations
from tasks.kernels.dedup.shingles import make_scratch, shingle_sets, sign_documents
from tasks.kernels.text.chars import char_classes, fold_table
from tasks.kernels.text.view import view_of


def sign(buf: np.ndarray, begins: np.ndarray, config: DedupConfig) -> np.ndarray:
    """The signature of each text."""
    view = view_of(buf, begins, signs=True)
    rows = np.arange(len(begins) - 1)
    signatures = np.full((len(rows), config.num_perms), EMPTY, np.uint32)
    permutations = make_permutations(config.num_perms, config.seed)
    tables = char_classes(), fold_table()
    sign_documents(
        view.values,
        view.begins,
        rows,
        config.shingle_units,
        tables,
        permutations,
        make_scratch(view.begins),
        signatures,
    )
    return signatures


def shingle_sets_of(
    buf: np.ndarray, begins: np.ndarray, rows: np.ndarray, config: DedupConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Shingles of some of the texts, one after another, and how many each has."""
    view = view_of(buf, begins, signs=True)
    tables, text = (char_classes(), fold_table()), (view.values, view.begins)
    return shingle_sets(text, rows, config.shingle_units, tables, make_scratch(view.begins))
