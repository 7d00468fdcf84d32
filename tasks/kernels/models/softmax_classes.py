"""Computes the probability of one class of a fastText model with plain softmax, for the beginning
of each text.

The arithmetic of fastText 0.9 (Joulin et al. 2016; src/dictionary.cc, loss.cc) over Arrow buffers:
words parted by white space (Python's, not only ASCII), rows of words, of their character n-grams
and of word n-grams added up in that order, as fastText does, and averaged; a softmax over all
classes. The bytes `__label__` and `</s>`, which mean something else to fastText, are read as two
words each, cut before their last two underscores and behind the `<`
(`tasks.scores.classifier.text_line`).

Each text is walked three times, so that look-ups of its words, and of its rows, do not wait for one
another. Cost: a hash step per byte, a look-up and `dim` sums per word and per n-gram. Left out: the
rounding of the compiler that built fastText.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from tasks.kernels import inner
from tasks.kernels.models.fasttext_rows import (
    FNV_SEED,
    add_rows,
    find_rows,
    find_word,
    fnv,
    is_label,
    survived,
    survivors_before,
)
from tasks.kernels.text.addresses import pointers
from tasks.kernels.text.chars import SPACE, decode

_LESS, _UNDERSCORE = 0x3C, 0x5F
_PAIR_FACTOR = np.uint64(116049371)
_END_OF_LINE = np.frombuffer(b"</s>", np.uint8)
_FLOOR = 1e-5
"""fastText adds this to every probability, as far as a logarithm and back."""


@inner
def _find_words(buf, begin, end, classes, starts, stops, hashes):  # type: ignore[no-untyped-def]
    """Find the words of buf[begin:end]. Returns how many, and whether anything but white space is
    there."""
    count, start, value, shown = 0, np.int64(-1), FNV_SEED, False
    pos, not_before = begin, begin
    while pos < end:
        char, after = np.int64(buf[pos]), pos + 1
        if char >= 0x80:
            char, after = decode(buf, pos, end)
        if char == 0 or classes[char] == SPACE:
            shown |= char == 0  # parts words for fastText, and is none of Python's white space
            if start >= 0:
                starts[count], stops[count], hashes[count] = start, pos, value
                count, start, value = count + 1, np.int64(-1), FNV_SEED
            pos = after
            continue
        if start < 0:
            start = pos
        splits = False
        if char == _LESS:
            splits = (
                pos + 4 <= end
                and buf[pos + 1] == 0x2F
                and buf[pos + 2] == 0x73
                and buf[pos + 3] == 0x3E
            )
        elif char == _UNDERSCORE and pos >= not_before and is_label(buf, pos, end):
            for i in range(pos, pos + 7):
                value = fnv(value, buf[i])
            # What is cut in two is not looked at again, as by `str.replace`.
            splits, after, not_before = True, pos + 7, pos + 9
        if char != _UNDERSCORE or not splits:
            for i in range(pos, after):
                value = fnv(value, buf[i])
        pos = after
        if splits:
            starts[count], stops[count], hashes[count] = start, pos, value
            count, start, value = count + 1, np.int64(-1), FNV_SEED
    if start >= 0:
        starts[count], stops[count], hashes[count] = start, end, value
        count += 1
    return count, shown or count > 0


@inner
def _probability(hidden, outputs, label, values):  # type: ignore[no-untyped-def]
    """Softmax of the products of `hidden` with all rows of `outputs`, at `label`."""
    most = np.float32(-np.inf)
    for i in range(values.size):
        dot = np.float32(0)
        for k in range(outputs.shape[1]):
            dot += outputs[i, k] * hidden[k]
        values[i] = dot
        most = dot if dot > most or dot != dot else most  # a NaN stays
    total = np.float32(0)
    for i in range(values.size):
        values[i] = np.float32(math.exp(np.float64(values[i] - most)))
        total += values[i]
    log_score = np.float32(math.log(np.float64(values[label] / total) + _FLOOR))
    score = np.float32(math.exp(log_score))
    return score if not score > np.float32(1) else np.float32(1)


@njit(cache=True, nogil=True, error_model="numpy")
def class_probabilities(  # type: ignore[no-untyped-def]
    buf, offsets, most_bytes, classes, words, lengths, grams, rows, outputs, label, scores
):
    """Write the probability of class `label` for the first `most_bytes` (whole characters) of each
    text.

    Returns how many texts hold nothing but white space; their scores are left as they are. The
    tables are those of `tasks.fasttext.files.FastTextModel`. A model that holds NaN gives NaN.
    """
    text, limit, kinds = pointers(buf), np.int64(buf.size), pointers(classes)
    (slots, word_bytes, word_ends), (bits, firsts) = pointers((words, grams))
    slot_mask = np.int64(words[0].size - 1)
    num_words, num_classes = np.int64(words[2].size), outputs.shape[0]
    longest, ngrams = max(lengths[1], 0), lengths[4]
    buckets, pruned, width = np.uint64(lengths[2]), grams[0].size > 0, np.int64(rows.shape[1])
    sizes = lengths[0], lengths[1], lengths[2], num_words, pruned
    room = np.int64(0)
    for d in range(len(scores)):
        length = offsets[d + 1] - offsets[d]
        room = length if length > room else room
    room = (room if room < most_bytes else most_bytes) + 2  # words, with the end of the line
    starts, stops = np.empty(room, np.int64), np.empty(room, np.int64)
    hashes = np.empty(room, np.uint32)
    # A word of one byte has three characters with its marks.
    which = np.empty(room * (1 + 3 * longest + ngrams) + 1, np.int64)
    marked, marks = np.empty(room + 2 + longest, np.uint8), np.empty(room + 3, np.int32)
    hidden, values = np.empty(rows.shape[1], np.float32), np.empty(num_classes, np.float32)
    end_hash = FNV_SEED
    for i in range(_END_OF_LINE.size):
        end_hash = fnv(end_hash, _END_OF_LINE[i])
    blank = 0
    for d in range(len(scores)):
        begin, end = np.int64(offsets[d]), np.int64(offsets[d + 1])
        if end - begin > most_bytes:
            end = begin + most_bytes
            while end > begin and buf[end] & 0xC0 == 0x80:
                end -= 1
        found, shows = _find_words(
            text, begin, end, kinds, pointers(starts), pointers(stops), pointers(hashes)
        )
        if not shows:
            blank += 1
            continue
        read, count = 0, np.int64(0)
        found_rows, marked_word, mark_places = pointers(which), pointers(marked), pointers(marks)
        for w in range(found):
            start, stop = starts[w], stops[w]
            number = find_word(
                text, limit, start, stop, hashes[w], slots, slot_mask, word_bytes, word_ends
            )
            if number >= 0:
                which[count] = number
                count += 1
            elif buf[start] == _UNDERSCORE and is_label(text, start, stop):
                continue
            hashes[read] = hashes[w]
            read += 1
            if lengths[1] > 0:
                size = stop - start + 2
                marked[0], marked[size - 1] = 0x3C, 0x3E
                for i in range(size - 2):
                    marked[i + 1] = buf[start + i]
                count = find_rows(
                    marked_word, size, sizes, bits, firsts, mark_places, found_rows, count
                )
        hashes[read] = end_hash
        read += 1
        if lengths[3] >= 0:
            which[count] = lengths[3]
            count += 1
        if ngrams > 1:
            for w in range(read):
                # fastText keeps hashes of words as signed numbers.
                value = np.uint64(np.int64(np.int32(hashes[w])))
                for other in range(w + 1, min(w + ngrams, read)):
                    value = value * _PAIR_FACTOR + np.uint64(np.int64(np.int32(hashes[other])))
                    place = np.int64(value % buckets)
                    if not pruned:
                        which[count] = num_words + place
                        count += 1
                    elif survived(bits, place):
                        which[count] = num_words + survivors_before(bits, firsts, place)
                        count += 1
        for k in range(hidden.size):
            hidden[k] = 0
        add_rows(pointers(hidden), np.int64(0), pointers(rows), found_rows, count, width)
        scale = np.float32(1.0 / count)
        for k in range(hidden.size):
            hidden[k] *= scale
        # Without a row fastText names no class.
        scores[d] = _probability(hidden, outputs, label, values) if count else np.float32(0)
    return blank
