"""Computes what stands between the products of a decode step, for few rows in float32; and products
of one row."""

from __future__ import annotations

import math

import numpy as np

from llm_core.kernels.cpu import compiled, compiled_as_written

# N tokens, each of a sequence of its own · M blocks of a sequence at most · T tokens of a block
# O outputs · I inputs · H query heads · G key/value heads · R query heads that share one
# D width of a head · C inner channels of a block


@compiled
def multiply_row(weight_OI, x_I, y_O):  # type: ignore[no-untyped-def]
    """y = weight x. Four outputs at a time, from all over the weight: a processor reads several
    places of memory faster than one."""
    outputs, inputs = weight_OI.shape
    part = outputs // 4
    for o in range(part):
        first, second, third, fourth = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        for i in range(inputs):
            x = x_I[i]
            first += weight_OI[o, i] * x
            second += weight_OI[o + part, i] * x
            third += weight_OI[o + 2 * part, i] * x
            fourth += weight_OI[o + 3 * part, i] * x
        y_O[o], y_O[o + part] = first, second
        y_O[o + 2 * part], y_O[o + 3 * part] = third, fourth
    for o in range(4 * part, outputs):
        total = np.float32(0)
        for i in range(inputs):
            total += weight_OI[o, i] * x_I[i]
        y_O[o] = total


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


LOG2_E, LN_2_HIGH, LN_2_LOW = np.float32(1.4426950409), np.float32(0.693359375), -2.12194440e-4
"""ln 2 in two parts, of which whole multiples of the first are exact."""
TO_WHOLE = np.float32(3 << 22)
"""Added to a small float32 number, it leaves the nearest whole one in the last bits."""


@compiled_as_written
def gate(inner_NB2C, out_NBC):  # type: ignore[no-untyped-def]
    """silu(gate) * up, where inner holds blocks of gate rows, then of up rows.

    The exponential is a polynomial over half a power of two (Cephes), as the compiler computes
    several of those at once, but calls of exp one by one. Error: 2e-7 of the result.
    """
    rows, blocks, _, block = inner_NB2C.shape
    whole_C, power_C = np.empty(block, np.float32), np.empty(block, np.int32)
    bits_C, scale_C = whole_C.view(np.int32), power_C.view(np.float32)
    low = np.float32(LN_2_LOW)
    for row in range(rows):
        for b in range(blocks):
            gate_C, up_C, out_C = inner_NB2C[row, b, 0], inner_NB2C[row, b, 1], out_NBC[row, b]
            for c in range(block):
                x = -gate_C[c]
                # Comparisons, which NaN passes. Beyond, silu is 0 or the gate itself.
                x = np.float32(88) if x > np.float32(88) else x
                x = np.float32(-87) if x < np.float32(-87) else x
                out_C[c] = x
                whole_C[c] = x * LOG2_E + TO_WHOLE
            for c in range(block):  # 2 to this power, as bits
                power_C[c] = np.int32(bits_C[c] << 23) + np.int32(127 << 23)
            for c in range(block):
                whole = whole_C[c] - TO_WHOLE
                r = (out_C[c] - whole * LN_2_HIGH) - whole * low
                p = np.float32(1 / 5040)
                p = p * r + np.float32(1 / 720)
                p = p * r + np.float32(1 / 120)
                p = p * r + np.float32(1 / 24)
                p = p * r + np.float32(1 / 6)
                p = p * r + np.float32(0.5)
                p = p * r + np.float32(1)
                p = p * r + np.float32(1)
                out_C[c] = gate_C[c] / (np.float32(1) + p * scale_C[c]) * up_C[c]


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
