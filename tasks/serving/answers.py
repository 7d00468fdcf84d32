"""Makes text of the tokens of one answer, and keeps each token's log probability with its text.

A token belongs to the piece of text that shows its first character, so pieces and tokens of a
streamed answer join to those of the whole. Tokens of which a stop string cuts all text off are
counted, since the model wrote them, and not shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from llm_core.infer.requests import Finish, NewToken, Scored
from tasks.tokenizer.encoder import Tokenizer
from tasks.tokenizer.text_stream import TextStream


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token and its log probability, null for the first of a prompt, which follows nothing."""

    id: int
    offset: int
    """Characters of the text before it."""
    logprob: float | None
    top: Sequence[tuple[int, float]]
    """The likeliest (id, log probability), from high to low."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What is new of one answer."""

    index: int
    """Which answer of the request."""
    text: str
    tokens: Sequence[ScoredToken] = ()
    finish: Finish | None = None
    """Why the answer ended, in its last piece."""

    @staticmethod
    def joined(parts: Sequence[Piece]) -> Piece:
        """One piece of several of an answer."""
        if len(parts) == 1:
            return parts[0]
        text = "".join(part.text for part in parts)
        tokens = [token for part in parts for token in part.tokens]
        return Piece(parts[0].index, text, tokens, parts[-1].finish)

    @staticmethod
    def of_each(pieces: Sequence[Piece]) -> list[Piece]:
        """One piece of each answer, of what waited together."""
        if len(pieces) == 1:
            return list(pieces)
        apart: dict[int, list[Piece]] = {}
        for piece in pieces:
            apart.setdefault(piece.index, []).append(piece)
        return list(map(Piece.joined, apart.values()))


@dataclass
class Answer:
    """The state of one answer while it is written."""

    index: int
    stream: TextStream
    is_scored: bool
    num_echoed: int = 0
    """Characters of the prompt before it, where that is echoed."""
    num_tokens: int = 0
    """Tokens that the model wrote, those behind a stop string included, a stop id not."""
    finish: Finish | None = None
    _unshown: list[ScoredToken] = field(default_factory=list)
    _num_shown: int = 0

    def add(
        self,
        id: int,
        logprob: float | None = None,
        top: Sequence[tuple[int, float]] = (),
        finish: Finish | None = None,
    ) -> Piece | None:
        """What can be shown after one more token, and after the end that comes with it."""
        self.num_tokens += 1
        if self.is_scored:
            offset = self.num_echoed + self.stream.num_chars
            self._unshown.append(ScoredToken(id, offset, logprob, top))
        text = self.stream.add((id,))
        if self.stream.stop is not None:
            finish = "stop"
        return self._piece(text, finish)

    def extend(self, tokens: Sequence[NewToken]) -> Piece | None:
        """What can be shown after tokens that came together; what follows a stop string is
        dropped."""
        if self.finish is not None:
            return None
        if not (self.is_scored or self.stream.has_stops):
            ids = [token.id for token in tokens if token.id is not None]
            self.num_tokens += len(ids)
            return self._piece(self.stream.add(ids), tokens[-1].finish)
        pieces = []
        for token in tokens:
            if self.finish is not None:
                break
            if token.id is None:
                assert token.finish is not None, "a token without an id ends an answer"
                piece = self.end(token.finish)
            else:
                piece = self.add(token.id, token.logprob, token.top or (), token.finish)
            if piece is not None:
                pieces.append(piece)
        return Piece.joined(pieces) if pieces else None

    def end(self, finish: Finish) -> Piece | None:
        """The last piece, where the answer ended without a further token."""
        return self._piece("", finish)

    def _piece(self, text: str, finish: Finish | None) -> Piece | None:
        if finish is not None:
            text += self.stream.end()
            self.finish = finish
        self._num_shown += len(text)
        tokens = self._shown(is_last=finish is not None)
        return Piece(self.index, text, tokens, finish) if text or tokens or finish else None

    def _shown(self, is_last: bool) -> list[ScoredToken]:
        if not self._unshown:
            return []
        # An end without a stop string shows all; tokens without text go with what is before them.
        everything = self.stream.stop is None and (is_last or self.stream.num_held == 0)
        end = self.num_echoed + self._num_shown
        count = sum(everything or token.offset < end for token in self._unshown)
        shown, self._unshown = self._unshown[:count], self._unshown[count:]
        return shown


def token_label(tokenizer: Tokenizer, id: int) -> str:
    """A token as text; one that is part of a character as OpenAI writes it, by its bytes."""
    spelled = token_bytes(tokenizer, id)
    if not spelled:
        return tokenizer.name_of(id)
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def token_bytes(tokenizer: Tokenizer, id: int) -> bytes:
    return tokenizer.bytes_of(id) if id < tokenizer.vocab_size else b""


def scored_prompt(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    scores: Iterable[Scored | None],
) -> list[ScoredToken]:
    """The tokens of an echoed prompt."""
    stream, tokens = TextStream(tokenizer), []
    for id, score in zip(ids, scores, strict=True):
        logprob, top = (None, ()) if score is None else (score.logprob, score.top)
        tokens.append(ScoredToken(id, stream.num_chars, logprob, top))
        stream.add((id,))
    return tokens
