"""Interpolated modified Kneser–Ney by its definition: slow, over words and dictionaries, nothing
shared with the real one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"


class KneserNey:
    """Chen and Goodman 1998, section 4.1.6, with the lowest order interpolated with a uniform
    distribution."""

    def __init__(self, texts: Sequence[Sequence[str]], order: int) -> None:
        self.order = order
        rows = [[BEGIN, *text, END] for text in texts]
        self.vocabulary = sorted({word for row in rows for word in row} - {BEGIN} | {UNKNOWN})
        grams = {
            n: Counter(tuple(r[i : i + n]) for r in rows for i in range(len(r) - n + 1))
            for n in range(1, order + 1)
        }
        self.counts: dict[int, dict[tuple[str, ...], int]] = {}
        for n in range(1, order + 1):
            left = Counter(gram[1:] for gram in grams[n + 1]) if n < order else Counter()
            self.counts[n] = {
                g: c if n == order or g[0] == BEGIN else left[g] for g, c in grams[n].items()
            }
        self.counts[1].pop((BEGIN,))
        self.discounts = {n: self._discounts(n) for n in self.counts}

    def _discounts(self, n: int) -> tuple[float, float, float, float]:
        of = Counter(self.counts[n].values())
        if of[1] and of[2] and of[3]:
            y = of[1] / (of[1] + 2 * of[2])
            found = (
                1 - 2 * y * of[2] / of[1],
                2 - 3 * y * of[3] / of[2],
                3 - 4 * y * of[4] / of[3],
            )
            if all(0 < d <= k for k, d in enumerate(found, 1)):
                return (0.0, *found)
        return (0.0, 0.5, 1.0, 1.5)

    def probability(self, context: tuple[str, ...], word: str) -> float:
        """p(word | context), the context cut to what the order allows."""
        context = (
            context[len(context) - self.order + 1 :] if len(context) >= self.order else context
        )
        n = len(context) + 1
        shorter = self.probability(context[1:], word) if context else 1 / len(self.vocabulary)
        after = {g: c for g, c in self.counts[n].items() if g[:-1] == context}
        total = sum(after.values())
        if not total:
            return shorter
        discount = self.discounts[n]
        left = sum(discount[min(c, 3)] for c in after.values())
        count = after.get((*context, word), 0)
        return (count - discount[min(count, 3)]) / total + left / total * shorter
