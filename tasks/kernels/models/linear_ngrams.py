"""Trains and applies logistic regression on hashed n-grams of units, in one pass each.

A text of n features (every n-gram of up to `ngrams` units, repeats included) has the margin b + Σ
w[feature] / √n, its probability is the logistic function of that. Training is AdaGrad (Duchi et al.
2011) on the log loss, text by text in the given order: the problem is convex, each weight has a
step size of its own, and there is not due to chance in it. Features are hashed into 2^bits places
without a table of words (Weinberger et al. 2009, "Feature Hashing for Large Scale Multitask
Learning").

Cost: a few nanoseconds per feature and pass; eight bytes per place in training, four in use.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from tasks.kernels.text.chars import mix64

_BASE = np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True, nogil=True)
def _features(units, first, last, ngrams, shift, out):  # type: ignore[no-untyped-def]
    """Write the places of all n-grams of units[first:last] into `out`; returns how many."""
    count = 0
    for i in range(first, last):
        value = np.uint64(0)
        for j in range(i, min(i + ngrams, last)):
            value = value * _BASE + units[j]
            out[count] = np.int64(mix64(value) >> shift)
            count += 1
    return count


@njit(cache=True, nogil=True)
def _margin(places, count, weights, bias):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(count):
        total += weights[places[i]]
    return bias + total / math.sqrt(count)


@njit(cache=True, nogil=True)
def train_weights(units, begins, positive, ngrams, bits, epochs, lr, weights):  # type: ignore[no-untyped-def]
    """Fit `weights` (float32, 2^bits, zero before) to rows units[begins[i]:begins[i + 1]]; returns
    the bias."""
    squares = np.zeros(weights.size, np.float32)
    bias, bias_squares = 0.0, 0.0
    longest = 0
    for i in range(begins.size - 1):
        longest = max(longest, begins[i + 1] - begins[i])
    places = np.empty(longest * ngrams + 1, np.int64)
    shift = np.uint64(64 - bits)
    for _ in range(epochs):
        for i in range(begins.size - 1):
            count = _features(units, begins[i], begins[i + 1], ngrams, shift, places)
            if count == 0:
                continue
            error = 1 / (1 + math.exp(-_margin(places, count, weights, bias))) - positive[i]
            bias_squares += error * error
            bias -= lr * error / math.sqrt(bias_squares + 1e-12)
            gradient = error / math.sqrt(count)
            for k in range(count):
                place = places[k]
                squares[place] += np.float32(gradient * gradient)
                weights[place] -= np.float32(lr * gradient / math.sqrt(squares[place] + 1e-12))
    return bias


@njit(cache=True, nogil=True)
def probabilities(units, begins, rows, ngrams, bits, weights, bias, out):  # type: ignore[no-untyped-def]
    """out[k]: probability of row rows[k]; left as it is for a row without units."""
    longest = 0
    for i in range(begins.size - 1):
        longest = max(longest, begins[i + 1] - begins[i])
    places = np.empty(longest * ngrams + 1, np.int64)
    for k in range(rows.size):
        row = rows[k]
        count = _features(units, begins[row], begins[row + 1], ngrams, np.uint64(64 - bits), places)
        if count:
            out[k] = 1 / (1 + math.exp(-_margin(places, count, weights, bias)))
