"""Keywords: what is found is what a plain search on folded text finds, and it drops, tags or
masks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError, build
from tasks.corpus.documentset import read_table
from tasks.documents.edits import collect_edits, edit_texts
from tasks.documents.verdicts import edits_column
from tasks.explain.replay import replay_quality
from tasks.kernels.quality.keywords import build_matcher, find_terms
from tasks.kernels.text.chars import MARK, UNSEGMENTED, char_classes, fold_table
from tasks.language.config import LanguageConfig
from tasks.language.stage import identify_languages
from tasks.quality.config import QualityConfig
from tasks.quality.keywords import KeywordList, find_keywords
from tasks.quality.stage import filter_quality
from tasks.runtime.artifact import Artifact
from tasks.runtime.keys import key_config
from tasks.runtime.parts import PartRunner
from tasks.scores.config import ScoresConfig
from tasks.scores.stage import score_documents
from tests.support.data.any_bytes import BYTES, assert_neighbours_do_not_matter
from tests.support.data.language_texts import documents_artifact
from tests.support.data.make_artifacts import empty_dir

ALPHABET = "abAé1_ \n\t.'’-水が゛\u0301ก้ßΣ\u00ad"
# Pieces of a text are hashed eight bytes at a time: words of about that length, and longer.
LONG_PIECES = ["abcdefgh", "ABCDEFG", "\N{KELVIN SIGN}elvin", "kelvin", "é", "a", "'", " ", "水"]
LONG_TEXTS = st.lists(st.sampled_from(LONG_PIECES), min_size=1, max_size=9).map("".join)
# Each Han letter is a piece; behind one may be a mark, a sign or another script.
HAN = "水果汁们䷀㐀䀀鿿\u0301。ア a"
TEXTS = st.text(ALPHABET, max_size=40) | LONG_TEXTS | st.text(HAN, max_size=40)
TERMS = (
    st.text(ALPHABET, min_size=1, max_size=5)
    | st.text(HAN, min_size=1, max_size=4)
    | st.lists(st.sampled_from(LONG_PIECES), min_size=1, max_size=4).map("".join)
).filter(str.strip)


def search(
    texts: list[str],
    lists: dict[str, KeywordList],
    languages: list[str] | None = None,
    digest: str = "none",
):  # type: ignore[no-untyped-def]
    labels = np.array(languages or ["en"] * len(texts), object)
    return find_keywords(
        lists, digest, pa.chunked_array([pa.array(texts, pa.large_string())]), labels
    )


def folded_characters(text: str) -> list[tuple[str, int, int]]:
    """(folded character, begin, end in UTF-8 bytes) of a text, a run of white space being one."""
    found: list[tuple[str, int, int]] = []
    place = 0
    for char in text:
        size = len(char.encode())
        folded = " " if char.isspace() else chr(fold_table()[ord(char)])
        if folded == " " and found and found[-1][0] == " ":
            found[-1] = (" ", found[-1][1], place + size)
        else:
            found.append((folded, place, place + size))
        place += size
    return found


def apart(before: str, after: str) -> bool:
    """Whether a boundary stands between two characters, as the documentation says it."""
    a, b = (int(char_classes()[ord(char)]) for char in (before, after))
    if b == MARK:
        return a < MARK
    return not (MARK <= a < UNSEGMENTED and MARK <= b < UNSEGMENTED)


def plain_search(text: str, term: str) -> list[tuple[int, int]]:
    """Byte ranges of a term, by comparing at every place."""
    characters = folded_characters(text)
    haystack = "".join(char for char, _, _ in characters)
    needle = "".join(char for char, _, _ in folded_characters(term)).strip()
    found = []
    for i in range(len(haystack) - len(needle) + 1):
        j = i + len(needle)
        begins = i == 0 or apart(haystack[i - 1], haystack[i])
        ends = j == len(haystack) or apart(haystack[j - 1], haystack[j])
        if haystack[i:j] == needle and begins and ends:
            found.append((characters[i][1], characters[j - 1][2]))
    return found


@given(
    texts=st.lists(TEXTS, max_size=4),
    terms=st.lists(st.lists(TERMS, min_size=1, max_size=6), min_size=1, max_size=3),
)
@settings(max_examples=300, deadline=None)
def test_hits_and_masks_are_those_of_a_plain_search_on_folded_text(
    texts: list[str], terms: list[list[str]]
) -> None:
    lists = {f"l{i}": KeywordList(terms=tuple(one), action="mask") for i, one in enumerate(terms)}
    hits, masks = search(texts, lists)
    assert masks is not None
    for row, text in enumerate(texts):
        covered = masks[row].as_py()
        assert covered == sorted(covered, key=lambda m: (m["start"], m["end"]))
        for i, one in enumerate(terms):
            folded = {"".join(c for c, _, _ in folded_characters(term)).strip() for term in one}
            found = [span for term in folded for span in plain_search(text, term)]
            assert hits[f"keywords_l{i}"][row] == len(found)
            mine = {b for m in covered if m["type"] == f"L{i}" for b in range(m["start"], m["end"])}
            assert mine == {b for start, stop in found for b in range(start, stop)}


@pytest.mark.parametrize(
    ("text", "term", "hits"),
    [
        ("Class glasses and an ass, ASS!", "ass", 2),
        ("New\n  York and new york", "new york", 2),
        ("l'école de John’s", "école", 1),
        ("l'école de John’s", "john", 1),
        ("我们喝水果汁", "水果", 1),
        ("c++ c+ C++", "c++", 2),
        ("snake_case case", "case", 1),
        ("cafe\u0301 cafe", "cafe", 1),
        ("ΟΔΟΣ οδος", "οδός", 0),
        ("СЛОВО слово", "Слово", 2),
    ],
)
def test_terms_stand_between_word_boundaries_and_fold(text: str, term: str, hits: int) -> None:
    assert search([text], {"one": KeywordList(terms=(term,))})[0]["keywords_one"].tolist() == [hits]


def test_a_list_counts_only_in_its_languages() -> None:
    lists = {
        "all": KeywordList(terms=("gift",)),
        "de": KeywordList(terms=("gift",), languages=("de",), action="mask"),
    }
    hits, masks = search(["a gift", "ein Gift"], lists, ["en", "de"])
    assert hits["keywords_all"].tolist() == [1, 1] and hits["keywords_de"].tolist() == [0, 1]
    assert masks is not None and [len(row) for row in masks.to_pylist()] == [0, 1]


def test_more_masks_than_there_was_room_for_are_all_there() -> None:
    _, masks = search(["word " * 3000], {"one": KeywordList(terms=("word",), action="mask")})
    assert masks is not None and masks[0].as_py() == [
        {"start": 5 * i, "end": 5 * i + 4, "type": "ONE"} for i in range(3000)
    ]


def test_every_term_of_a_large_list_is_found() -> None:
    terms = [f"w{i * i:x} {i}" for i in range(20_000)]
    text = ", ".join(terms)
    assert search([text], {"one": KeywordList(terms=tuple(terms))})[0]["keywords_one"].tolist() == [
        20_000
    ]


def filtered(
    tmp_path: Path, texts: list[str], name: str, runner: PartRunner | None = None, **config: object
) -> Artifact:
    folder = tmp_path / name
    ingest = documents_artifact(folder / "ingest", [texts[:1], texts[1:]])
    language = identify_languages(ingest, empty_dir(folder / "language"), LanguageConfig())
    scores = score_documents(ingest, language, empty_dir(folder / "scores"), ScoresConfig())
    made = build(QualityConfig, {"presets": [], "record": [], **config})
    return filter_quality(
        ingest, language, scores, empty_dir(folder / "quality"), made, runner or PartRunner()
    )


def rows_of(artifact: Artifact) -> list[dict]:
    return [
        row for file in artifact.files("part-*.parquet") for row in read_table(file).to_pylist()
    ]


TEXTS_OF_ANIMALS = ["The cat sat there.", "A dog and a cat.", "Dog, dog, dog."]


def test_lists_drop_tag_and_mask(tmp_path: Path) -> None:
    (tmp_path / "dogs.txt").write_text("# animals\n\ndog\n", "utf-8")
    keywords = {
        "dogs": {"files": [str(tmp_path / "dogs.txt")], "max_hits": 1},
        "cats": {"terms": ["CAT"], "action": "tag"},
        "hidden": {"terms": ["cat", "the cat"], "action": "mask"},
    }
    artifact = filtered(tmp_path, TEXTS_OF_ANIMALS, "a", keywords=keywords)
    rows = rows_of(artifact)
    assert [row["kept"] for row in rows] == [True, True, False]
    assert artifact.counters["dropped"] == {"KEYWORDS_DOGS": 1}
    assert [row["keywords_dogs"] for row in rows] == [0, 1, 3]
    bits = {rule["name"]: rule["bit"] for rule in artifact.metrics["rules"]}
    assert [row["verdict"] >> bits["KEYWORDS_CATS"] & 1 for row in rows] == [1, 1, 0]
    assert artifact.metrics["keywords"]["hidden"] == {"documents": 2, "hits": 3}
    tables = [read_table(file) for file in artifact.files("part-*.parquet")]
    for table, texts in zip(tables, (TEXTS_OF_ANIMALS[:1], TEXTS_OF_ANIMALS[1:]), strict=True):
        nothing = edits_column(table.select(["id"]), "cuts")
        edits = collect_edits(nothing, nothing, edits_column(table, "masks"))
        edited, _ = edit_texts(
            pa.chunked_array([pa.array(texts, pa.large_string())]), edits, "quality"
        )
        assert edited.to_pylist() == [re.sub("(?i)the cat|cat", "<HIDDEN>", text) for text in texts]


def test_without_lists_the_sidecar_has_no_more_columns(tmp_path: Path) -> None:
    assert not {"masks"} & set(rows_of(filtered(tmp_path, TEXTS_OF_ANIMALS, "a"))[0])
    assert QualityConfig().input_files() == {}


def test_limits_bound_hits_and_a_replay_agrees(tmp_path: Path) -> None:
    keywords = {"dogs": {"terms": ["dog"], "action": "tag"}}
    limits = {"keywords_dogs": {"max": 1}}
    before = filtered(tmp_path, TEXTS_OF_ANIMALS, "a", keywords=keywords)
    after = filtered(tmp_path, TEXTS_OF_ANIMALS, "b", keywords=keywords, limits=limits)
    assert after.counters["dropped"] == {"KEYWORDS_DOGS_OVER_MAX": 1}
    parents = [
        Artifact(tmp_path / "a" / name, name, {}, {"scores": {}})
        for name in ("ingest", "language", "scores")
    ]
    config = build(
        QualityConfig, {"presets": [], "record": [], "keywords": keywords, "limits": limits}
    )
    assert replay_quality(*parents, before, config).total.kept_after == after.counters["kept"] == 2


def test_a_replay_with_other_terms_than_those_that_were_counted_is_refused(tmp_path: Path) -> None:
    keywords = {"dogs": {"terms": ["dog"]}}
    made = filtered(tmp_path, TEXTS_OF_ANIMALS, "a", keywords=keywords)
    recorded = json.loads(json.dumps(key_config(build(QualityConfig, {"keywords": keywords}))))
    record = {
        "config": recorded,
        "identity": {"inputs": {}},
        "files": [{"path": path.name} for path in made.path.iterdir()],
    }
    stored = Artifact(made.path, "quality", made.counters, made.metrics, record)
    parents = [
        Artifact(tmp_path / "a" / name, name, {}, {"scores": {}})
        for name in ("ingest", "language", "scores")
    ]
    looser = {"dogs": {"terms": ["dog"], "max_hits": 1}}
    config = build(QualityConfig, {"presets": [], "record": [], "keywords": looser})
    assert replay_quality(*parents, stored, config).total.kept_after == 2
    listed = tmp_path / "list.txt"
    listed.write_text("cat", "utf-8")
    for other in (
        {"terms": ["cat"]},
        {"terms": ["dog"], "files": [str(listed)]},
        {"terms": ["dog"], "languages": ["de"]},
    ):
        with pytest.raises(ConfigError, match=r"keywords\.dogs is not the list"):
            replay_quality(*parents, stored, build(QualityConfig, {"keywords": {"dogs": other}}))


def test_a_changed_file_is_another_part(tmp_path: Path) -> None:
    listed = tmp_path / "list.txt"
    kept = []
    for term in ("cat", "dog"):
        listed.write_text(term, "utf-8")
        keywords = {"one": {"files": [str(listed)]}}
        runner = PartRunner(tmp_path / "parts")
        kept.append(
            [
                row["kept"]
                for row in rows_of(
                    filtered(tmp_path, TEXTS_OF_ANIMALS, term, runner, keywords=keywords)
                )
            ]
        )
    assert kept == [[False, False, True], [True, False, False]]


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"a": {}}, "finds nothing"),
        ({"A b": {"terms": ["x"]}}, "names a list"),
        ({"a": {"terms": [" "]}}, "empty one"),
        ({"a": {"terms": ["x"], "languages": ["english"]}}, "english"),
        ({"a": {"terms": ["x"], "max_hits": -1}}, "max_hits"),
        ({"a": {"terms": ["x"], "action": "hide"}}, "not a choice"),
    ],
)
def test_lists_that_mean_nothing_are_refused(keywords: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(QualityConfig, {"keywords": keywords})


def test_files_that_hold_no_list_are_refused(tmp_path: Path) -> None:
    config = build(QualityConfig, {"keywords": {"a": {"files": [str(tmp_path / "nowhere")]}}})
    with pytest.raises(ConfigError, match=r"quality\.keywords\.a\.files .* is not a file"):
        config.input_files()
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    (tmp_path / "empty").write_text("# nothing\n", "utf-8")
    for name, message in (("latin", "not UTF-8 at byte 3"), ("empty", "has no term")):
        with pytest.raises(ConfigError, match=message):
            search(["x"], {"a": KeywordList(files=(tmp_path / name,))}, digest=name)


@given(data=BYTES, beside=BYTES)
@settings(max_examples=60, deadline=None)
def test_hits_in_any_bytes_do_not_depend_on_their_neighbours(data: bytes, beside: bytes) -> None:
    matcher = build_matcher({"ab": 1, "数据": 2, "é -": 3, "a": 1})

    def find(buf: np.ndarray, begins: np.ndarray) -> tuple[np.ndarray, ...]:
        counts, spans = np.zeros((3, 2), np.int64), np.zeros((500, 4), np.int64)
        asked = np.array([0, 3, 0], np.uint64)
        found = find_terms(buf, begins, matcher, asked, np.uint64(3), counts, spans)
        assert all(0 <= start < stop <= len(data) for start, stop in spans[:found, 2:])
        return counts[1], spans[:found]

    assert_neighbours_do_not_matter(data, beside, find)
