"""Each token goes with the piece that shows its first character, and none is shown whose text a
stop string cut off."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_core.infer.choice.sampling import GREEDY
from llm_core.infer.requests import NewToken, Request
from tasks.serving.answers import Answer, Piece, token_label
from tasks.tokenizer.encoder import Tokenizer, load_tokenizer
from tasks.tokenizer.text_stream import TextStream
from tests.support.data.foreign_tokenizers import publish_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(publish_tokenizer("gpt2", tmp_path_factory.mktemp("gpt2")))


def written(tokenizer: Tokenizer, ids: list[int], stops: list[str]) -> tuple[Answer, list[Piece]]:
    answer = Answer(0, TextStream(tokenizer, [], stops), is_scored=True, num_echoed=10)
    pieces = []
    for id in ids:
        if answer.finish is None:
            pieces.append(answer.add(id, -1.0))
    if answer.finish is None:
        pieces.append(answer.end("length"))
    return answer, [piece for piece in pieces if piece is not None]


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(ids=st.lists(st.integers(0, 258), max_size=12), stop=st.sampled_from(["ab", "a", "th", "é"]))
def test_pieces_carry_the_tokens_whose_text_they_begin(
    tokenizer: Tokenizer, ids: list[int], stop: str
) -> None:
    answer, pieces = written(tokenizer, ids, [stop])
    text, shown = "", []
    for piece in pieces:
        text += piece.text
        shown += [token.id for token in piece.tokens]
        ended = piece.finish is not None and answer.stream.stop is None
        assert ended or all(token.offset - 10 <= len(text) for token in piece.tokens)
    assert shown == ids[: len(shown)]
    if answer.stream.stop is None:
        assert shown == ids and answer.num_tokens == len(ids)
    else:
        assert TextStream(tokenizer).add(shown).startswith(text)
        assert TextStream(tokenizer).add(shown[:-1]) != text or not shown
        assert [piece.finish for piece in pieces] == [None] * (len(pieces) - 1) + ["stop"]


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    letters=st.text("athé ", min_size=1, max_size=12),
    stops=st.sampled_from([[], ["a"], ["th", "é"]]),
    is_scored=st.booleans(),
    size=st.integers(1, 5),
    finish=st.sampled_from(["stop", "length"]),
)
def test_tokens_that_come_together_are_shown_as_those_that_come_one_by_one(
    tokenizer: Tokenizer,
    letters: str,
    stops: list[str],
    is_scored: bool,
    size: int,
    finish: Literal["stop", "length"],
) -> None:
    request = Request(prompt_ids=(1,), params=GREEDY, max_new_tokens=12)
    ids = [id for letter in letters for id in tokenizer.encode(letter).tolist()]
    tokens = [NewToken(request, 0, id, -1.0) for id in ids]
    if finish == "length":
        tokens[-1] = tokens[-1]._replace(finish=finish)
    else:
        tokens.append(NewToken(request, 0, None, finish=finish))
    found = []
    for apart in (True, False):
        answer = Answer(0, TextStream(tokenizer, [], stops), is_scored)
        pieces: list[Piece | None] = []
        if apart:
            for token in tokens:
                if answer.finish is None and token.id is None:
                    pieces.append(answer.end(finish))
                elif answer.finish is None and token.id is not None:
                    pieces.append(answer.add(token.id, token.logprob, (), token.finish))
        else:
            pieces += [answer.extend(tokens[i : i + size]) for i in range(0, len(tokens), size)]
        whole = Piece.joined([piece for piece in pieces if piece is not None])
        found.append((whole, answer.num_tokens, answer.finish, answer.stream.stop))
    assert found[0] == found[1]


def test_pieces_that_waited_together_are_one_of_each_answer() -> None:
    pieces = [Piece(0, "a"), Piece(1, "x"), Piece(0, "b"), Piece(1, "", (), "stop"), Piece(0, "c")]
    assert Piece.of_each(pieces) == [Piece(0, "abc", []), Piece(1, "x", [], "stop")]
    assert Piece.of_each(pieces[:1]) == pieces[:1]


def test_a_token_waits_while_its_text_may_become_a_stop_string(tokenizer: Tokenizer) -> None:
    x, a, b, c = (int(tokenizer.encode(letter)[0]) for letter in "xabc")
    _, pieces = written(tokenizer, [x, a, b], ["ab"])
    assert [(p.text, [t.id for t in p.tokens]) for p in pieces] == [("x", [x]), ("", [])]
    _, pieces = written(tokenizer, [x, a, c], ["ab"])
    assert [(p.text, [t.id for t in p.tokens]) for p in pieces] == [
        ("x", [x]),
        ("ac", [a, c]),
        ("", []),
    ]


def test_tokens_that_are_parts_of_characters_are_named_by_their_bytes(
    tokenizer: Tokenizer,
) -> None:
    first, *_ = tokenizer.encode("好").tolist()
    assert token_label(tokenizer, first) == "bytes:\\xe5"
    assert token_label(tokenizer, tokenizer.eos_id) == "</s>"
    assert token_label(tokenizer, 10**6) == ""
