"""Verifies candidates by exact Jaccard on sorted shingle sets, and finds survivors and families.

Sets lie one after another in one array of sorted, distinct hashes; set i is
`shingles[begins[i]:begins[i + 1]]`. Documents are numbered by preference: of two, the smaller
number is the better survivor. Every loop is linear in the sets it compares.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def jaccard_of_sets(shingles, begins, a, b, at_least):  # type: ignore[no-untyped-def]
    """Jaccard similarity of sets a and b; 0 when their sizes alone rule out `at_least`."""
    i, i_end, j, j_end = begins[a], begins[a + 1], begins[b], begins[b + 1]
    size_a, size_b = i_end - i, j_end - j
    if size_a == 0 or size_b == 0 or min(size_a, size_b) < at_least * max(size_a, size_b):
        return 0.0
    both = 0
    while i < i_end and j < j_end:
        x, y = shingles[i], shingles[j]
        both += x == y
        i += x <= y
        j += y <= x
    return both / (size_a + size_b - both)


@njit(cache=True, nogil=True)
def jaccard_of_pairs(shingles, begins, a, b, at_least):  # type: ignore[no-untyped-def]
    """`jaccard_of_sets` for each pair a[i], b[i]."""
    result = np.empty(a.size, np.float64)
    for i in range(a.size):
        result[i] = jaccard_of_sets(shingles, begins, a[i], b[i], at_least)
    return result


@njit(cache=True, nogil=True)
def place_sets(source, sizes, begins, out):  # type: ignore[no-untyped-def]
    """Copy sets that lie one after another in `source`, the i-th of sizes[i] to begin at begins[i]
    of `out`."""
    at = 0
    for size, begin in zip(sizes, begins):  # noqa: B905 (numba's zip has no strict)
        for i in range(size):
            out[begin + i] = source[at + i]
        at += size


@njit(cache=True, nogil=True)
def take_sets(shingles, begins, rows, out):  # type: ignore[no-untyped-def]
    """Copy sets `rows` one after another to `out`."""
    at = 0
    for row in rows:
        for i in range(begins[row], begins[row + 1]):
            out[at] = shingles[i]
            at += 1


@njit(cache=True, nogil=True)
def choose_survivors(shingles, begins, a, b, jaccard, threshold, before):  # type: ignore[no-untyped-def]
    """For each set, the survivor it is a verified near duplicate of (itself if it stays), and their
    similarity.

    Pairs have a < b and are sorted by b. Sets are decided in order of preference: one goes only if
    its similarity to a set that stays is at least `threshold`. A neighbour that went points to its
    own survivor, which is compared too: what banding missed between two members of a cluster is
    found there. Chains of likeness whose ends differ therefore keep more than one survivor.
    `before`: the survivor each set has so far, itself unless it was decided earlier; sets that were
    have no pair as b.
    """
    survivor = before.copy()
    similarity = np.ones(begins.size - 1, np.float64)
    start = 0
    while start < b.size:
        member = b[start]
        best, best_similarity, tried = -1, 0.0, -1
        end = start
        while end < b.size and b[end] == member:
            other = survivor[a[end]]
            if jaccard[end] >= threshold and other != tried and (best < 0 or other < best):
                tried = other
                s = jaccard[end]
                if other != a[end]:
                    s = jaccard_of_sets(shingles, begins, other, member, threshold)
                if s >= threshold:
                    best, best_similarity = other, s
            end += 1
        if best >= 0:
            survivor[member], similarity[member] = best, best_similarity
        start = end
    return survivor, similarity


@njit(cache=True, nogil=True)
def smallest_connected(num_nodes, a, b):  # type: ignore[no-untyped-def]
    """Label each node with the smallest node it is connected to: union-find that hooks the larger
    root, with path halving."""
    parent = np.arange(num_nodes)
    for i in range(a.size):
        x, y = a[i], b[i]
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        while parent[y] != y:
            parent[y] = parent[parent[y]]
            y = parent[y]
        if x < y:
            parent[y] = x
        elif y < x:
            parent[x] = y
    # A parent is never larger than its child, so one pass in order reaches every root.
    for x in range(num_nodes):
        parent[x] = parent[parent[x]]
    return parent
