"""Proves that generation with a cache is the computation without one, in float64, where rounding
cannot hide a defect.

The reference is one full causal pass without a cache over every row. Against it, at the shapes that
are to be timed:
- `splits`: one short sequence, prefilled up to several places and decoded from there token by
  token;
- `pieces`: one sequence of the greatest length in passes of one and of several queries after a
  prefix, every position;
- `ragged_rows`: prompts of all lengths in one batch, then passes of one and of several queries,
  every row and position;
- `branches`: rows that are forked, taken back to earlier tokens, and go on otherwise;
- `cell_…`: a batch as it is timed, every row and every decode step up to the last column;
- `capacity`: a token without a place is refused, and a refusal changes nothing.
Long requests come before short ones, so that what is left of an earlier request shows. A right
cache differs by some 1e-13; a wrong position, mask or slice by 1e-3 and more. Cost: some passes
over each shape in float64, less than timing it takes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from llm_core.infer.cache.rounding import RoundedKeys
from llm_core.infer.cache.rows import MakeCache, decode, place_of, prefill, static_cache
from llm_core.infer.cache.rows import make_cache as new_cache
from llm_core.infer.cache.static import CacheOverflow, RowCache
from llm_core.model.attention import KeyValueCache
from llm_core.model.transformer import Transformer

# B batch (rows) · T tokens of this pass · L tokens of a row · D width of the model · V vocabulary
TOLERANCE = 1e-10
MIN_ROWS = 5
"""Least rows of the ragged batch: they are cheap there, and some defects need several."""
PIECES = (4, 1, 3, 1, 2, 5, 1, 8, 13, 21, 34, 55)
"""Queries of consecutive passes: one and several in turn, at borders of no common multiple."""
RAGGED_PIECES = (1, 3, 1, 2, 5, 1)
MAX_SCORES, MAX_LOGITS = 1 << 27, 1 << 25
"""Most scores of one layer and most logits at a time; larger shapes are passed in parts."""


@dataclass(frozen=True)
class Shape:
    """A batch that is to be timed."""

    rows: int
    prompt_tokens: int
    new_tokens: int

    @property
    def length(self) -> int:
        return self.prompt_tokens + self.new_tokens


@dataclass(frozen=True)
class Check:
    """Largest |cached - full| of a check's logits; infinite where room was miscounted."""

    name: str
    max_abs_diff: float

    @property
    def passed(self) -> bool:
        return self.max_abs_diff <= TOLERANCE  # false for NaN, too

    @property
    def finding(self) -> str:
        return "room miscounted" if self.max_abs_diff == math.inf else f"{self.max_abs_diff:.3g}"


@torch.inference_mode()
def check_cache(
    model: Transformer,
    shapes: Sequence[Shape],
    num_tokens: int,
    seed: int,
    make_cache: MakeCache = static_cache,
    int8: bool = False,
) -> list[Check]:
    """Compare `make_cache` with full passes of a float64 model; `num_tokens`: of `splits`.

    int8: the cache rounds to 8 bits, and so does the full pass, so that all else must be equal.
    """
    assert place_of(model)[0] == torch.float64, "rounding of shorter numbers would hide a defect"
    num_tokens = min(num_tokens, model.config.max_seq_len)
    assert num_tokens >= 4
    longest = max([num_tokens, *(shape.length for shape in shapes)])
    num_rows = max([MIN_ROWS, *(shape.rows for shape in shapes)])
    rounded = new_cache(model, RoundedKeys, 0, 0, True) if int8 else None
    compare = _Comparison(model, seed, make_cache, rounded)
    checks: dict[str, Callable[[], Iterator[Tensor]]] = {
        "pieces": partial(compare.pieces, longest),
        "ragged_rows": partial(compare.ragged_rows, num_rows, longest),
    }
    for shape in sorted(shapes, key=lambda s: (-s.rows * s.length, s.rows, s.new_tokens)):
        name = f"cell_{shape.rows}x({shape.prompt_tokens}+{shape.new_tokens})"
        checks[name] = partial(compare.cell, shape)
    checks |= {
        "branches": partial(compare.branches, longest),
        "splits": partial(compare.splits, num_tokens),
        "capacity": compare.capacity,
    }
    return [Check(name, largest(differences)) for name, differences in checks.items()]


