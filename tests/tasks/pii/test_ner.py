"""A given model finds names, addresses and dates of birth: what of its finds is removed, and that
neither windows nor company change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers")

from tasks.definitions.pii_kinds import TYPE_NAMES
from tasks.pii.config import PiiConfig
from tasks.pii.ner_model import EntityModel, model_of, pieces, windows
from tasks.pii.ner_spans import byte_offsets, entity_rows
from tasks.pii.scrub import apply_spans
from tasks.pii.spans import find_all_spans
from tests.support.data.entity_models import write_random_model, write_word_model

PERSONS = (
    *("Jane", "##Jane", "##ane", "Jo", "##hann", "Doe", "##Doe", "Élise", "山", "田", "a", "b"),
    *("김", "##민", "##수"),
)
ADDRESSES = ("12", "Main", "Street", "Springfield", "88", "号", "555", "0199", "212", "##9")
DATES = ("3", "March", "1980", "日")
WORDS = (
    dict.fromkeys(PERSONS, "B-PER")
    | dict.fromkeys(ADDRESSES, "B-ADDRESS")
    | dict.fromkeys(DATES, "B-DATE")
    | dict.fromkeys((*",.-/()😀👩", "born", "in", "the", "##x", "##는", "##😀", "##⚕"), "O")
)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> PiiConfig:
    return PiiConfig(ner=write_word_model(tmp_path_factory.mktemp("words") / "model", WORDS))


@pytest.fixture(scope="module")
def random_config(tmp_path_factory: pytest.TempPathFactory) -> PiiConfig:
    folder = tmp_path_factory.mktemp("random") / "model"
    return PiiConfig(ner=write_random_model(folder, [*WORDS, *"abcdefghij"]), ner_min_score=0.3)


def found(
    texts: Sequence[str], config: PiiConfig, model: EntityModel | None = None
) -> list[list[tuple[int, int, str]]]:
    """Spans of each text, together in one buffer."""
    model = model or model_of(config, "fixed")
    datas = [text.encode() for text in texts]
    begins = np.cumsum([0, *map(len, datas)]).astype(np.int64)
    values = np.frombuffer(b"".join(datas), np.uint8)
    spans = find_all_spans(values, begins, config, lambda v, b: entity_rows(v, b, model))
    result: list[list[tuple[int, int, str]]] = [[] for _ in texts]
    for document, start, end, number in zip(
        spans.documents.tolist(),
        spans.starts.tolist(),
        spans.ends.tolist(),
        spans.types.tolist(),
        strict=True,
    ):
        first = int(begins[document])
        result[document].append((start - first, end - first, TYPE_NAMES[number]))
    return result


def scrubbed(text: str, config: PiiConfig) -> str:
    return apply_spans(text.encode(), found([text], config)[0]).decode()


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("see Jane Doe.", "see <NAME>."),
        ("(Jane) and J. Doe", "(<NAME>) and J. <NAME>"),
        ("Jane\nJane", "<NAME>\n<NAME>"),
        ("at 12 Main Street,\nSpringfield, and", "at <POSTAL_ADDRESS>, and"),
        ("born 3 March 1980 in", "born <DATE_OF_BIRTH> in"),
        ("3. March 1980 (출생)", "<DATE_OF_BIRTH> (출생)"),
        # A part of a word is the word; what follows a letter without a blank in Korean is not.
        ("Johannx sang", "<NAME> sang"),
        ("Johann-Doe", "<NAME>"),
        ("김민수는", "<NAME>는"),
        ("山田さん", "<NAME>さん"),
    ],
)
def test_what_the_model_finds_is_replaced_as_a_whole(
    text: str, want: str, config: PiiConfig
) -> None:
    assert scrubbed(text, config) == want


@pytest.mark.parametrize(
    "text",
    [
        "a town: Springfield, Main Street",  # an address without a number
        "on 3 March 1980 it rained",
        "reborn 3 March 1980, borne in March 1980",
        "3 March 1980" + " then" * 9 + " born",
        "a, b",  # one letter each
        "", " ", "\n\t \u3000", "\u0301", "😀",
    ],
)  # fmt: skip
def test_what_has_not_the_form_of_its_type_stays(text: str, config: PiiConfig) -> None:
    assert scrubbed(text, config) == text


def test_marks_and_emoji_at_borders_are_neither_split_nor_taken(config: PiiConfig) -> None:
    nfd = "E\u0301lise"
    assert scrubbed(f"x {nfd}, 😀Jane😀 👩\u200d⚕\ufe0fDoe", config) == (
        "x <NAME>, 😀<NAME>😀 👩\u200d⚕\ufe0f<NAME>"
    )
    # A mark that has no composed form with its letter goes with the letter.
    assert scrubbed("see Jo\u0330x, Doe there", config) == "see Jo\u0330x, <NAME> there"
    assert scrubbed("ＪａｎｅＤｏｅ Ja\u00adne", config) == "<NAME>"


def test_spans_of_rules_win_whole_and_are_never_split(config: PiiConfig) -> None:
    assert scrubbed("call 212-555-0199 or Jane", config) == "call <PHONE> or <NAME>"
    assert scrubbed("Jane.Doe@x.org Jane", config) == "<EMAIL> <NAME>"
    assert scrubbed("12 Main Street, 212-555-0199", config) == "12 Main Street, <PHONE>"


def test_tags_of_an_earlier_search_stay_whole(config: PiiConfig) -> None:
    once = "12 <EMAIL> Main * Street <br>Jane Doe"
    assert scrubbed("12 Main<br>Street", config) == "<POSTAL_ADDRESS><br><POSTAL_ADDRESS>"
    for tag in ("<EMAIL>", "*", "<br>"):
        assert tag in scrubbed(once, config)


def test_a_name_is_found_wherever_windows_and_pieces_are_cut(config: PiiConfig) -> None:
    loaded = model_of(config, "fixed")
    texts = ["the " * n + "Jane Doe, 12 Main Street, Springfield " * 40 for n in range(0, 40, 7)]
    texts.append("in the " * 900 + "Jane Doe " + "x" * 5000 + " Jane")
    want = found(texts, config)
    assert all(len(spans) >= 2 for spans in want)
    for window, margin in ((4, 1), (7, 2), (16, 0), (30, 5), (58, 14)):
        assert found(texts, config, replace(loaded, window=window, margin=margin)) == want


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 5000), st.integers(4, 300), st.integers(0, 75))
def test_windows_judge_every_token_once_with_its_surroundings(
    num_tokens: int, window: int, margin: int
) -> None:
    margin = min(margin, window // 4)
    judged = list(windows(num_tokens, window, margin))
    assert [t for first, last, *_ in judged for t in range(first, last)] == list(range(num_tokens))
    for first, last, low, high in judged:
        assert high - low <= window
        assert low <= max(0, first - margin) and high >= min(num_tokens, last + margin)


@settings(max_examples=50, deadline=None)
@given(st.text(st.sampled_from("ab \n"), max_size=60), st.integers(1, 400))
def test_pieces_cover_a_text_and_are_bounded(text: str, times: int) -> None:
    text *= times
    cut = list(pieces(text))
    assert "".join(text[begin:end] for begin, end in cut) == text
    assert all(0 < end - begin <= 4096 for begin, end in cut)


@settings(max_examples=50, deadline=None)
@given(st.text())
def test_offsets_in_bytes_are_those_of_the_encoded_text(text: str) -> None:
    want = [len(text[:i].encode()) for i in range(len(text) + 1)]
    assert byte_offsets(text).tolist() == want


def test_company_and_threads_never_change_what_is_found(random_config: PiiConfig) -> None:
    import torch

    pool = [*(word for word in WORDS if word[0] != "#"), *"abcdefghij"]
    draw = np.random.default_rng(1)
    texts = [" ".join(draw.choice(pool, draw.integers(0, 150))) for _ in range(30)]
    alone = [found([text], random_config)[0] for text in texts]
    assert sum(map(len, alone)) > 30, "the random model finds too little to tell"
    threads = torch.get_num_threads()
    for number in (1, 2):
        torch.set_num_threads(number)
        assert found(texts, random_config) == alone
        assert torch.get_num_threads() == number, "the process keeps its own number of threads"
    torch.set_num_threads(threads)
    order = draw.permutation(len(texts))
    assert found([texts[i] for i in order], random_config) == [alone[i] for i in order]


@settings(max_examples=150, deadline=None)
@given(
    st.text(
        st.sampled_from(
            [*"Jane Doe 12/3-.,<>*@", "\u0301", "\u200d", "😀", "é", "山", "김", "\u00ad", "Ａ"]
        )
    )
)
def test_spans_are_ordered_disjoint_and_at_character_borders(
    random_config: PiiConfig, text: str
) -> None:
    data, position = text.encode(), 0
    for start, end, kind in found([text], random_config)[0]:
        assert position <= start < end <= len(data) and kind in TYPE_NAMES
        data[start:end].decode()
        position = end


def test_a_megabyte_without_blanks_is_read_and_nothing_of_it_is_a_word(config: PiiConfig) -> None:
    text = "ACGT" * 250_000
    assert found([text, "Jane" * 2000], config) == [[], []]


def test_what_stands_in_a_long_run_of_letters_stays(config: PiiConfig) -> None:
    assert scrubbed("Jane " + "Jane" * 20 + " Jane", config).count("<NAME>") == 2


def test_another_threshold_finds_less(random_config: PiiConfig) -> None:
    text = " ".join([*(word for word in WORDS if word[0] != "#")] * 5)
    counts = [
        len(model_of(replace(random_config, ner_min_score=least), "fixed").tokens_of(text).types)
        for least in (0.0, 0.3, 0.9, 1.0)
    ]
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1]


def test_a_model_without_a_type_is_not_asked_for_it(config: PiiConfig) -> None:
    only = replace(config, ner_types=("NAME",))
    text = "Jane Doe, 12 Main Street"
    assert scrubbed(text, only) == "<NAME>, 12 Main Street"
    # Labels are given a type by name.
    named = replace(config, ner_types=("NAME",), ner_labels={"PER": "NAME", "ORG": "NAME"})
    assert scrubbed(text, named) == "<NAME>, 12 Main Street"


def test_the_folder_is_the_only_place_that_is_read(config: PiiConfig, tmp_path: Path) -> None:
    assert config.ner is not None
    assert {file.parent for file in config.input_files().values()} == {config.ner}
    assert sorted(config.input_files()) == [
        "ner/config.json", "ner/model.safetensors", "ner/tokenizer.json",
    ]  # fmt: skip
