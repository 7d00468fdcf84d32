"""Gives the text of token ids as they come: whole characters only, cut exactly at a stop string.

The text does not depend on how it was cut into tokens. The answer ends before the stop string whose
last character comes first; of several that end there, before the longest. What may still become a
stop string is held back, as are the bytes of an unfinished character. Bytes that are not UTF-8
become U+FFFD. A text that begins here loses the leading space that its tokenizer adds to every
text. Costs are linear in the text: each character is read once per stop string (Knuth, Morris and
Pratt, 1977).
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.tokenizer.encoder import Tokenizer


class TextStream:
    """The text of an answer that continues the ids `before`.

    `stop` is the stop string that ended it; after that `add` gives nothing. `num_chars` counts the
    characters decoded so far, shown or held back.
    """

    def __init__(
        self, tokenizer: Tokenizer, before: Sequence[int] = (), stops: Sequence[str] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drops_space = tokenizer.drops_first_space
        self._held = ""
        self.stop: str | None = None
        self.num_chars = 0
        self._decode(self._end_of(before))
        self.num_chars = 0
        self._finder = StopFinder(stops) if any(stops) else None

    @property
    def has_stops(self) -> bool:
        """Whether a stop string may end the answer."""
        return self._finder is not None

    @property
    def num_held(self) -> int:
        """Characters that are held back because a stop string may begin with them."""
        return len(self._held)

    def add(self, ids: Iterable[int]) -> str:
        """What can be shown once these ids are there."""
        if self.stop is not None:
            return ""
        new = self._decode(ids)
        if self._finder is None or not new:
            return new
        text = self._held + new
        if (found := self._finder.read(new)) is not None:
            place, self.stop = found
            end = len(self._held) + place
            self._held = ""
            return text[: end - len(self.stop)]
        shown = len(text) - self._finder.num_matched
        self._held = text[shown:]
        return text[:shown]

    def end(self) -> str:
        """What was held back for a stop string that did not come. An unfinished character has no
        text."""
        held, self._held = self._held, ""
        return held

    def _end_of(self, before: Sequence[int]) -> Sequence[int]:
        """As much as may hold the beginning of a character, which has four bytes at most."""
        num_bytes, size_of = 0, self._tokenizer.bytes_per_token
        for place in range(len(before) - 1, -1, -1):
            if before[place] < self._tokenizer.vocab_size:
                num_bytes += int(size_of[before[place]])
            if num_bytes >= 4:
                return before[place:]
        return before

    def _decode(self, ids: Iterable[int]) -> str:
        # A model may have more ids than its tokenizer, to pad the vocabulary; they have no text.
        size, bytes_of = self._tokenizer.vocab_size, self._tokenizer.bytes_of
        text = self._decoder.decode(b"".join([bytes_of(id) for id in ids if id < size]))
        if self._drops_space and text:
            self._drops_space = False
            text = text.removeprefix(" ")
        self.num_chars += len(text)
        return text


class StopFinder:
    """Finds the first end of one of several strings in a text that comes in pieces."""

    def __init__(self, stops: Iterable[str]) -> None:
        # The longest first, as that is the one to find where several end together.
        self._stops = sorted({stop for stop in stops if stop}, key=len, reverse=True)
        self._borders = [_borders(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)

    @property
    def num_matched(self) -> int:
        """Length of the longest end of the text that a stop string begins with."""
        return max(self._matched)

    def read(self, piece: str) -> tuple[int, str] | None:
        """(characters of the piece up to the end of a stop string, the string); None without
        one."""
        matched = self._matched
        for place, character in enumerate(piece, start=1):
            for number, stop in enumerate(self._stops):
                length = matched[number]
                while length and stop[length] != character:
                    length = self._borders[number][length - 1]
                length += stop[length] == character
                if length == len(stop):
                    return place, stop
                matched[number] = length
        return None


def _borders(stop: str) -> list[int]:
    """For each prefix, the length of its longest proper end that `stop` begins with."""
    borders, length = [0], 0
    for character in stop[1:]:
        while length and stop[length] != character:
            length = borders[length - 1]
        length += stop[length] == character
        borders.append(length)
    return borders
