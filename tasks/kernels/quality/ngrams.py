"""Measures how much of a document lies in repeated n-grams of units: exact, and linear in the
number of units.

An n-gram is the pair (its first n-1 units, its last unit), so ids of one length give ids of the
next by interning pairs, without collisions. An n-gram repeats only where both (n-1)-grams inside it
repeat: only those places go on to the next length, which makes long n-grams nearly free on ordinary
text and at worst one table look-up per unit and length. Most pairs of units occur once: a filter of
one byte a hash, set at the first and second time, tells nearly all of them without a table. Where
there are few different n-grams and units, as in repetitive text, a pair has a slot to itself.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.kernels import inner
from tasks.kernels.text.interning import HALF, PRIME, clear_table, intern_pair, pair_key

MAX_N = 10
FIRST_DUP = 5
"""Below it the characters in the most frequent n-gram are measured, from it on those in all
repeated n-grams."""
_SLOTS_PER_PLACE = 2


@inner
def repeated_ngrams(units, num_units, num_unit_ids, scratch, keys, seen, table, covered):  # type: ignore[no-untyped-def]
    """Fill covered[n] for n = 2..10.

    units: ids, characters in the units before each, and counts by id (tasks.kernels.text.units).
    covered[n]: for n < 5 characters in the occurrences of the most frequent n-gram, the first seen
    among equals; from 5 on in all n-grams that occur more than once, all their occurrences. A
    character counts once however many n-grams cover it, and an n-gram that occurs once covers
    nothing. scratch: three int32 arrays with room for num_units numbers each, keys: a uint64 array
    like them; seen: room for filter_size(num_units) bytes.
    """
    unit_ids, char_sums, _ = units
    places, ids, pair_counts = scratch
    for n in range(MAX_N + 1):
        covered[n] = 0
    if num_units < 3:
        return
    if num_unit_ids == 1:
        # All n-grams of a length are one, and those of which there are two cover everything.
        for n in range(2, min(MAX_N, num_units - 1) + 1):
            covered[n] = char_sums[num_units]
        return
    num_places, num_ids = num_units - 1, num_unit_ids
    for n in range(2, MAX_N + 1):
        num_slots = num_ids * num_unit_ids
        direct = num_slots <= _SLOTS_PER_PLACE * num_places
        if n == 2:
            if direct:
                for i in range(num_places):
                    places[i] = i
            else:
                num_places = _keep_seen_twice(unit_ids, num_places, seen, places)
            for k in range(num_places):
                ids[k] = unit_ids[places[k]]
        if num_places < 2:
            break
        slots = num_slots if direct else 0
        num_ids = _number_pairs(
            unit_ids, places, ids, pair_counts, num_places, n, num_unit_ids, slots, keys, table
        )
        if num_ids == num_places:  # all different
            break
        wanted = np.int64(-1)
        if n < FIRST_DUP:
            most = np.int32(0)
            for i in range(num_ids):
                most = pair_counts[i] if pair_counts[i] > most else most
            first = 0
            while pair_counts[ids[first]] != most:
                first += 1
            wanted = np.int64(ids[first])
        num_places = _cover(char_sums, places, ids, pair_counts, num_places, n, wanted, covered)


@njit(cache=True, nogil=True)
def filter_size(num_units):  # type: ignore[no-untyped-def]
    """Bytes of the filter of pairs of so many units; no more than places of four bytes tell
    apart."""
    size = 256
    while size < 8 * num_units and size < 1 << 31:
        size *= 2
    return size


@inner
def _keep_seen_twice(unit_ids, num_pairs, seen, places):  # type: ignore[no-untyped-def]
    """Write the places of pairs whose hash occurs more than once, a few that occur once among them;
    returns how many."""
    size = filter_size(num_pairs)
    mask = np.uint64(size - 1)
    for i in range(size):
        seen[i] = 0
    # The hash of each place is kept where the places go: no place is written beyond the hash that
    # was read.
    for i in range(num_pairs):
        slot = np.int64(((pair_key(unit_ids[i], unit_ids[i + 1]) * PRIME) >> HALF) & mask)
        seen[slot] = (seen[slot] << 1) | 1
        places[i] = slot
    kept = 0
    for i in range(num_pairs):
        twice = seen[places[i]] != 1
        places[kept] = i
        kept += twice
    return kept


@inner
def _number_pairs(  # type: ignore[no-untyped-def]
    unit_ids, places, ids, counts, num_places, n, num_unit_ids, num_slots, keys, table
):
    """Turn the ids of (n-1)-grams at these places into those of n-grams, and count each; returns
    how many there are.

    num_slots: where positive, each pair has a slot to itself, of so many.
    """
    num_ids = np.int64(0)
    if num_slots:
        # Counted by slot, then numbered: a repeated n-gram waits for its count alone, not for its
        # id.
        for slot in range(num_slots):
            table[slot] = 0
        for k in range(num_places):
            slot = np.int64(ids[k]) * num_unit_ids + unit_ids[places[k] + n - 1]
            table[slot] += np.uint32(1)
            ids[k] = slot
        for slot in range(num_slots):
            count = np.int64(table[slot])
            counts[num_ids] = count
            table[slot] = num_ids
            num_ids += count > 0
        for k in range(num_places):
            ids[k] = table[ids[k]]
        return num_ids
    mask = clear_table(table, num_places)
    for k in range(num_places):
        counts[num_ids] = 0
        key = pair_key(ids[k], unit_ids[places[k] + n - 1])
        found = intern_pair(key, keys, num_ids, table, mask)
        counts[found] += 1
        num_ids += found == num_ids
        ids[k] = found
    return num_ids


@inner
def _cover(char_sums, places, ids, counts, num_places, n, wanted, covered):  # type: ignore[no-untyped-def]
    """Count in covered[n] the characters under the n-grams of id `wanted`, or, where that is
    negative, under those that repeat.

    Keeps the places at which a longer n-gram can repeat, where the n-gram and the one after it do:
    both lie in it. Returns how many are left.
    """
    chars, reached = np.int64(0), np.int64(0)
    kept = 0
    before, last_place, last_id = False, np.int64(-2), np.int32(0)
    for k in range(num_places):
        place, found = np.int64(places[k]), ids[k]
        repeats = counts[found] > 1
        hit = found == wanted if wanted >= 0 else repeats
        # No branch on what nobody can foresee.
        chars += (char_sums[place + n] - char_sums[place if place > reached else reached]) * hit
        reached = place + n if hit else reached
        # Written in any case and counted if it stands; `kept` never passes k.
        places[kept], ids[kept] = last_place, last_id
        kept += before & repeats & (place == last_place + 1)
        before, last_place, last_id = repeats, place, found
    covered[n] = chars
    return kept
