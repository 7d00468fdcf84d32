"""Hands out blocks of a paged cache, counts who holds them, and finds those of a known prefix.

A block has room for the keys and values of `block_tokens` tokens in every layer (Kwon et al.,
2023). Full blocks are listed by what they hold: their tokens and the block chain before them, so
equal entries mean equal keys and values. A listed block that nobody holds keeps its contents until
its room is needed; the one released first goes first.

Cost: a dictionary look-up per full block. Tokens are compared, not only their hashes, so two
prefixes are never taken for one another. Contents live elsewhere (`llm_core.infer.cache.static`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

ROOT = 0
"""The chain before a first block."""

RUNS_TRIED = 8
"""Places where a run is looked for: a run saves time, and looking costs some."""

_Entry = tuple[int, tuple[int, ...]]


class OutOfBlocks(Exception):
    """All blocks are held; nothing was taken."""


class BlockPool:
    """Blocks 0 to num_blocks - 1, each held any number of times."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        assert num_blocks > 0, f"a pool of {num_blocks} blocks"
        assert block_tokens > 0, f"blocks of {block_tokens} tokens"
        self.num_blocks, self.block_tokens = num_blocks, block_tokens
        self._holders = [0] * num_blocks
        # From the first to give away to the last: empty blocks, then listed ones by their release.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._listed: dict[_Entry, int] = {}
        self._entries: dict[int, _Entry] = {}
        self._chains: dict[int, int] = {}
        # Where the next sequence may find a run of blocks.
        self._run_begin = 0
        # Chains are never numbered twice: what followed an overwritten block is not found again.
        self._next_chain = ROOT + 1

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, those with known contents among them."""
        return len(self._free)

    def holders(self, block: int) -> int:
        return self._holders[block]

    def take(self, count: int, after: int | None = None, room: int = 0) -> list[int]:
        """`count` blocks whose contents may be overwritten, each held once. Raises OutOfBlocks.

        Blocks that follow one another are read without a copy. after: the block that they should
        follow. room: blocks that a new sequence may come to need. Neither costs a listed block
        while there are empty ones.
        """
        if count > len(self._free):
            raise OutOfBlocks(f"{count} blocks wanted, {len(self._free)} of {self.num_blocks} free")
        wanted = self._find_run(max(room, count)) if after is None and room else after
        taken = []
        for _ in range(count):
            follows = None if wanted is None else wanted + 1
            if follows is not None and follows in self._free and follows not in self._entries:
                block = follows
                del self._free[block]
            else:
                block = self._free.popitem(last=False)[0]
            taken.append(block)
            wanted = block
        for block in taken:
            self._holders[block] = 1
            self._forget(block)
        return taken

    def _find_run(self, length: int) -> int | None:
        """The block before an empty run; None where the next places have none."""
        begin = self._run_begin
        for _ in range(RUNS_TRIED):
            if begin + length > self.num_blocks:
                begin = 0
            run = range(begin, min(begin + length, self.num_blocks))
            full = next((b for b in run if b not in self._free or b in self._entries), None)
            if full is None:
                self._run_begin = begin + length
                return begin - 1
            begin = full + 1
        return None

    def hold(self, blocks: Sequence[int]) -> None:
        """Hold blocks once more, whether others hold them or nobody does."""
        for block in blocks:
            if not self._holders[block]:
                del self._free[block]
            self._holders[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Give blocks back, of which a sequence names its first first."""
        # The last first: a chain is of use only as far as all before it is there.
        for block in reversed(blocks):
            assert self._holders[block] > 0, f"block {block} is released more often than held"
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free[block] = None
                # Nothing to find in it: the next to give away.
                self._free.move_to_end(block, last=block in self._entries)

    def enter(self, block: int, chain: int, tokens: Sequence[int]) -> int:
        """List a full block that follows `chain`; returns the chain that it ends.

        The first block of equal contents stays the listed one.
        """
        assert len(tokens) == self.block_tokens, f"{len(tokens)} tokens in a full block"
        entry = (chain, tuple(tokens))
        known = self._listed.get(entry)
        if known is not None:
            return self._chains[known]
        self._listed[entry], self._entries[block] = block, entry
        self._chains[block] = self._next_chain
        self._next_chain += 1
        return self._chains[block]

    def find(self, tokens: Sequence[int], max_blocks: int) -> tuple[list[int], int]:
        """Listed blocks that hold the beginning of `tokens`, at most `max_blocks`, and their chain.

        They are not held yet.
        """
        found: list[int] = []
        chain, size = ROOT, self.block_tokens
        for begin in range(0, max_blocks * size, size):
            block = self._listed.get((chain, tuple(tokens[begin : begin + size])))
            if block is None:
                break
            found.append(block)
            chain = self._chains[block]
        return found, chain

    def _forget(self, block: int) -> None:
        entry = self._entries.pop(block, None)
        if entry is not None:
            del self._listed[entry], self._chains[block]