def largest(differences: Callable[[], Iterator[Tensor]]) -> float:
    try:
        found = [float(difference) for difference in differences()]
    except CacheOverflow:  # there was room
        return math.inf
    assert found, "a check that compares nothing proves nothing"
    return math.nan if any(map(math.isnan, found)) else max(found)


class _Comparison:
    """Each check yields the largest differences of some positions."""

    def __init__(
        self,
        model: Transformer,
        seed: int,
        make_cache: MakeCache,
        reference: KeyValueCache | None,
    ) -> None:
        self.model, self.make_cache, self.reference = model, make_cache, reference
        self.device, self.generator = place_of(model)[1], torch.Generator().manual_seed(seed)

    def pieces(self, length: int) -> Iterator[Tensor]:
        ids_BL = self._draw(1, length)
        full_BLD = self._full(ids_BL)
        cache = self.make_cache(self.model, [1], length - 1)
        for begin, end in cut(length, PIECES):
            hidden_BTD = self.model.hidden(
                ids_BL[:, begin:end], cache.positions(end - begin), cache
            )
            yield from self._differences(hidden_BTD[0], full_BLD[0, begin:end])

    def ragged_rows(self, num_rows: int, length: int) -> Iterator[Tensor]:
        num_more = min(sum(RAGGED_PIECES), length - 1)
        ids_BL = self._draw(num_rows, length)
        full_BLD = self._full(ids_BL)
        # Lengths from one token to all, so that rows of every padding stand side by side, the
        # longest in the middle.
        lengths = [1 + row * (length - num_more - 1) // (num_rows - 1) for row in range(num_rows)]
        lengths = lengths[1::2] + lengths[::2][::-1]
        prompts = [ids_BL[row, :count].tolist() for row, count in enumerate(lengths)]
        cache = self.make_cache(self.model, lengths, num_more)
        first_BV = prefill(self.model, prompts, cache)
        last_BD = torch.stack([full_BLD[row, count - 1] for row, count in enumerate(lengths)])
        yield (first_BV - self.model.logits(last_BD)).abs().max()
        for begin, end in cut(num_more, RAGGED_PIECES):
            columns = [slice(count + begin, count + end) for count in lengths]
            ids_BT = torch.stack([ids_BL[row, column] for row, column in enumerate(columns)])
            hidden_BTD = self.model.hidden(ids_BT, cache.positions(end - begin), cache)
            expected_BTD = torch.stack(
                [full_BLD[row, column] for row, column in enumerate(columns)]
            )
            yield from self._differences(hidden_BTD.flatten(0, 1), expected_BTD.flatten(0, 1))

    def cell(self, shape: Shape) -> Iterator[Tensor]:
        ids_BL = self._draw(shape.rows, shape.length)
        full_BLD = self._full(ids_BL)
        lengths = [shape.prompt_tokens] * shape.rows
        cache = self.make_cache(self.model, lengths, shape.new_tokens)
        logits_BV = self._prefill(ids_BL[:, : shape.prompt_tokens], cache, shape.length)
        for place in range(shape.prompt_tokens, shape.length):
            yield (logits_BV - self.model.logits(full_BLD[:, place - 1])).abs().max()
            logits_BV = decode(self.model, ids_BL[:, place], cache)
        yield (logits_BV - self.model.logits(full_BLD[:, -1])).abs().max()

    def splits(self, length: int) -> Iterator[Tensor]:
        ids_BL = self._draw(1, length)
        full_LV = self.model.logits(self._full(ids_BL)[0])
        for split in sorted({1, 2, length // 2, length - 1}):
            prompts = ids_BL[:, :split].tolist()
            cache = self.make_cache(self.model, [split], length - split)
            yield (prefill(self.model, prompts, cache)[0] - full_LV[split - 1]).abs().max()
            for place in range(split, length):
                yield (decode(self.model, ids_BL[:, place], cache)[0] - full_LV[place]).abs().max()

    def branches(self, length: int) -> Iterator[Tensor]:
        """Rows of unequal lengths are forked, and both go on by tokens of their own; then all are
        taken back to different places, and go on again."""
        ids_BL, other_BL = self._draw(3, length), self._draw(3, length)
        kept = [length // 2, 1, length // 3 + 1]
        # Twice the room: rows that are forked need blocks of their own.
        cache = self.make_cache(self.model, kept, 2 * length - max(kept))
        prompts = [ids_BL[row, :count].tolist() for row, count in enumerate(kept)]
        prefill(self.model, prompts, cache)
        rows = [2, 0, 2]
        twin = cache.fork(rows)
        yield from self._goes_on(cache, prompts, ids_BL)
        yield from self._goes_on(twin, [prompts[row] for row in rows], other_BL)
        shorter = [count // 2 + 1 for count in kept]
        cache.truncate(shorter)
        yield from self._goes_on(
            cache, [p[:count] for p, count in zip(prompts, shorter, strict=True)], other_BL
        )

    def _goes_on(
        self, cache: RowCache, prompts: Sequence[Sequence[int]], ids_BL: Tensor
    ) -> Iterator[Tensor]:
        """Differences of a pass of one and of a pass of several queries behind these prompts."""
        num_new = ids_BL.shape[1] - max(map(len, prompts))
        full_BLD = [
            self._full(torch.tensor([[*prompt, *new]], device=self.device))[0, len(prompt) :]
            for prompt, new in zip(prompts, ids_BL[:, :num_new].tolist(), strict=True)
        ]
        for begin, end in ((0, 1), (1, num_new)):
            if begin < end:
                positions_BT = cache.positions(end - begin)
                hidden_BTD = self.model.hidden(ids_BL[:, begin:end], positions_BT, cache)
                expected = torch.cat([full_LD[begin:end] for full_LD in full_BLD])
                yield from self._differences(hidden_BTD.flatten(0, 1), expected)

    def capacity(self) -> Iterator[Tensor]:
        """A cache of four columns with two tokens takes two more, whatever is tried in between."""
        ids_BL = self._draw(1, 4)
        full_LV = self.model.logits(self._full(ids_BL)[0])
        cache = self.make_cache(self.model, [2], 2)
        prefill(self.model, ids_BL[:, :2].tolist(), cache)
        yield self._refused(ids_BL[:, :3], cache)
        for place in (2, 3):
            yield (decode(self.model, ids_BL[:, place], cache)[0] - full_LV[place]).abs().max()
        yield self._refused(ids_BL[:, :1], cache)

    def _refused(self, ids_BT: Tensor, cache: RowCache) -> Tensor:
        """0 where the cache refuses these tokens, infinity where it takes them."""
        try:
            self.model.hidden(ids_BT, self._any_positions(ids_BT, cache), cache)
        except CacheOverflow:
            return torch.tensor(0.0)
        return torch.tensor(math.inf)

    def _any_positions(self, ids_BT: Tensor, cache: RowCache) -> Tensor:
        """Positions that a model takes, also of tokens that do not fit."""
        try:
            return cache.positions(ids_BT.shape[1]).clamp(max=self.model.config.max_seq_len - 1)
        except CacheOverflow:  # so must the pass itself
            return torch.zeros_like(ids_BT)

    def _draw(self, rows: int, length: int) -> Tensor:
        ids_BL = torch.randint(
            0, self.model.config.vocab_size, (rows, length), generator=self.generator
        )
        return ids_BL.to(self.device)

    def _full(self, ids_BL: Tensor) -> Tensor:
        """hidden_BLD of a pass without a cache, in groups of rows that fit."""
        rows = max(1, MAX_SCORES // (self.model.config.num_heads * ids_BL.shape[1] ** 2))
        groups = ids_BL.split(rows)
        return torch.cat([self.model.hidden(each_BL, cache=self.reference) for each_BL in groups])

    def _prefill(self, ids_BT: Tensor, cache: RowCache, length: int) -> Tensor:
        """logits_BV after the prompts: in one pass as it is timed, or in the parts that fit."""
        queries = max(1, MAX_SCORES // (ids_BT.shape[0] * self.model.config.num_heads * length))
        *earlier, last_BT = ids_BT.split(queries, dim=1)
        for part_BT in earlier:
            self.model.hidden(part_BT, cache.positions(part_BT.shape[1]), cache)
        return prefill(self.model, last_BT.tolist(), cache)

    def _differences(self, got_ND: Tensor, expected_ND: Tensor) -> Iterator[Tensor]:
        positions = max(1, MAX_LOGITS // self.model.config.vocab_size)
        for got, expected in zip(
            got_ND.split(positions), expected_ND.split(positions), strict=True
        ):
            yield (self.model.logits(got) - self.model.logits(expected)).abs().max()


def cut(length: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of these sizes, again and again, up to `length`."""
    begin = 0
    for size in itertools.cycle(sizes):
        if begin >= length:
            return
        yield begin, min(begin + size, length)
        begin += size
