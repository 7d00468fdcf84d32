"""From UTF-8 to token ids by byte-level BPE or WordPiece: cut into pre-tokens, look each up, cut
those not met before.

The cuts are the expressions of `tasks.tokenizer.pretokenizers`, written out as a walk over code
points; `limits` (int64[5]) bounds runs of letters, digits, signs, line ends after signs, and
spaces. Character classes come from the expressions' own engine. A pre-token that is in the table
costs a hash and a comparison; a new one is merged by the definition, lowest rank first and leftmost
of equals, quadratic in its length, which is why documents with a pre-token above MAX_MERGED_BYTES
are left to the caller. For WordPiece it is cut by walks through a tree of pieces, each at most as
long as the longest piece.

The table maps the bytes of a pre-token to its ids, exactly: equal hashes are compared byte by byte.
It takes what fits and then no more; the caller empties it between batches.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.kernels.text.chars import decode, mix64
from tasks.kernels.text.interning import span_key

OTHER, SPACE, LINE_END, LETTER, NUMBER = range(5)
LETTERS, DIGITS, SIGNS, LINE_ENDS, SPACES = range(5)
MAX_MERGED_BYTES = 1024
MAX_REMEMBERED_BYTES = 64
LONG_S = 0x17F
"""Equals `s` where case is ignored."""

# What `state` counts.
NUM_WORDS, NUM_WORD_BYTES, NUM_WORD_IDS = range(3)


@njit(cache=True, nogil=True, no_cpython_wrapper=True, inline="always")
def _run(buf, pos, end, classes, kind, limit):  # type: ignore[no-untyped-def]
    """Where a run of at most `limit` characters of a class ends."""
    count = 0
    while pos < end and count < limit:
        if buf[pos] < 0x80:  # most bytes: not worth a call
            code, after = np.int64(buf[pos]), pos + 1
        else:
            code, after = decode(buf, pos, end)
        if classes[code] != kind:
            break
        pos = after
        count += 1
    return pos


@njit(cache=True, nogil=True, no_cpython_wrapper=True)
def _contraction(buf, pos, end, lower_only):  # type: ignore[no-untyped-def]
    """Where one of s d m t ll ve re ends that begins at `pos`; 0 where none does."""
    code, after = decode(buf, pos, end)
    if code == LONG_S:
        return 0 if lower_only else after
    if code > 0x7F:
        return 0
    first = code if lower_only else code | 0x20
    if first == 0x73 or first == 0x64 or first == 0x6D or first == 0x74:
        return after
    if after >= end:
        return 0
    second = np.int64(buf[after]) if lower_only else np.int64(buf[after]) | 0x20
    if (first == 0x6C and second == 0x6C) or ((first == 0x76 or first == 0x72) and second == 0x65):
        return after + 1
    return 0


@njit(cache=True, nogil=True, no_cpython_wrapper=True)
def _blanks(buf, pos, end, classes, limit, as_gpt2):  # type: ignore[no-untyped-def]
    """Where a pre-token of white space ends: behind the last line end, else before the last blank
    of a run that goes on."""
    count, place, before, last_line_end = 0, pos, pos, 0
    while place < end:
        code, after = decode(buf, place, end)
        kind = classes[code]
        if kind != SPACE and kind != LINE_END:
            break
        # One more than `limit` blanks may be taken where the last is a line end.
        if count <= limit and kind == LINE_END and not as_gpt2:
            last_line_end = after
        if count == limit:
            return last_line_end if last_line_end else place
        before, place = place, after
        count += 1
    if last_line_end:
        return last_line_end
    return place if place == end or count == 1 else before


@njit(cache=True, nogil=True, no_cpython_wrapper=True, inline="always")
def _next_word(buf, pos, end, classes, limits, as_gpt2):  # type: ignore[no-untyped-def]
    """Where the pre-token that begins at `pos` ends."""
    if buf[pos] < 0x80:
        code, after = np.int64(buf[pos]), pos + 1
    else:
        code, after = decode(buf, pos, end)
    kind = classes[code]
    if code == 0x27 and after < end:
        stop = _contraction(buf, after, end, as_gpt2)
        if stop:
            return stop
    if kind == LETTER:
        return _run(buf, pos, end, classes, LETTER, limits[LETTERS])
    following = -1
    if after < end:
        if buf[after] < 0x80:
            next_code = np.int64(buf[after])
        else:
            next_code, _ = decode(buf, after, end)
        following = classes[next_code]
    if following == LETTER and (code == 0x20 if as_gpt2 else kind != NUMBER and kind != LINE_END):
        return _run(buf, after, end, classes, LETTER, limits[LETTERS])
    if kind == NUMBER:
        return _run(buf, pos, end, classes, NUMBER, limits[DIGITS])
    if as_gpt2 and code == 0x20 and following == NUMBER:
        return _run(buf, after, end, classes, NUMBER, limits[DIGITS])
    if kind == OTHER or (code == 0x20 and following == OTHER):
        stop = _run(buf, pos if kind == OTHER else after, end, classes, OTHER, limits[SIGNS])
        return stop if as_gpt2 else _run(buf, stop, end, classes, LINE_END, limits[LINE_ENDS])
    return _blanks(buf, pos, end, classes, limits[SPACES], as_gpt2)


@njit(cache=True, nogil=True, no_cpython_wrapper=True)
def _merge(buf, start, stop, byte_ids, pair_keys, pair_ranks, pair_ids, ids):  # type: ignore[no-untyped-def]
    """Write the ids of a pre-token; returns how many."""
    count = stop - start
    for i in range(count):
        ids[i] = byte_ids[buf[start + i]]
    mask = len(pair_keys) - 1
    # The rank and product of each pair with the next symbol, kept beside the symbols so that a
    # merge looks up two pairs only.
    ranks = np.empty(count, np.int64)
    products = np.empty(count, np.int32)
    for i in range(count - 1):
        slot = _pair_slot(pair_keys, mask, ids[i], ids[i + 1])
        ranks[i], products[i] = pair_ranks[slot], pair_ids[slot]
    while count > 1:
        best = 0
        for i in range(1, count - 1):
            if ranks[i] < ranks[best]:
                best = i
        if ranks[best] == NO_RANK:
            break
        ids[best] = products[best]
        count -= 1
        for i in range(best + 1, count):
            ids[i] = ids[i + 1]
        for i in range(best + 1, count - 1):
            ranks[i], products[i] = ranks[i + 1], products[i + 1]
        for i in range(max(0, best - 1), min(best + 1, count - 1)):
            slot = _pair_slot(pair_keys, mask, ids[i], ids[i + 1])
            ranks[i], products[i] = pair_ranks[slot], pair_ids[slot]
    return count


@njit(cache=True, nogil=True, no_cpython_wrapper=True)
def _longest_pieces(buf, start, stop, edge_keys, edge_ids, node_tokens, ids):  # type: ignore[no-untyped-def]
    """Write the ids of a pre-token, the longest piece each time; returns how many. Every byte must
    be a piece."""
    mask, count, pos = len(edge_keys) - 1, 0, start
    node = np.int32(WORD_ROOT)
    while pos < stop:
        token, after = np.int32(-1), pos + 1
        for place in range(pos, stop):
            slot = _pair_slot(edge_keys, mask, node, np.int32(buf[place]))
            if edge_keys[slot] == NO_PAIR:
                break
            node = edge_ids[slot]
            if node_tokens[node] >= 0:
                token, after = node_tokens[node], place + 1
        ids[count] = token
        count += 1
        pos = after
        node = np.int32(INSIDE_ROOT)
    return count


WORD_ROOT, INSIDE_ROOT = range(2)
"""Where the tree of pieces begins: of those that begin a word, and of those inside one."""

NO_RANK = np.int64(1 << 40)
NO_PAIR = np.uint64(0xFFFFFFFFFFFFFFFF)


@njit(cache=True, nogil=True, no_cpython_wrapper=True)
def _pair_slot(keys, mask, a, b):  # type: ignore[no-untyped-def]
    key = (np.uint64(a) << np.uint64(32)) | np.uint64(b)
    slot = np.int64(mix64(key) & np.uint64(mask))
    while keys[slot] != key and keys[slot] != NO_PAIR:
        slot = (slot + 1) & mask
    return slot


@njit(cache=True, nogil=True)
def fill_pairs(left, right, products, keys, ranks, ids):  # type: ignore[no-untyped-def]
    """Enter merges (int32 arrays, by rank) into an empty table: keys NO_PAIR, ranks NO_RANK."""
    for rank in range(len(left)):
        slot = _pair_slot(keys, len(keys) - 1, left[rank], right[rank])
        if keys[slot] == NO_PAIR:
            keys[slot] = (np.uint64(left[rank]) << np.uint64(32)) | np.uint64(right[rank])
            ranks[slot], ids[slot] = rank, products[rank]


@njit(cache=True, nogil=True, no_cpython_wrapper=True, inline="always")
def _find(buf, start, stop, hashes, words, word_bytes):  # type: ignore[no-untyped-def]
    """(slot, whether the bytes are there). `words` (slots, 3): place and length in bytes, place in
    ids; 0 length is empty."""
    key = span_key(buf, start, stop)
    mask = len(hashes) - 1
    slot = np.int64(mix64(key) & np.uint64(mask))
    size = stop - start
    while words[slot, 1] != 0:
        if hashes[slot] == key and words[slot, 1] == size:
            place = words[slot, 0]
            same = True
            for i in range(size):
                if word_bytes[place + i] != buf[start + i]:
                    same = False
                    break
            if same:
                return slot, True
        slot = (slot + 1) & mask
    return slot, False


@njit(cache=True, nogil=True)
def remember(buf, start, stop, ids, num_ids, hashes, words, id_counts, word_bytes, word_ids, state):  # type: ignore[no-untyped-def]
    """Enter one pre-token with its ids where there is room and it is not there."""
    size = stop - start
    if size > MAX_REMEMBERED_BYTES or 2 * (state[NUM_WORDS] + 1) > len(hashes):
        return
    if state[NUM_WORD_BYTES] + size > len(word_bytes) or state[NUM_WORD_IDS] + num_ids > len(
        word_ids
    ):
        return
    slot, there = _find(buf, start, stop, hashes, words, word_bytes)
    if there:
        return
    hashes[slot] = span_key(buf, start, stop)
    words[slot, 0], words[slot, 1] = state[NUM_WORD_BYTES], size
    words[slot, 2] = state[NUM_WORD_IDS]
    id_counts[slot] = num_ids
    for i in range(size):
        word_bytes[state[NUM_WORD_BYTES] + i] = buf[start + i]
    for i in range(num_ids):
        word_ids[state[NUM_WORD_IDS] + i] = ids[i]
    state[NUM_WORDS] += 1
    state[NUM_WORD_BYTES] += size
    state[NUM_WORD_IDS] += num_ids


@njit(cache=True, nogil=True)
def encode_documents(  # type: ignore[no-untyped-def]
    buf, begins, classes, limits, as_gpt2, byte_ids, pair_keys, pair_ranks, pair_ids, node_tokens,
    hashes, words, id_counts, word_bytes, word_ids, state, out, out_ends,
):  # fmt: skip
    """Write the ids of documents buf[begins[d]:begins[d + 1]] to `out` (int32, one place per byte),
    one after another.

    `out_ends` (int64 per document) gets the place behind each document's last id, or its negative
    where the document was left out for a pre-token that is too long. `node_tokens` (int32, -1 where
    a node of the tree is not a piece) is empty for BPE, else pairs are (node, byte) and their
    products nodes.
    """
    merged = np.empty(MAX_MERGED_BYTES, np.int32)
    count = 0
    for document in range(len(begins) - 1):
        pos, end = begins[document], begins[document + 1]
        first = count
        too_long = False
        while pos < end:
            stop = _next_word(buf, pos, end, classes, limits, as_gpt2)
            if stop - pos > MAX_MERGED_BYTES:
                too_long = True
                break
            there = False
            if stop - pos <= MAX_REMEMBERED_BYTES:
                slot, there = _find(buf, pos, stop, hashes, words, word_bytes)
                if there:
                    place = words[slot, 2]
                    for i in range(id_counts[slot]):
                        out[count] = word_ids[place + i]
                        count += 1
            if not there:
                if len(node_tokens):
                    num_ids = _longest_pieces(
                        buf, pos, stop, pair_keys, pair_ids, node_tokens, merged
                    )
                else:
                    num_ids = _merge(
                        buf, pos, stop, byte_ids, pair_keys, pair_ranks, pair_ids, merged
                    )
                for i in range(num_ids):
                    out[count] = merged[i]
                    count += 1
                remember(
                    buf, pos, stop, merged, num_ids,
                    hashes, words, id_counts, word_bytes, word_ids, state,
                )  # fmt: skip
            pos = stop
        if too_long:
            count = first
        out_ends[document] = -count - 1 if too_long else count
