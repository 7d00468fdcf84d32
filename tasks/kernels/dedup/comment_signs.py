"""Tells the signs that begin lines of a comment from bullets and dashes.

A *lone sign* is what stands between blanks and has no word in it. It is a comment sign where it
begins a line and is one of these:

* `//`, `/*`, `--` and what begins with one of `# ; % " ' ! > .`;
* `*` in a comment that `/*` opened and `*/` has not closed;
* any other ASCII sign in a paragraph that it comments: from the first line with the sign to the
  next blank line there are at least MIN_LINES such lines and at most a third as many others, and
  at least a third of them *run on*: a small ASCII letter follows the sign, and the line before has
  MIN_LINE_BYTES, so that it was broken for its width. Items of a list rarely do.

Cost: a paragraph with such a sign is read once more.
"""

from __future__ import annotations

from numba import int64, njit, uint64

from tasks.kernels.text.chars import HASH_PRIME, HASH_SEED, SPACE, decode

MIN_LINES = 3
MIN_LINE_BYTES = 40

_LEADS = tuple(b"#;%\"'!>.")
NO_COMMENT = (False, int64(0), int64(0))
"""What is known of comments where a text begins: whether `/*` is open, where the paragraph ends
that was judged last, and the first byte of the sign that comments it, or 0."""


@njit(cache=True, nogil=True)
def lone_signs(buf, begin, stop, end, classes, folds, comment):  # type: ignore[no-untyped-def]
    """Judge the signs between the last blank before `stop` and `stop`, in the text buf[begin:end].

    Returns their hash before mixing, 1 where they are a comment sign and else 0, and what is known
    of comments behind them.
    """
    is_open, judged_end, commenting = comment
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
    line = pos
    while line > begin and (buf[line - 1] == 32 or buf[line - 1] == 9):
        line -= 1
    # Dashes, bullets and signs between words are typography.
    if line > begin and buf[line - 1] != 10 and buf[line - 1] != 13:
        return HASH_SEED, uint64(0), (is_open and buf[stop - 1] != 47, judged_end, commenting)
    lead = int64(buf[pos])
    follow = int64(buf[pos + 1]) if stop - pos > 1 else int64(0)
    if lead == 47:  # // and /*
        counts = follow == 47 or follow == 42
        is_open = is_open or follow == 42
    elif lead == 42 and is_open:
        counts = True
        is_open = follow != 47
    elif lead in _LEADS or (lead == 45 and follow == 45 and stop - pos == 2):
        counts = True
    elif lead >= 0x80:  # a bullet or a dash
        counts = False
    else:
        if pos >= judged_end:
            is_comment, judged_end = _comments_paragraph(buf, line, end, lead)
            commenting = lead if is_comment else int64(0)
        counts = lead == commenting
    value = HASH_SEED
    while pos < stop:
        c = int64(buf[pos])
        if c < 0x80:
            pos += 1
        else:
            c, pos = decode(buf, pos, end)
        value = (value ^ uint64(folds[c])) * HASH_PRIME
    return value, uint64(counts), (is_open, judged_end, commenting)


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
            while pos < stop and (buf[pos] == 32 or buf[pos] == 9):
                pos += 1
            is_small = pos < stop and 97 <= buf[pos] <= 122
            num_run_on += is_small and bytes_before >= MIN_LINE_BYTES
        bytes_before = stop - line
        line = stop + 1
    is_comment = num_signed >= MIN_LINES and 4 * num_signed >= 3 * num_lines
    return is_comment and 3 * num_run_on >= num_signed, min(line, end)
