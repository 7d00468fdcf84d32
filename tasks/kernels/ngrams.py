"""How much of a document lies in repeated n-grams of units: exact, and linear in the number of units.

An n-gram is the pair (its first n-1 units, its last unit), so ids of one length give ids of the next by interning pairs, without
collisions. An n-gram repeats only where both (n-1)-grams inside it repeat: only those places go on to the next length, which
makes long n-grams nearly free on ordinary text and at worst one table look-up per unit and length.
"""

from __future__ import annotations

import numpy as np

from tasks.kernels import inner
from tasks.kernels.interning import intern_pair, pair_key, table_mask

MAX_N = 10
FIRST_DUP = 5
"""Below it the characters in the most frequent n-gram are measured, from it on those in all repeated n-grams."""


@inner
def repeated_ngrams(units, num_units, scratch, table, generation, covered):  # type: ignore[no-untyped-def]
    """Fill covered[n] for n = 2..10; returns the last generation of the table used.

    units: ids, characters in the units before each, and counts by id (tasks.kernels.scan).
    covered[n]: for n < 5 characters in the occurrences of the most frequent n-gram, the first seen among equals; from 5 on in all
    n-grams that occur more than once, all their occurrences. A character counts once however many n-grams cover it, and an n-gram
    that occurs once covers nothing.
    scratch: three int32 arrays with room for num_units numbers each.
    """
    unit_ids, char_sums, counts = units
    places, ids, pair_counts = scratch
    for n in range(MAX_N + 1):
        covered[n] = 0
    num_places = np.int64(0)
    before = num_units > 0 and counts[unit_ids[0]] > 1
    for i in range(num_units - 1):
        repeats = counts[unit_ids[i + 1]] > 1
        # Written in any case and counted if it stands: cheaper than a branch that nobody can foresee.
        places[num_places] = i
        num_places += before & repeats
        before = repeats
    runs = False
    for n in range(2, MAX_N + 1):
        if num_places < 2:
            break
        generation += 1
        mask = table_mask(num_places)
        num_ids, equal = np.int64(0), 0
        last_key, last_id = np.uint64(0xFFFFFFFFFFFFFFFF), np.int64(-1)
        for k in range(num_places):
            place = places[k]
            key = pair_key(unit_ids[place], unit_ids[place + 1]) if n == 2 else pair_key(ids[k], unit_ids[place + n - 1])
            if runs and key == last_key:
                found = last_id
            else:
                found = intern_pair(key, num_ids, table, generation, mask)
            pair_counts[found] = 1 if found == num_ids else pair_counts[found] + 1
            num_ids += found == num_ids
            equal += found == last_id
            last_key, last_id = key, found
            ids[k] = found
        # Text that is little but runs of one unit waits for each look-up of the same slot: the next length looks at runs first.
        runs = bool(4 * equal > 3 * num_places)
        if num_ids == num_places:  # all different
            break
        wanted = -1
        if n < FIRST_DUP:
            wanted = 0
            for i in range(1, num_ids):
                if pair_counts[i] > pair_counts[wanted]:
                    wanted = i
        covered[n] = _covered(char_sums, places, ids, pair_counts, num_places, n, wanted)
        num_places = _keep_repeated(places, ids, pair_counts, num_places)
    return generation


@inner
def _covered(char_sums, places, ids, counts, num_places, n, wanted):  # type: ignore[no-untyped-def]
    """Characters under the n-grams of id `wanted`, or, where that is negative, under those that occur more than once."""
    chars, reached = np.int64(0), np.int64(0)
    for k in range(num_places):
        place = np.int64(places[k])
        hit = ids[k] == wanted if wanted >= 0 else counts[ids[k]] > 1
        # No branch on what nobody can foresee.
        chars += (char_sums[place + n] - char_sums[place if place > reached else reached]) * hit
        reached = place + n if hit else reached
    return chars


@inner
def _keep_repeated(places, ids, counts, num_places):  # type: ignore[no-untyped-def]
    """Keep the places at which a longer n-gram can repeat; returns how many are left.

    A place stays when the n-gram there and the one after it repeat: both lie in the n-gram one longer.
    """
    kept = 0
    before, last_place, last_id = False, np.int32(-2), np.int32(0)
    for k in range(num_places):
        place, found = places[k], ids[k]
        repeats = counts[found] > 1
        # Written in any case and counted if it stands; `kept` never passes k.
        places[kept], ids[kept] = last_place, last_id
        kept += before & repeats & (place == last_place + 1)
        before, last_place, last_id = repeats, place, found
    return kept
