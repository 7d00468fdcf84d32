"""Edits logits and draws the next token of each row by the definitions of
`llm_core.infer.choice.sampling`.

Nothing is sorted but the few tokens among which a filter ends: tokens are counted and weighed in
narrow ranges of logits, from the likeliest down, until top-k or top-p is reached. What is kept
is then a logit and, of tokens with that logit, a highest id.
"""

from __future__ import annotations

import numba
import numpy as np

from llm_core.kernels.cpu import compiled, compiled_as_written

# B rows · V vocabulary · K places for ids

RANGES_PER_NAT, RANGES = 64, 2048
"""The last range has what is less likely than the best by e^32 and more."""
RUN = 128
"""Weights that are summed before sums are compared with a number."""


@compiled_as_written
def edit(  # type: ignore[no-untyped-def]
    logits_V, ids_K, counts_K, is_repeated_K, bias_K, num_ids, repetition, presence, frequency
):
    """Edit the logits of the first num_ids ids, which are in range and differ, in place.

    counts: how often each is in the answer; is_repeated: whether it is in prompt or answer. All
    numbers but ids and counts: float32.
    """
    for place in range(num_ids):
        token, count = ids_K[place], np.float32(counts_K[place])
        logit = logits_V[token]
        if is_repeated_K[place]:
            logit = logit / repetition if logit > 0 else logit * repetition
        if count > 0:
            logit -= presence
        logit -= frequency * count
        logits_V[token] = logit + bias_K[place]


@compiled
def draw(logits_BV, weight_BV, best_B, divisor_B, top_k_B, top_p_B, min_p_B, uniform_B):  # type: ignore[no-untyped-def]
    """ids_B, of finite rows; 0 elsewhere.

    logits, weights (relative to the best, after temperature), best, divisor (the temperature) and
    min_p: float32; top_k: int64; top_p, uniform: float64.
    """
    rows, vocab = logits_BV.shape
    ids_B = np.zeros(rows, np.int64)
    range_V = np.empty(vocab, np.int32)
    counts, masses = np.empty(RANGES + 1, np.int64), np.empty(RANGES + 1, np.float64)
    runs = np.empty(-(-vocab // RUN), np.float64)
    for row in range(rows):
        best = best_B[row]
        if not np.isfinite(best):
            continue
        logits_V, weight_V = logits_BV[row], weight_BV[row]
        top_k, top_p = top_k_B[row], top_p_B[row]
        scale = np.float32(RANGES_PER_NAT) / divisor_B[row]
        # Kept: logits above the last, and those equal to it up to its id.
        last_logit, last_id = np.float32(-np.inf), vocab
        if 0 < top_k < vocab or top_p < 1:
            total = _weigh(logits_V, weight_V, best, scale, range_V, counts, masses)
            if 0 < top_k < vocab:
                at, seen, mass = 0, 0, 0.0
                while at < RANGES and seen + counts[at] < top_k:
                    seen += counts[at]
                    mass += masses[at]
                    at += 1
                if at < RANGES:
                    ids = _ordered(logits_V, range_V, at, counts[at])
                    last_id = ids[top_k - seen - 1]
                    last_logit = logits_V[last_id]
                    for i in ids[: top_k - seen]:
                        mass += weight_V[i]
                    total = mass
            if top_p < 1:
                wanted, at, mass = top_p * total, 0, 0.0
                while at < RANGES and mass + masses[at] < wanted:
                    mass += masses[at]
                    at += 1
                # Beyond the ranges where all of them round to less than is wanted.
                if at < RANGES:
                    ids = _ordered(logits_V, range_V, at, counts[at])
                    place = 0
                    while mass + weight_V[ids[place]] < wanted and place < len(ids) - 1:
                        mass += weight_V[ids[place]]
                        place += 1
                    logit = logits_V[ids[place]]
                    # Rounding may ask for a token more than top-k left.
                    if logit > last_logit or (logit == last_logit and ids[place] < last_id):
                        last_logit, last_id = logit, ids[place]
        ids_B[row] = _drawn(
            logits_V, weight_V, last_logit, last_id, min_p_B[row], uniform_B[row], runs
        )
    return ids_B


@numba.njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def _weigh(logits_V, weight_V, best, scale, range_V, counts, masses):  # type: ignore[no-untyped-def]
    """Fill the range of each token, and how many a range has and what they weigh; their sum.

    Tokens without weight go behind the last range.
    """
    for i in range(len(range_V)):  # by itself, so that it is done for several tokens at once
        below = np.int32(min((best - logits_V[i]) * scale, np.float32(RANGES - 1)))
        range_V[i] = below if weight_V[i] > 0 else RANGES
    for at in range(RANGES + 1):
        counts[at], masses[at] = 0, 0.0
    for i in range(len(range_V)):
        counts[range_V[i]] += 1
        masses[range_V[i]] += weight_V[i]
    total = 0.0
    for at in range(RANGES):
        total += masses[at]
    return total


@numba.njit(nogil=True, error_model="numpy")
def _ordered(logits_V, range_V, at, count):  # type: ignore[no-untyped-def]
    """Ids in a range, the likeliest first, then by id."""
    ids, num_found = np.empty(count, np.int64), 0
    for i in range(len(range_V)):
        if range_V[i] == at:
            ids[num_found] = i
            num_found += 1
    return ids[np.argsort(-logits_V[ids], kind="mergesort")]


@numba.njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def _drawn(logits_V, weight_V, last_logit, last_id, min_p, uniform, runs):  # type: ignore[no-untyped-def]
    """The id where the sum of kept weights in the order of ids passes this part of all."""
    vocab, total = len(logits_V), 0.0
    for run in range(len(runs)):
        begin, end = run * RUN, min((run + 1) * RUN, vocab)
        middle, mass = max(begin, min(last_id + 1, end)), 0.0
        for i in range(begin, middle):
            kept = logits_V[i] >= last_logit and weight_V[i] >= min_p
            mass += np.float64(weight_V[i]) if kept else 0.0
        for i in range(middle, end):
            kept = logits_V[i] > last_logit and weight_V[i] >= min_p
            mass += np.float64(weight_V[i]) if kept else 0.0
        runs[run] = mass
        total += mass
    wanted, reached, run = uniform * total, 0.0, 0
    while run < len(runs) - 1 and reached + runs[run] <= wanted:
        reached += runs[run]
        run += 1
    found = 0
    for i in range(run * RUN, min((run + 1) * RUN, vocab)):
        logit, weight = logits_V[i], weight_V[i]
        kept = logit > last_logit or (logit == last_logit and i <= last_id)
        if kept and weight >= min_p and weight > 0:
            # Two sums round apart: the last of the run, where none passes.
            found = i
            reached += weight
            if reached > wanted:
                break
    return found
