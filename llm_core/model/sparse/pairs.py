"""Counts the keys that queries attend by a pattern, without looking at each pair."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llm_core.model.sparse.patterns import ALL, Pattern, drawn_blocks

# N places in a document

Counts = NDArray[np.int64]


@functools.lru_cache(maxsize=8)
def num_keys(pattern: Pattern, length: int) -> Counts:
    """counts_N of the keys that the queries of a document of `length` tokens attend, themselves
    included. Time length² / block operations where blocks are drawn or summed up, else length."""
    query_N = np.arange(length)
    if pattern == ALL:
        return query_N + 1
    # Keys from here on are all attended: what ends with the query itself.
    near_N = query_N + 1
    if pattern.window and pattern.dilation == 1:
        near_N = np.minimum(near_N, query_N - pattern.window + 1)
    if pattern.block:
        begins_N = (query_N // pattern.block - pattern.blocks_before) * pattern.block
        near_N = np.minimum(near_N, begins_N)
    near_N = near_N.clip(min=0)
    # And those before here: global tokens.
    early_N = np.minimum(pattern.num_global, near_N)
    counts_N = query_N + 1 - near_N + early_N
    if not (pattern.summary or pattern.random_blocks):
        return counts_N + _in_steps(pattern, query_N, early_N, near_N)
    drawn = drawn_blocks(pattern, query_N // pattern.block)
    for number, begin in enumerate(range(0, length, pattern.block)):
        end = begin + pattern.block
        low_N, high_N = np.maximum(early_N, begin), np.minimum(near_N, end)
        high_N = np.maximum(low_N, high_N)
        between_N = np.clip(end - pattern.summary, low_N, high_N)
        some_N = _in_steps(pattern, query_N, low_N, between_N) + high_N - between_N
        is_drawn_N = np.zeros(length, bool)
        for block_N in drawn:
            is_drawn_N |= block_N == number
        counts_N += np.where(is_drawn_N, high_N - low_N, some_N)
    return counts_N


def _in_steps(pattern: Pattern, query_N: Counts, low_N: Counts, high_N: Counts) -> Counts:
    """How many keys from low to high, exclusive, a stride or a dilated window names."""
    found = np.zeros_like(query_N)
    if pattern.stride:
        found += _multiples(pattern.stride, query_N, low_N, high_N)
    if pattern.dilation > 1:
        reach = pattern.window * pattern.dilation
        low_N = np.minimum(np.maximum(low_N, query_N - reach + 1), high_N)
        found += _multiples(pattern.dilation, query_N, low_N, high_N)
        if pattern.stride:
            both = math.lcm(pattern.stride, pattern.dilation)
            found -= _multiples(both, query_N, low_N, high_N)
    return found


def _multiples(step: int, query_N: Counts, low_N: Counts, high_N: Counts) -> Counts:
    return (high_N - 1 - query_N) // step - (low_N - 1 - query_N) // step


@functools.lru_cache(maxsize=8)
def areas(pattern: Pattern, length: int) -> NDArray[np.float64]:
    """The same as FLOPs are counted by convention: n tokens that attend all before them have an
    area of n² / 2, so a query that attends them all has half a pair less."""
    counts_N = num_keys(pattern, length)
    return counts_N - 0.5 * (counts_N == np.arange(1, length + 1))


def attended_tokens(patterns: Sequence[Pattern], seq_len: int) -> float:
    """Tokens that attention counts for each token of a row, in the mean over layers, as if it were
    not causal: twice the causal area, which a window of w narrows from n² / 2 to w n - w² / 2."""
    return sum(_attended_tokens(one, seq_len) for one in patterns) / len(patterns)


@functools.cache
def _attended_tokens(pattern: Pattern, seq_len: int) -> float:
    """Twice the area per token, as `attended_tokens`."""
    if pattern == ALL:
        return seq_len
    return 2 * float(areas(pattern, seq_len).mean())
