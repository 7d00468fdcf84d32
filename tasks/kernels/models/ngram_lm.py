"""Computes the likelihood of units after those before them: look-up in a trie of n-grams, and the
rows themselves.

A model is a trie: node 0 is the empty n-gram, and each further node is a prefix node and one more
word. Word ids are places in the sorted hashes of known units, after `UNKNOWN`, `BEGIN` and `END`.
The key of a node, (prefix node << 32) | word, is its content, so equal keys are equal n-grams:
nothing is approximated by hashing but the 64-bit hash of a unit itself. Each node holds the
interpolated probability of its last word after its prefix, and the weight that its prefix role
gives to shorter contexts, so a look-up multiplies weights until it meets a known n-gram, as in an
ARPA file.

Cost: one table look-up per word and order, at most; a table of four bytes per slot, at most half
full.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.kernels.text.chars import mix64

UNKNOWN, BEGIN, END = 0, 1, 2
FIRST_WORD = 3


@njit(cache=True, nogil=True)
def fill_slots(keys, num_nodes):  # type: ignore[no-untyped-def]
    """An open-addressing table from node keys to nodes: slot → node, 0 where empty (node 0 has no
    key)."""
    size = 16
    while size < 2 * num_nodes:
        size *= 2
    slots = np.zeros(size, np.uint32)
    mask = np.uint64(size - 1)
    for node in range(1, num_nodes):
        slot = mix64(keys[node]) & mask
        while slots[slot] != 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = node
    return slots


@njit(cache=True, nogil=True)
def find_node(slots, keys, prefix, word):  # type: ignore[no-untyped-def]
    """The node of `word` after the n-gram of node `prefix`, or 0 where it was never seen."""
    mask = np.uint64(slots.size - 1)
    key = (np.uint64(prefix) << np.uint64(32)) | np.uint64(word)
    slot = mix64(key) & mask
    while slots[slot] != 0:
        node = np.int64(slots[slot])
        if keys[node] == key:
            return node
        slot = (slot + np.uint64(1)) & mask
    return np.int64(0)


@njit(cache=True, nogil=True)
def score_words(words, begins, order, slots, keys, log10_probs, log10_weights, out):  # type: ignore[no-untyped-def]
    """out[i] = log10 p(row i), its end included: words[begins[i]:begins[i + 1]] between BEGIN and
    END."""
    # contexts[k]: node of the last k words; 0 for k > 0 where unseen.
    contexts = np.zeros(order + 1, np.int64)
    nodes = np.zeros(order + 1, np.int64)
    for row in range(begins.size - 1):
        for k in range(order + 1):  # loops and not slices: they compile in a fraction of the time
            contexts[k] = 0
        if order > 1:
            contexts[1] = find_node(slots, keys, 0, BEGIN)
        total = 0.0
        for i in range(begins[row], begins[row + 1] + 1):
            word = END if i == begins[row + 1] else words[i]
            for k in range(order + 1):
                nodes[k] = 0
            longest = 0
            for n in range(1, order + 1):
                if n > 1 and contexts[n - 1] == 0:
                    break
                node = find_node(slots, keys, contexts[n - 1], word)
                # Then no longer one was seen either: its end would have been seen with it.
                if node == 0:
                    break
                nodes[n], longest = node, n
            total += log10_probs[nodes[longest]]  # every word id has a node: longest is at least 1
            for k in range(longest, order):
                if contexts[k] == 0:
                    break
                total += log10_weights[contexts[k]]
            for k in range(1, order):
                contexts[k] = nodes[k]
        out[row] = total
