"""Names the earlier tokens that a token attends: a sum of simple patterns, as data.

| fields | the query attends | from |
|---|---|---|
| window | itself and those right before it | Longformer, Beltagy et al. 2020, section 3.1 |
| window, dilation | every dilation-th of them, as many | the same |
| num_global | the first tokens of its document | the same; they see no later ones |
| block | those of its own block | Child et al. 2019 |
| block, blocks_before | and of the blocks before it | BigBird, Zaheer et al. 2020, appendix D |
| block, random_blocks | and of a few earlier blocks, drawn | the same |
| stride | those at multiples of a distance, itself included | Child et al. 2019, "strided" |
| block, summary | the last tokens of each block | the same, "fixed" |

Fields that are set are added up: a key is attended if any of them names it. Distances are counted
in tokens of the row, first tokens and blocks from the start of each document. What is drawn depends
on `seed` and the block of the query alone, so it is the same in training, evaluation and decoding,
on every process and for every length. Standard library only: the rule takes integers, arrays and
tensors alike.

Left out: patterns that differ from head to head; BigBird's global tokens see all later ones and
draws differ by head, which its preset does not do.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_core.config import ConfigError, nearest

PRIME = 32749
"""Draws are modulo the largest prime below 2^15, so that squares fit the int32 of FlexAttention;
random blocks are therefore among the first so many of a document."""
MOST_DRAWN = 1024
"""Blocks that are drawn for one block of queries: each is a term of the mask's rule."""


