"""Shards of pairs of answers, written by hand."""

from __future__ import annotations

import random
from itertools import chain
from pathlib import Path

from llm_core.data.shards import PAIRS, REJECTED_TOKEN
from tests.support.engine.shard_files import write_split

EOS = 0


def branch(draw: random.Random, prompt: list[int], vocab_size: int) -> tuple[list[int], list[int]]:
    """(ids of a prompt and a random answer, which of them are the answer's)."""
    answer = [draw.randrange(1, vocab_size) for _ in range(draw.randint(1, 5))]
    return [*prompt, *answer, EOS], [*(0 for _ in prompt), *(1 for _ in answer), 1]


def pair(draw: random.Random, vocab_size: int) -> tuple[list[int], list[int]]:
    """(ids, loss mask) of both branches of a pair; at most 22 tokens."""
    prompt = [draw.randrange(1, vocab_size) for _ in range(draw.randint(1, 5))]
    (one, counts), (other, others) = (branch(draw, prompt, vocab_size) for _ in range(2))
    return [*one, *other], [*counts, *(each + REJECTED_TOKEN for each in others)]


def write_pairs(folder: Path, num_pairs: int = 24, vocab_size: int = 51) -> Path:
    """A train split in two shards, in which one document is not a pair, and a validation split."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (split, number) in enumerate((("train", num_pairs), ("validation", 5))):
        draw = random.Random(seed)
        found = [pair(draw, vocab_size) for _ in range(number)]
        if split == "train":
            found.insert(1, ([5, 6, 7, EOS], [0, 1, 1, 1]))
        mask = list(chain.from_iterable(counts for _, counts in found))
        documents = [ids for ids, _ in found]
        shards = [documents[: number // 2], documents[number // 2 :]]
        write_split(
            folder,
            shards,
            split,
            metadata={PAIRS: "true"},
            loss_mask=lambda place, m=mask: m[place],
        )
    return folder
