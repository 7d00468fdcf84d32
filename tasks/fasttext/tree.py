"""Gives each text the label of a fastText model with a softmax tree.

The tree is Huffman's, built from the counts of labels (src/loss.cc); its inner nodes are the
outputs of the model (`tasks.fasttext.files`). Models of another kind are not read: `read_tree`
answers None, and fastText itself can apply them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tasks.fasttext.files import HIERARCHICAL_SOFTMAX, MAX_COUNT, FastTextModel, read_model


@dataclass(frozen=True)
class SoftmaxTree:
    """A model and the tree over its labels, as `tasks.kernels.models.softmax_tree` reads them."""

    model: FastTextModel
    children: np.ndarray
    """int64 [inner nodes, 2], left and right; leaves come first, in the order of labels."""
    nodes: np.ndarray
    """float32 [dim, inner nodes]: products with all nodes are summed side by side."""

    @property
    def labels(self) -> tuple[str, ...]:
        return self.model.labels


def label_prefixes(
    tree: SoftmaxTree,
    texts: tuple[np.ndarray, np.ndarray, np.ndarray],
    scripts: np.ndarray,
    written: np.ndarray,
    arabic: int,
    marks: Sequence[int],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels (int64, -1 none), float32 probabilities and facts
    (`tasks.kernels.models.softmax_tree`) of the texts: bytes, and where each begins and ends.

    `scripts`: a row of `written` (bool [scripts, labels]) by text; row 0 allows every label. In
    texts of script `arabic` the code points `marks` are passed over.
    """
    from tasks.kernels.models.lower_case import char_table
    from tasks.kernels.models.softmax_tree import best_labels, make_room

    begins, ends = texts[1:]
    count, model = len(ends), tree.model
    found = np.zeros(count, np.int64), np.zeros(count, np.float32), np.zeros(count, np.int64)
    longest = int((ends - begins[:count]).max(initial=0))
    room = make_room(longest, model.lengths, model.rows.shape[1], len(tree.labels))
    tables = model.words, model.lengths, model.grams, model.rows, (tree.nodes, tree.children)
    letters, allowed = char_table(tuple(marks)), written.view(np.uint8)
    best_labels(*texts, scripts, letters, *tables, allowed, arabic, room, found)
    return found


def read_tree(path: Path) -> SoftmaxTree | None:
    """The model in a file, or None where it is not a version 12 model with a softmax tree over
    words and character n-grams.

    Raises ValueError for a damaged file of such a model.
    """
    model = read_model(path, HIERARCHICAL_SOFTMAX, most_word_ngrams=1)
    if model is None:
        return None
    children = _huffman_tree(model.label_counts)
    return SoftmaxTree(model, children, np.ascontiguousarray(model.outputs[: len(children)].T))


def _huffman_tree(counts: Sequence[int]) -> np.ndarray:
    """int64 [inner nodes, 2]: left and right of each, by counts that fall; ties as in fastText."""
    leaves = len(counts)
    # Every count is below MAX_COUNT, so a node that is not made yet is never taken.
    weights = [*counts, *[MAX_COUNT] * (leaves - 1)]
    children = np.zeros((leaves - 1, 2), np.int64)
    leaf, node = leaves - 1, leaves
    for parent in range(leaves, 2 * leaves - 1):
        for side in range(2):
            if leaf >= 0 and weights[leaf] < weights[node]:
                children[parent - leaves, side], leaf = leaf, leaf - 1
            else:
                children[parent - leaves, side], node = node, node + 1
        weights[parent] = sum(weights[child] for child in children[parent - leaves].tolist())
    return children