@dataclass(frozen=True)
class Pattern:
    """The causal keys that a query attends; all of them when every field is at its default."""

    window: int = 0
    """The query's own token and the window - 1 before it; with a dilation, as many that lie
    further apart."""
    dilation: int = 1
    """Tokens from one of the window to the next."""
    num_global: int = 0
    """First tokens of each document, which all of its queries attend."""
    stride: int = 0
    """A query attends itself and those at multiples of this distance before it."""
    block: int = 0
    """Tokens of a block; a query attends those of its own block."""
    blocks_before: int = 0
    """Blocks before its own that a query attends."""
    summary: int = 0
    """Last tokens of each block, which all later queries attend."""
    random_blocks: int = 0
    """Earlier blocks that are drawn for each block of queries; some may be drawn twice, or be
    attended anyhow."""
    seed: int = 0
    """Decides which are drawn. Layers with the same have the same blocks."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) < (least := int(name == "dilation")):
                rule = f"must be at least {least}" if least else "must not be negative"
                raise ConfigError(f"{name} ({getattr(self, name)}) {rule}; {least} turns it off")
        for name in ("blocks_before", "summary", "random_blocks"):
            if getattr(self, name) and not self.block:
                raise ConfigError(
                    f"{name} ({getattr(self, name)}) needs blocks, and block is 0; set block=64"
                )
        if self.random_blocks > MOST_DRAWN:
            raise ConfigError(
                f"random_blocks ({self.random_blocks}) must be at most {MOST_DRAWN}; BigBird has 3"
            )
        if self.dilation > 1 and not self.window:
            raise ConfigError(
                f"dilation ({self.dilation}) spreads a window, which is 0; set window=64"
            )
        if self.seed and not self.random_blocks:
            raise ConfigError(
                f"seed ({self.seed}) decides which blocks are drawn, and random_blocks is 0; set"
                " random_blocks=3"
            )
        if self.summary > self.block:
            raise ConfigError(
                f"summary ({self.summary}) must be at most block ({self.block}), of which it names"
                " the last tokens"
            )
        if self.num_global and not (self.window or self.block or self.stride):
            raise ConfigError(
                f"num_global ({self.num_global}) adds to a window, a block or a stride, and all are"
                " 0; set window=64, or 0 global tokens"
            )

    @functools.cached_property  # asked for in each layer of each pass
    def sliding(self) -> int | None:
        """The window, where there is nothing else; 0: all; None for other patterns."""
        return self.window if self == Pattern(self.window) else None

    @property
    def reach(self) -> int:
        """A query attends no key so far before it or further, but for global tokens; 0: any."""
        if self.stride or self.summary or self.random_blocks:
            return 0
        return max(self.window * self.dilation, self.block * (1 + self.blocks_before))


ALL = Pattern()
"""Every key."""

PRESETS: Mapping[str, tuple[Pattern, ...]] = {
    "longformer": (Pattern(window=512, num_global=16),),
    "bigbird": (Pattern(block=64, blocks_before=1, num_global=64, random_blocks=3),),
    "sparse_strided": (Pattern(window=128, stride=128),),
    "sparse_fixed": (Pattern(block=128, summary=8),),
}
"""Patterns of the papers with their usual sizes; other sizes are written out."""


def patterns_of(
    attention: Sequence[Pattern] | str, window: int, full_layers: Sequence[int], num_layers: int
) -> tuple[Pattern, ...]:
    """The pattern of each layer: of a preset, or the list from its beginning again and again, or a
    window in all but `full_layers`. Raises ConfigError where both are set."""
    if window < 0:
        raise ConfigError(f"window ({window}) must not be negative; 0 attends all tokens")
    if any(not 0 <= layer < num_layers for layer in full_layers) or (full_layers and not window):
        raise ConfigError(
            f"full_layers ({list(full_layers)}) must list layers from 0 to {num_layers - 1} of a"
            f" model with a window ({window})"
        )
    if not attention:
        slides = Pattern(window=window)
        return tuple(ALL if n in full_layers else slides for n in range(num_layers))
    if window:
        raise ConfigError(
            f"attention ({attention}) and window ({window}) both say what a layer attends; set"
            " window=0, or name it in attention=[{window: ...}]"
        )
    cycle = named_patterns(attention) if isinstance(attention, str) else attention
    return tuple(cycle[n % len(cycle)] for n in range(num_layers))


def named_patterns(name: str) -> tuple[Pattern, ...]:
    """Raises ConfigError for a name that is not known."""
    if name not in PRESETS:
        raise ConfigError(
            f"attention ({name}) is not a known pattern; {nearest(name, list(PRESETS))}"
        )
    return PRESETS[name]


Rule = Callable[[Any, Any], Any]
"""(place of a query, of a key) in one document → whether the query attends the key, if it is not
later. Integers, arrays or tensors of integers, which are broadcast."""


def rule_of(pattern: Pattern) -> Rule | None:
    """None where all keys are attended. What is drawn is made here, so that FlexAttention traces
    arithmetic alone."""
    if pattern == ALL:
        return None
    factors = [_factors(pattern.seed, number) for number in range(pattern.random_blocks)]

    def names(query: Any, key: Any) -> Any:
        distance, found = query - key, query < 0
        if pattern.window:
            near = distance < pattern.window * pattern.dilation
            if pattern.dilation > 1:
                near = near & (distance % pattern.dilation == 0)
            found = found | near
        if pattern.num_global:
            found = found | (key < pattern.num_global)
        if pattern.stride:
            found = found | (distance % pattern.stride == 0)
        if pattern.block:
            of_query, of_key = query // pattern.block, key // pattern.block
            found = found | (of_key + pattern.blocks_before >= of_query)
            if pattern.summary:
                found = found | (key % pattern.block >= pattern.block - pattern.summary)
            for a, b, c in factors:
                found = found | (of_key == _drawn(of_query, a, b, c))
        return found

    return names


def attended(pattern: Pattern, query: Any, key: Any) -> Any:
    """As the rule of the pattern says; None where it names all keys."""
    rule = rule_of(pattern)
    return None if rule is None else rule(query, key)


def drawn_blocks(pattern: Pattern, block: Any) -> list[Any]:
    """The earlier blocks that are drawn for blocks of queries; for the first, itself."""
    numbers = range(pattern.random_blocks)
    return [_drawn(block, *_factors(pattern.seed, number)) for number in numbers]


def _drawn(block: Any, a: int, b: int, c: int) -> Any:
    x = (block % PRIME * a + b) % PRIME
    x = (x * x % PRIME * c + block) % PRIME
    x = (x * x + b) % PRIME
    return x % (block + (block == 0))


@functools.cache
def _factors(seed: int, number: int) -> tuple[int, int, int]:
    draw = random.Random(f"{seed} {number}")
    return draw.randrange(1, PRIME), draw.randrange(1, PRIME), draw.randrange(1, PRIME)
