"""The border between prompt and answer, what is cut, and which shots are shown."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from tasks.evaluation.prompts import choose_shots, encode_answer, prompt_of
from tasks.evaluation.suites import Suite, load_suite
from tasks.tokenizer.encoder import Tokenizer, load_tokenizer
from tests.support.data.trained_run import Run
from tests.support.data.written_suites import question
from tests.tasks.evaluation.conftest import Write

TEXT = st.text(st.sampled_from("abe th in的好 \n."), max_size=12)


@pytest.fixture(scope="module")
def tokenizer(small_run: Run) -> Tokenizer:
    return load_tokenizer(small_run.tokenizer.path)


@settings(max_examples=60)
@given(prompt=TEXT, answer=TEXT.filter(lambda text: text.strip()), window=st.integers(40, 60))
def test_tokens_are_those_of_the_whole_text_and_scored_from_the_first_that_differs(
    tokenizer: Tokenizer, prompt: str, answer: str, window: int
) -> None:
    found = encode_answer(tokenizer, prompt, answer, window, "item")
    ids, border = found.continuation.ids, found.continuation.begin
    start = tokenizer.start_ids
    assert ids[: len(start)] == start and ids.count(start[0]) == 1
    assert len(ids) <= window + 1
    whole = tokenizer.encode(prompt + answer).tolist()
    alone = tokenizer.encode(prompt.rstrip()).tolist()
    if not found.is_truncated:
        assert list(ids[len(start) :]) == whole
        assert whole[: border - len(start)] == alone[: border - len(start)]
        assert found.is_merged == (border - len(start) < len(alone))
    # The answer is whole, and white space before it is part of it.
    text = tokenizer.decode_bytes(ids[border:]).decode("utf-8", "replace")
    assert text.endswith(prompt[len(prompt.rstrip()) :] + answer)


def test_a_merged_border_moves_what_is_scored(tokenizer: Tokenizer) -> None:
    """A token that begins in the prompt belongs to the answer."""
    merged = next(
        text
        for id in range(tokenizer.vocab_size)
        if len(text := tokenizer.decode_bytes([id]).decode("utf-8", "replace")) == 2
        and text.isalpha()
        and len(tokenizer.encode(text)) == 1
    )
    found = encode_answer(tokenizer, merged[0], merged[1], 32, "item")
    assert found.is_merged
    assert found.continuation.begin == len(tokenizer.start_ids)


def test_long_prompts_lose_their_beginning_and_no_answer_is_cut(tokenizer: Tokenizer) -> None:
    prompt, answer = "in the house " * 20, " of the king"
    found = encode_answer(tokenizer, prompt, answer, 30, "item")
    assert found.is_truncated and len(found.continuation.ids) == 31
    assert found.continuation.ids[: len(tokenizer.start_ids)] == tokenizer.start_ids
    scored = found.continuation.ids[found.continuation.begin :]
    assert tokenizer.decode_bytes(scored).decode().endswith(answer)
    whole = tokenizer.encode(prompt + answer).tolist()
    kept = 31 - len(tokenizer.start_ids)
    assert list(found.continuation.ids[-kept:]) == whole[-kept:]


def test_an_answer_longer_than_the_window_is_an_error_that_names_the_item(
    tokenizer: Tokenizer,
) -> None:
    with pytest.raises(ConfigError, match=r"suite x, item 7 has an answer of \d+ tokens"):
        encode_answer(tokenizer, "Say", " word" * 40, 16, "suite x, item 7")


def test_an_empty_prompt_is_scored_from_the_start_of_a_text(tokenizer: Tokenizer) -> None:
    found = encode_answer(tokenizer, "", "the", 16, "item")
    assert found.continuation.begin == 1 and not found.is_merged


@pytest.fixture
def suite(write_suite: Write) -> Suite:
    items = [question(str(n), f"{n} + 1 =", ["0", str(n + 1)], 1) for n in range(6)]
    return load_suite("x", write_suite("x", items, separator="\n"))


def test_no_item_is_shown_its_own_solution_and_shots_depend_on_the_seed_alone(
    suite: Suite,
) -> None:
    prompts = [prompt_of(suite, item, 3, seed=1) for item in suite.items]
    for item, prompt in zip(suite.items, prompts, strict=True):
        *shots, last = prompt.split("\n")
        assert last == item.question and len(shots) == 3
        assert not any(shot.startswith(item.question) for shot in shots)
        assert all(shot.endswith(f"= {int(shot.split()[0]) + 1}") for shot in shots)
    # Most prompts begin alike, so that their tokens are computed once.
    assert len({prompt.rpartition("\n")[0] for prompt in prompts}) <= 4
    assert prompts == [prompt_of(suite, item, 3, seed=1) for item in suite.items]
    assert prompts != [prompt_of(suite, item, 3, seed=2) for item in suite.items]


def test_more_shots_than_other_items_are_refused(suite: Suite) -> None:
    with pytest.raises(ConfigError, match="too few for 6 shots"):
        choose_shots(suite, suite.items[0], 6, seed=0)


def test_letters_list_the_choices_and_stand_for_them(write_suite: Write) -> None:
    items = [question(str(n), "Which?", ["red", "blue"], n % 2) for n in range(2)]
    items[1]["question"] = "And now?"
    letters = load_suite("x", write_suite("x", items, form="letters"))
    expected = "Which?\nA. red\nB. blue\nAnswer: A\n\nAnd now?\nA. red\nB. blue\nAnswer:"
    assert prompt_of(letters, letters.items[1], 1, seed=0) == expected
