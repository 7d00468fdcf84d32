"""How much of a document lies in repeated n-grams of units: exact, and linear in the number of units.

An n-gram is the pair (its first n-1 units, its last unit), so ids of one length give ids of the next by interning pairs.
An n-gram repeats only where both (n-1)-grams inside it repeat: only those positions go on to the next length, which makes long
n-grams nearly free on ordinary text and at worst one table look-up per unit and length.
"""

from __future__ import annotations

from numba import njit

from tasks.kernels.interning import intern_pair, table_mask

MAX_N = 10


@njit(cache=True, nogil=True)
def repeated_ngrams(unit_ids, char_sums, num_units, scratch, table, generation, top_chars, dup_chars):  # type: ignore[no-untyped-def]
    """Fill top_chars[n] and dup_chars[n] for n = 2..10; returns the last generation of the table used.

    unit_ids: id of each unit; char_sums[i]: characters in the units before i.
    top_chars[n]: characters in the occurrences of the most frequent n-gram, the first seen among equals.
    dup_chars[n]: characters in all n-grams that occur more than once, all their occurrences.
    Both count a character once however many n-grams cover it, and an n-gram that occurs once covers nothing.
    scratch: three int32 arrays with room for num_units numbers each.
    """
    places, place_ids, counts = scratch
    top_chars[:] = 0
    dup_chars[:] = 0
    num_places = num_units
    counts[:num_units] = 0
    for i in range(num_units):
        places[i], place_ids[i] = i, unit_ids[i]
        counts[unit_ids[i]] += 1
    for n in range(2, MAX_N + 1):
        generation += 1
        mask = table_mask(num_places)
        num_ids = 0
        kept = 0
        for k in range(num_places - 1):
            adjacent = places[k + 1] == places[k] + 1
            if adjacent and counts[place_ids[k]] > 1 and counts[place_ids[k + 1]] > 1:
                place = places[k]
                found = intern_pair(place_ids[k], unit_ids[place + n - 1], num_ids, table, generation, mask)
                if found == num_ids:
                    num_ids += 1
                # `kept` never passes k, so what is read next is still of the shorter length.
                places[kept], place_ids[kept] = place, found
                kept += 1
        num_places = kept
        counts[:num_ids] = 0
        for k in range(num_places):
            counts[place_ids[k]] += 1
        top = 0
        for i in range(1, num_ids):
            if counts[i] > counts[top]:
                top = i
        if num_ids == 0 or counts[top] < 2:
            break
        top_end, dup_end = 0, 0
        for k in range(num_places):
            place, found = places[k], place_ids[k]
            if counts[found] > 1:
                dup_chars[n] += char_sums[place + n] - char_sums[max(place, dup_end)]
                dup_end = place + n
                if found == top:
                    top_chars[n] += char_sums[place + n] - char_sums[max(place, top_end)]
                    top_end = place + n
    return generation
