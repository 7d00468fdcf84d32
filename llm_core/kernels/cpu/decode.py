"""Computes what stands between the products of a decode step, for few rows in float32; products of
one row; and all layers of a step of one row with 8-bit weights."""

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
TO_WHOLE_BITS = np.int32(TO_WHOLE.view(np.int32))


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


@compiled_as_written
def multiply_rounded(numbers_OI, scale_O, x_I, most, codes_I, y_O):  # type: ignore[no-untyped-def]
    """y = weight x in whole numbers, as `llm_core.quantize.on_cpu.OrderedInt8` to the last bit.

    x is divided by its largest magnitude and rounded to -most … most; codes_I is room for that.
    Sums have 32 bits: 127 * 127 * inputs must fit. Four outputs at a time, as above.
    """
    outputs, inputs = numbers_OI.shape
    largest = np.zeros(1, np.int32)
    bits_I = x_I.view(np.int32)
    for i in range(inputs):  # compared as bits, where NaN is above all
        magnitude = np.int32(bits_I[i] & np.int32(0x7FFFFFFF))
        largest[0] = max(largest[0], magnitude)
    size, step = largest.view(np.float32)[0], np.float32(1 / most)
    inverse = np.float32(1) / step
    whole_I = np.empty(inputs, np.float32)
    for i in range(inputs):
        whole_I[i] = x_I[i] / size * inverse + TO_WHOLE
    whole_bits_I = whole_I.view(np.int32)
    for i in range(inputs):
        codes_I[i] = np.int16(whole_bits_I[i] - TO_WHOLE_BITS)
    # Numba would sum in 64 bits, half as many at once.
    part = outputs // 4
    for o in range(part):
        first, second, third, fourth = np.int32(0), np.int32(0), np.int32(0), np.int32(0)
        for i in range(inputs):
            x = np.int32(codes_I[i])
            first = np.int32(first + np.int32(numbers_OI[o, i]) * x)
            second = np.int32(second + np.int32(numbers_OI[o + part, i]) * x)
            third = np.int32(third + np.int32(numbers_OI[o + 2 * part, i]) * x)
            fourth = np.int32(fourth + np.int32(numbers_OI[o + 3 * part, i]) * x)
        y_O[o] = np.float32(first) * (step * scale_O[o]) * size
        y_O[o + part] = np.float32(second) * (step * scale_O[o + part]) * size
        y_O[o + 2 * part] = np.float32(third) * (step * scale_O[o + 2 * part]) * size
        y_O[o + 3 * part] = np.float32(fourth) * (step * scale_O[o + 3 * part]) * size
    for o in range(4 * part, outputs):
        total = np.int32(0)
        for i in range(inputs):
            total = np.int32(total + np.int32(numbers_OI[o, i]) * np.int32(codes_I[i]))
        y_O[o] = np.float32(total) * (step * scale_O[o]) * size


@compiled_as_written
def rounded_layers(  # type: ignore[no-untyped-def]
    stream_1C, normed_1C, cos_1D, sin_1D, eps, most, block, ffn_norms_LC, next_norms_LC,
    qkv_LOI, qkv_scale_LO, out_LOI, out_scale_LO, into_LOI, into_scale_LO, down_LOI, down_scale_LO,
    keys_LBTGD, values_LBTGD, tables_1M, lengths_1, windows_L,
):  # fmt: skip
    """All layers of one new token, in place: the residual stream and its norm become those after
    the last layer, and its keys and values are stored."""
    layers, outputs = qkv_LOI.shape[:2]
    groups, width = keys_LBTGD.shape[3:]
    parts, inner = outputs // (groups * width), into_LOI.shape[1]
    heads = groups * (parts - 2)
    codes_I = np.empty(max(stream_1C.shape[1], heads * width, inner // 2), np.int16)
    qkv_O, inner_O = np.empty(outputs, np.float32), np.empty(inner, np.float32)
    delta_1C, total_1C = np.empty_like(stream_1C), np.empty_like(stream_1C)
    q_1HD, k_1GD = np.empty((1, heads, width), np.float32), np.empty((1, groups, width), np.float32)
    mixed_1HD, v_1GD = np.empty_like(q_1HD), np.empty_like(k_1GD)
    acted_1BC = np.empty((1, inner // (2 * block), block), np.float32)
    for layer in range(layers):
        multiply_rounded(qkv_LOI[layer], qkv_scale_LO[layer], normed_1C[0], most, codes_I, qkv_O)
        qkv_1GHD = qkv_O.reshape((1, groups, parts, width))
        turn_heads(qkv_1GHD, cos_1D, sin_1D, q_1HD, k_1GD, v_1GD)
        attend(
            q_1HD, k_1GD, v_1GD, keys_LBTGD[layer], values_LBTGD[layer], tables_1M, lengths_1,
            windows_L[layer], mixed_1HD,
        )  # fmt: skip
        mixed_I = mixed_1HD.reshape(heads * width)
        multiply_rounded(out_LOI[layer], out_scale_LO[layer], mixed_I, most, codes_I, delta_1C[0])
        add_then_norm(stream_1C, delta_1C, ffn_norms_LC[layer], eps, total_1C, normed_1C)
        multiply_rounded(
            into_LOI[layer], into_scale_LO[layer], normed_1C[0], most, codes_I, inner_O
        )
        gate(inner_O.reshape((1, inner // (2 * block), 2, block)), acted_1BC)
        acted_I = acted_1BC.reshape(inner // 2)
        multiply_rounded(down_LOI[layer], down_scale_LO[layer], acted_I, most, codes_I, delta_1C[0])
        add_then_norm(total_1C, delta_1C, next_norms_LC[layer], eps, stream_1C, normed_1C)
