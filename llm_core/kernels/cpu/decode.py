"""Computes what stands between the products of a decode step, for few rows in float32."""

from __future__ import annotations

import math

import numpy as np

from llm_core.kernels.cpu import compiled

# N tokens, each of a sequence of its own · M blocks of a sequence at most · T tokens of a block
# H query heads · G key/value heads · R query heads that share one · D width of a head


@compiled
def add_then_norm(x_ND, delta_ND, weight_D, eps, total_ND, normed_ND):  # type: ignore[no-untyped-def]
    """x + delta, and its root-mean-square norm."""
    rows, width = x_ND.shape
    for row in range(rows):
        squares = np.float32(0)
        for d in range(width):
            total = x_ND[row, d] + delta_ND[row, d]
            total_ND[row, d] = total
            squares += total * total
        scale = np.float32(1 / math.sqrt(squares / np.float32(width) + eps))
        for d in range(width):
            normed_ND[row, d] = total_ND[row, d] * scale * weight_D[d]


@compiled
def turn_heads(qkv_NGHD, cos_ND, sin_ND, q_NHD, k_NGD, v_NGD):  # type: ignore[no-untyped-def]
    """Queries and keys turned by their positions, and values, each heads by heads.

    sin carries the sign of each channel's partner (`llm_core.model.rope`).
    """
    rows, groups, parts, width = qkv_NGHD.shape
    half, shared_by = width // 2, parts - 2
    for row in range(rows):
        for group in range(groups):
            for part in range(parts - 1):
                head = qkv_NGHD[row, group, part]
                turned = (
                    q_NHD[row, group * shared_by + part] if part < shared_by else k_NGD[row, group]
                )
                for d in range(half):
                    first, second = head[d], head[half + d]
                    turned[d] = first * cos_ND[row, d] + second * sin_ND[row, d]
                    turned[half + d] = (
                        second * cos_ND[row, half + d] + first * sin_ND[row, half + d]
                    )
            for d in range(width):
                v_NGD[row, group, d] = qkv_NGHD[row, group, parts - 1, d]


@compiled
def attend(q_NHD, k_NGD, v_NGD, keys_BTGD, values_BTGD, tables_NM, lengths_N, window, mixed_NHD):  # type: ignore[no-untyped-def]
    """Store the last key and value of each sequence; its query attends them and those before, where
    they lie. window: 0, or how many of the last keys."""
    rows, heads, width = q_NHD.shape
    size, groups = keys_BTGD.shape[1:3]
    shared_by, scale = heads // groups, np.float32(1 / math.sqrt(width))
    score_HK = np.empty((heads, lengths_N.max()), np.float32)
    for row in range(rows):
        num_keys = lengths_N[row]
        last = num_keys - 1
        block = tables_NM[row, last // size]
        for group in range(groups):  # slices would compile for seconds
            for d in range(width):
                keys_BTGD[block, last % size, group, d] = k_NGD[row, group, d]
                values_BTGD[block, last % size, group, d] = v_NGD[row, group, d]
        first = max(0, num_keys - window) if window else 0
        begin_of_first = first - first % size
        for begin in range(begin_of_first, num_keys, size):
            block = tables_NM[row, begin // size]
            for key in range(max(begin, first), min(begin + size, num_keys)):
                for head in range(heads):
                    group, score = head // shared_by, np.float32(0)
                    for d in range(width):
                        score += q_NHD[row, head, d] * keys_BTGD[block, key - begin, group, d]
                    score_HK[head, key] = score * scale
        for head in range(heads):
            best = score_HK[head, first]
            for key in range(first + 1, num_keys):
                best = max(best, score_HK[head, key])
            total = np.float32(0)
            for key in range(first, num_keys):
                weight = np.float32(math.exp(score_HK[head, key] - best))
                score_HK[head, key] = weight
                total += weight
            for key in range(first, num_keys):
                score_HK[head, key] /= total
            for d in range(width):
                mixed_NHD[row, head, d] = 0
        for begin in range(begin_of_first, num_keys, size):
            block = tables_NM[row, begin // size]
            for key in range(max(begin, first), min(begin + size, num_keys)):
                for head in range(heads):
                    group, weight = head // shared_by, score_HK[head, key]
                    for d in range(width):
                        value = values_BTGD[block, key - begin, group, d]
                        mixed_NHD[row, head, d] += weight * value
