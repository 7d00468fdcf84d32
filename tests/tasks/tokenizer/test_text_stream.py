"""Text told in pieces is the text of all ids, in whole characters, and ends exactly before a stop
string, however it was cut into tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tasks.tokenizer.config import TokenizerConfig
from tasks.tokenizer.encoder import Tokenizer, load_tokenizer
from tasks.tokenizer.stage import train_tokenizer
from tasks.tokenizer.text_stream import TextStream
from tests.support.data.foreign_tokenizers import FORMS, foreign_tokenizer, publish_tokenizer
from tests.support.data.sample_documents import sample_texts, write_documents

TRAINED = ("bpe", "unigram", "wordpiece", "sentencepiece_bpe")
checked = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
texts = st.text(
    st.one_of(st.sampled_from("ab the好é👩\u200d नम\ufffd"), st.characters(codec="utf-8")),
    max_size=24,
)


@pytest.fixture(scope="module", params=[*TRAINED, *FORMS])
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param in FORMS:
        return load_tokenizer(publish_tokenizer(request.param, folder))
    documents = write_documents(folder, sample_texts(40, 600))
    config = TokenizerConfig(request.param, vocab_size=600)
    return load_tokenizer(train_tokenizer(documents, folder, config).path)


def told(tokenizer: Tokenizer, before: list[int], ids: list[int], stops: list[str]) -> str:
    """The pieces that one id after the other gives, joined."""
    stream = TextStream(tokenizer, before, stops)
    return "".join(stream.add([id]) for id in ids) + stream.end()


def cut(text: str, stops: list[str]) -> str:
    """By definition: before the stop string that is complete first, the longest of several."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if found:
            return text[: end - len(max(found, key=len))]
    return text


@checked
@given(data=st.data())
def test_pieces_joined_are_the_text_of_all_ids_without_an_unfinished_end(
    tokenizer: Tokenizer, data: st.DataObject
) -> None:
    some = st.one_of(
        texts.map(lambda text: tokenizer.encode(text).tolist()),
        st.integers(0, tokenizer.vocab_size + 9).map(lambda id: [id]),
    )
    before, ids = (
        [id for row in data.draw(st.lists(some, max_size=8)) for id in row] for _ in range(2)
    )
    ids = ids[: data.draw(st.integers(0, len(ids)))]  # may end inside a character
    shown = told(tokenizer, [], before, []) + told(tokenizer, before, ids, [])
    known = [id for id in before + ids if id < tokenizer.vocab_size]
    whole = tokenizer.decode(known)
    if tokenizer.drops_first_space:
        whole = whole.removeprefix(" ")
    # A character that `before` begins and `ids` end is shown by neither stream alone.
    finished = TextStream(tokenizer).add(before) + TextStream(tokenizer, before).add(ids)
    assert shown == finished
    assert whole in (finished, finished + "\ufffd")


@checked
@given(text=texts, data=st.data())
def test_an_answer_continues_the_character_that_its_prompt_begins(
    tokenizer: Tokenizer, text: str, data: st.DataObject
) -> None:
    ids = tokenizer.encode(text).tolist()
    cut = data.draw(st.integers(0, len(ids)))
    whole = TextStream(tokenizer)
    whole.add(ids[:cut])
    assert TextStream(tokenizer, ids[:cut]).add(ids[cut:]) == whole.add(ids[cut:])


def test_of_a_long_prompt_only_the_end_is_decoded(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    bytes_of = tokenizer.bytes_of

    def counted(id: int) -> bytes:
        decoded.append(id)
        return bytes_of(id)

    monkeypatch.setattr(tokenizer, "bytes_of", counted)
    TextStream(tokenizer, tokenizer.encode("the end " * 1000).tolist())
    assert 0 < len(decoded) <= 4


@checked
@given(text=texts)
def test_encoded_text_comes_back_as_the_library_decodes_it(tokenizer: Tokenizer, text: str) -> None:
    # Published sentencepiece tokenizers cannot tell their sign of a space from a space, what spells
    # a control token from the token, or a first space from the one they add.
    lost = {"\u2581", "<"} & set(text) or text.startswith(" ")
    assume(not (tokenizer.drops_first_space and lost))
    ids = tokenizer.encode(text).tolist()
    assert told(tokenizer, [], ids, []) == text


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", ["the a", "a  b", "é好👩", "x"])
def test_the_library_decodes_published_tokenizers_to_the_same_text(
    form: str, text: str, tmp_path: Path
) -> None:
    model = foreign_tokenizer(form)  # type: ignore[arg-type]
    tokenizer = load_tokenizer(publish_tokenizer(form, tmp_path))  # type: ignore[arg-type]
    ids = model.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text).tolist() == ids
    assert told(tokenizer, [], ids, []) == model.decode(ids) == text


@pytest.mark.parametrize("form", ["llama2", "metaspace"])
def test_an_answer_keeps_the_space_that_a_text_would_lose(form: str, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(publish_tokenizer(form, tmp_path))  # type: ignore[arg-type]
    word = tokenizer.encode("the").tolist()
    assert told(tokenizer, [], word, []) == "the"
    assert told(tokenizer, tokenizer.encode("x").tolist(), word, []) == " the"
    # Control tokens alone give no text.
    assert told(tokenizer, list(tokenizer.start_ids), word, []) == "the"


@checked
@given(data=st.data())
def test_a_stop_string_cuts_exactly_whatever_the_tokens(
    tokenizer: Tokenizer, data: st.DataObject
) -> None:
    letters = st.text(st.sampled_from("aab b好"), min_size=1, max_size=20)
    text = data.draw(letters)
    stops = data.draw(st.lists(st.text(st.sampled_from("aab b好"), max_size=5), max_size=3))
    # Several spellings of the same text: cut anywhere and encoded in parts.
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    parts = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    start = tokenizer.encode("x").tolist()
    ids = [id for part in parts for id in tokenizer.encode(part).tolist()]
    spelled = TextStream(tokenizer, start).add(ids)
    assert told(tokenizer, start, ids, stops) == cut(spelled, stops)


def test_of_overlapping_stop_strings_the_first_to_end_cuts(tokenizer: Tokenizer) -> None:
    whole = tokenizer.encode("abcd").tolist()
    single = [id for letter in "abcd" for id in tokenizer.encode(letter).tolist()]
    for ids in (whole, single):
        shown = TextStream(tokenizer).add(ids)
        stream = TextStream(tokenizer, stops=["abcd", "bc", "c"])
        assert stream.add(ids) == cut(shown, ["abcd", "bc", "c"])
        assert stream.stop in ("bc", "c")


def test_nothing_is_shown_that_may_become_a_stop_string_and_nothing_more_is_held(
    tokenizer: Tokenizer,
) -> None:
    stream = TextStream(tokenizer, tokenizer.encode("x"), ["END."])
    shown = stream.add(tokenizer.encode("aE"))
    assert shown.endswith("a") and stream.num_held == 1
    assert stream.end() == "E" and stream.num_held == 0


def test_an_answer_of_many_tokens_costs_as_much_per_token_as_a_short_one(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0
    bytes_of = tokenizer.bytes_of

    def counted(id: int) -> bytes:
        nonlocal read
        read += len(found := bytes_of(id))
        return found

    monkeypatch.setattr(tokenizer, "bytes_of", counted)
    monkeypatch.setattr(tokenizer, "decode", None)
    ids = tokenizer.encode("ab the 好 " * 300).tolist()
    told(tokenizer, [], ids, ["never"])
    assert read == int(tokenizer.bytes_per_token[ids].sum())
