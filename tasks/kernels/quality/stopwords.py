"""Counts the stop words of a list in each document.

Lists are small, so each has a table of its own that is nearly empty: one look-up per distinct unit,
which mostly finds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tasks.kernels import inner
from tasks.kernels.text.units import unit_key

_SLOTS = 256
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(56)


def pack_lists(lists: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The words of all lists as bytes with offsets, and the list of each; at most 100 words a list,
    so that slots stay free."""
    words = [word.encode() for words in lists for word in words]
    assert all(len(words) <= 100 for words in lists)
    of_list = np.repeat(np.arange(len(lists)), [len(words) for words in lists])
    # `unit_key` reads sixteen bytes from the beginning of each.
    joined = np.frombuffer(b"".join(words) + bytes(16), np.uint8)
    return joined, np.cumsum([0, *map(len, words)]), of_list


def empty_tables(lists: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
    """Room for (keys, words) by slot, each list in its own stretch of _SLOTS slots; an empty slot
    has key 0."""
    return np.zeros(len(lists) * _SLOTS, np.uint64), np.zeros(len(lists) * _SLOTS, np.int64)


@inner
def fill_tables(packed, num_words, tables):  # type: ignore[no-untyped-def]
    """Write packed lists into tables that are empty, or hold the same lists."""
    words, offsets, of_list = packed
    keys, numbers = tables
    for word in range(num_words):
        key, _ = unit_key(words, offsets[word], offsets[word + 1])
        base, slot = of_list[word] * _SLOTS, np.int64((key * _SPREAD) >> _SHIFT)
        while keys[base + slot] and (keys[base + slot] != key or numbers[base + slot] != word):
            slot = (slot + 1) % _SLOTS
        keys[base + slot], numbers[base + slot] = key, word


@inner
def count_stop_words(buf, starts, stops, keys, counts, num_ids, packed, tables, stop_list):  # type: ignore[no-untyped-def]
    """(distinct, all) stop words of a list among the units with these starts, stops, keys and
    counts by id."""
    words, offsets, _ = packed
    slot_keys, slot_words = tables
    base = stop_list * _SLOTS
    distinct, occurrences = 0, 0
    for known in range(num_ids):
        key = keys[known]
        slot = np.int64((key * _SPREAD) >> _SHIFT)
        while slot_keys[base + slot]:
            if slot_keys[base + slot] == key:
                begin = offsets[slot_words[base + slot]]
                length = offsets[slot_words[base + slot] + 1] - begin
                same = stops[known] - starts[known] == length
                for i in range(length if same else 0):
                    same = same and buf[starts[known] + i] == words[begin + i]
                if same:
                    distinct += 1
                    occurrences += counts[known]
                    break
            slot = (slot + 1) % _SLOTS
    return distinct, occurrences
