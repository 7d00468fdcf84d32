"""Gives each copy of a document its place in the order of the shards.

A place is a keyed hash of the document's id, so order is a shuffle that depends on nothing else.
Documents of a group, as a repository, are neighbours: the upper half of their places is the hash of
the group.
"""

from __future__ import annotations

import numpy as np

from llm_core.data.order import hash_ids, mix

LOWER = np.uint64(0xFFFFFFFF)


def places_of_copies(
    ids: np.ndarray, groups: np.ndarray | None, repeats: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """(document, place in the order) of every copy; the first copy of a document stands where it
    would stand alone.

    ids: uint8[documents, 16]. groups: the same of groups, zeros for a document without one; None
    where there are no groups.
    """
    documents = np.repeat(np.arange(len(repeats)), repeats)
    copy = np.arange(len(documents)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    own = _of_copies(hash_ids(ids, seed)[documents], copy)
    if groups is None:
        return documents, own
    # Copies of a group stay together too: they read as the group does.
    of_group = _of_copies(hash_ids(groups, seed)[documents], copy)
    together = (of_group & ~LOWER) | (own & LOWER)
    return documents, np.where(np.asarray(groups.any(axis=1))[documents], together, own)


def sort_by_place(places: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The order of documents: by place, and by id where places are equal."""
    words = np.ascontiguousarray(ids).view(">u8").reshape(-1, 2)
    return np.lexsort((words[:, 1], words[:, 0], places))


def _of_copies(hashes: np.ndarray, copy: np.ndarray) -> np.ndarray:
    places, later = hashes.copy(), copy > 0
    places[later] = mix(places[later] ^ mix(copy[later].astype(np.uint64)))
    return places
