"""The part of KenLM's Python module that is used here, for ARPA files of orders 1 and 2, by
definition."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path


class Model:
    def __init__(self, path: str) -> None:
        lines = Path(path).read_text("utf-8").splitlines()
        if not lines or lines[0] != "\\data\\":
            raise OSError(f"Cannot read model '{path}'")
        self.log10_probs: dict[tuple[str, ...], float] = {}
        self.back_offs: dict[tuple[str, ...], float] = {}
        for fields in (line.split("\t") for line in lines if "\t" in line):
            words = tuple(fields[1].split(" "))
            self.log10_probs[words] = float(fields[0])
            self.back_offs[words] = float(fields[2]) if len(fields) > 2 else 0.0

    def score(self, sentence: str, bos: bool = True, eos: bool = True) -> float:
        words = ["<s>"] * bos + sentence.split() + ["</s>"] * eos
        known = [word if (word,) in self.log10_probs else "<unk>" for word in words]
        total = 0.0 if bos else self.log10_probs[known[0],]
        for pair in pairwise(known):
            total += self.log10_probs.get(
                pair, self.back_offs[pair[:1]] + self.log10_probs[pair[1:]]
            )
        return total
