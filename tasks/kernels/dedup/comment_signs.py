"""Tells the signs that frame lines of a comment from bullets and dashes.

A *lone sign* is what stands between blanks and has no word in it. It is a comment sign where it
begins a line and is one of these:

* `//`, `/*`, `--` and what begins with one of `# ; % " ' ! > .`;
* `*` in a comment that `/*` opened and `*/` has not closed;
* another ASCII sign that *comments* its paragraph, if it is the first such sign there. The
  paragraph is the lines from the first with the sign to the next blank one: at least MIN_LINES
  begin with the sign, at most a third as many do not, and at least a third *run on*. Such a line
  has nothing but the sign, or a small ASCII letter follows the sign and the line before has
  MIN_LINE_BYTES, so that it was broken for its width. Items of a list rarely do.

Where it ends a line it is one if as many lines end with it: the right side of a box.

Cost: a paragraph with such signs is read once or twice more.
"""

from __future__ import annotations

from numba import int64, njit, uint64

from tasks.kernels.text.chars import HASH_PRIME, HASH_SEED, SPACE, decode

MIN_LINES = 3
MIN_LINE_BYTES = 40

_LEADS = tuple(b"#;%\"'!>.")
NO_COMMENT = (False, int64(0), int64(-1), int64(0), int64(-1))
"""What is known of comments where a text begins: whether `/*` is open; where the paragraph ends
whose left side was judged last, and the first byte of the sign that comments it, or -1; the same of
the right side, with the last byte."""


@njit(cache=True, nogil=True)
def lone_signs(buf, begin, stop, end, classes, folds, comment):  # type: ignore[no-untyped-def]
    """Judge the signs between the last blank before `stop` and `stop`, in the text buf[begin:end].

    Returns their hash before mixing, 1 where they are a comment sign and else 0, and what is known
    of comments behind them.
    """
    is_open, left_end, left, right_end, right = comment
    pos = stop
    while pos > begin:
        start = pos - 1
        c = int64(buf[start])
        if c >= 0x80:
            while start > begin and buf[start] & 0xC0 == 0x80:
                start -= 1
            c, _ = decode(buf, start, end)
        if classes[c] == SPACE:
            break
        pos = start
    line, after = pos, stop
    while line > begin and (buf[line - 1] == 32 or buf[line - 1] == 9):
        line -= 1
    begins = line == begin or buf[line - 1] == 10 or buf[line - 1] == 13
    lead, last = int64(buf[pos]), int64(buf[stop - 1])
    follow = int64(buf[pos + 1]) if stop - pos > 1 else int64(0)
    # */ and **/, but for what /*/ opens.
    closes = stop - pos > 1 and last == 47 and buf[stop - 2] == 42
    closes = closes and not (lead == 47 and stop - pos == 3)
    counts = False
    if begins and lead == 47:  # // and /*
        counts = follow == 47 or follow == 42
        is_open = is_open or follow == 42
    elif begins and lead < 0x80:
        counts = lead in _LEADS or (lead == 42 and is_open)
        counts = counts or (lead == 45 and follow == 45 and stop - pos == 2)
        if not counts and lead != 60:  # <!-- stands before what comments the paragraph
            if pos >= left_end:
                is_comment, left_end = _comments_paragraph(buf, line, end, lead)
                left = lead if is_comment else int64(-1)
            counts = lead == left
    is_open = is_open and not closes
    # Between words, dashes, bullets and signs are typography.
    while after < end and (buf[after] == 32 or buf[after] == 9 or buf[after] == 13):
        after += 1
    if not counts and last < 0x80 and (after == end or buf[after] == 10):
        if pos >= right_end:
            is_side, right_end = _ends_lines(buf, pos, end, last)
            right = last if is_side else int64(-1)
        counts = last == right
    value = HASH_SEED
    while pos < stop:
        c = int64(buf[pos])
        if c < 0x80:
            pos += 1
        else:
            c, pos = decode(buf, pos, end)
        value = (value ^ uint64(folds[c])) * HASH_PRIME
    return value, uint64(counts), (is_open, left_end, left, right_end, right)


@njit(cache=True, nogil=True)
def _comments_paragraph(buf, line, end, lead):  # type: ignore[no-untyped-def]
    """Whether lines of the paragraph from `line` on stand behind a comment sign that begins with
    byte `lead`, and where the paragraph ends."""
    num_lines, num_signed, num_run_on = 0, 0, 0
    bytes_before = 0
    while line < end:
        stop = line
        while stop < end and buf[stop] != 10:
            stop += 1
        pos = line
        while pos < stop and (buf[pos] == 32 or buf[pos] == 9 or buf[pos] == 13):
            pos += 1
        if pos == stop:
            break
        num_lines += 1
        if buf[pos] == lead:
            num_signed += 1
            while pos < stop and buf[pos] > 32:
                pos += 1
            while pos < stop and (buf[pos] == 32 or buf[pos] == 9 or buf[pos] == 13):
                pos += 1
            is_small = pos < stop and 97 <= buf[pos] <= 122
            num_run_on += pos == stop or (is_small and bytes_before >= MIN_LINE_BYTES)
        bytes_before = stop - line
        line = stop + 1
    is_comment = num_signed >= MIN_LINES and 4 * num_signed >= 3 * num_lines
    return is_comment and 3 * num_run_on >= num_signed, min(line, end)


@njit(cache=True, nogil=True)
def _ends_lines(buf, pos, end, last):  # type: ignore[no-untyped-def]
    """Whether lines of the paragraph from `pos` on end with byte `last`, and where the
    paragraph ends."""
    num_lines, num_signed = 0, 0
    while pos < end:
        stop = pos
        while stop < end and buf[stop] != 10:
            stop += 1
        behind = stop
        while behind > pos and (
            buf[behind - 1] == 32 or buf[behind - 1] == 9 or buf[behind - 1] == 13
        ):
            behind -= 1
        if behind == pos:
            break
        num_lines += 1
        num_signed += buf[behind - 1] == last
        pos = stop + 1
    return num_signed >= MIN_LINES and 4 * num_signed >= 3 * num_lines, min(pos, end)
