"""Tokenizers are lossless, deterministic, and deaf to special tokens in text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from tasks.runtime.artifact import Artifact, ArtifactMismatch
from tasks.runtime.stage import StageFailure
from tasks.tokenizer.bpe import train_bpe
from tasks.tokenizer.config import TokenizerConfig
from tasks.tokenizer.encoder import (
    SPECIAL_TOKENS,
    Tokenizer,
    export_hugging_face,
    load_tokenizer,
    token_bytes,
)
from tasks.tokenizer.pretokenizers import letter_bytes
from tasks.tokenizer.sentencepieces import MAX_CHUNK_BYTES, RESERVED, ChunkCount, split_chunks
from tasks.tokenizer.stage import train_tokenizer
from tests.support.data.hostile_texts import HOSTILE, any_text
from tests.support.data.sample_documents import sample_texts, write_documents

KINDS = ("bpe", "unigram", "wordpiece", "sentencepiece_bpe")


checked = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return write_documents(
        tmp_path_factory.mktemp("documents"), sample_texts(100, 1200), num_files=2
    )


@pytest.fixture(scope="module")
def trained(documents: Artifact, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    made = {}
    for kind in KINDS:
        out_dir = tmp_path_factory.mktemp(kind)
        made[kind] = train_tokenizer(documents, out_dir, TokenizerConfig(kind, vocab_size=1000))  # type: ignore[arg-type]
    return made


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, trained: dict[str, Artifact]) -> Tokenizer:
    return load_tokenizer(trained[request.param].path)


@checked
@given(any_text)
def test_every_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.bytes_per_token[ids].sum() == len(text.encode())


@checked
@given(any_text)
def test_remembered_words_give_the_ids_of_the_whole_text(tokenizer: Tokenizer, text: str) -> None:
    assert (
        tokenizer.encode(text).tolist()
        == tokenizer._model.encode(text, add_special_tokens=False).ids
    )


def test_remembered_words_of_the_sample_give_the_ids_of_the_whole_text(
    tokenizer: Tokenizer,
) -> None:
    texts = sample_texts(300, 1200)
    encodings = tokenizer._model.encode_batch(texts, add_special_tokens=False)
    for _ in range(2):  # the second time from memory
        assert [ids.tolist() for ids in tokenizer.encode_words(texts)] == [
            encoding.ids for encoding in encodings
        ]


def test_words_are_not_cut_where_a_merge_crosses() -> None:
    """Every pair of signs that pre-tokens join is merged here, so a cut in the wrong place changes
    ids."""
    texts = ["café naïve señor l'été .\n\n ;\n  don't a1é ñ2 (x) --- \n\t-a _b\r\n"]
    tokenizer = Tokenizer(train_bpe(texts * 5, 1000))
    for text in (texts[0], texts[0].replace(" ", ""), texts[0][::-1]):
        assert (
            tokenizer.encode(text).tolist()
            == tokenizer._model.encode(text, add_special_tokens=False).ids
        )


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_come_back_without_special_ids(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not set(ids.tolist()) & {tokenizer.eos_id, tokenizer.pad_id, tokenizer.unknown_id}


def test_special_ids_have_no_bytes_and_every_other_id_has(tokenizer: Tokenizer) -> None:
    silent = {tokenizer.eos_id, tokenizer.pad_id, tokenizer.unknown_id} - {None}
    assert {
        id for id in range(tokenizer.vocab_size) if tokenizer.bytes_per_token[id] == 0
    } == silent
    assert tokenizer.decode([tokenizer.eos_id, tokenizer.pad_id]) == ""


def test_half_a_character_decodes_to_a_replacement(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("\U0010ffff")
    assert len(ids) == 4 and tokenizer.decode(ids[:2]) == "\ufffd"


def test_a_megabyte_without_spaces_is_encoded(tokenizer: Tokenizer) -> None:
    # WordPiece tries every length of a piece at every place, so it gets less.
    size = 50_000 if type(tokenizer._model.model).__name__ == "WordPiece" else 1_000_000
    for text in ("x" * size, "ab1," * (size // 10), " " * (size // 3), "日本語" * (size // 10)):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", KINDS)
def test_repeated_training_gives_the_same_bytes(
    kind: str, documents: Artifact, trained: dict[str, Artifact], tmp_path: Path
) -> None:
    script = (
        "import sys; from pathlib import Path; from tasks.runtime.artifact import Artifact; from"
        " tasks.tokenizer.stage import *\ntrain_tokenizer(Artifact(Path(sys.argv[1]), 'documents'),"
        " Path(sys.argv[2]), TokenizerConfig(sys.argv[3], 1000))"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(documents.path), str(tmp_path), kind],
        check=True,
        timeout=120,
    )
    files = sorted(p.name for p in trained[kind].path.iterdir())
    assert files == sorted(p.name for p in tmp_path.iterdir())
    for name in files:
        content = (tmp_path / name).read_bytes()
        assert content == (trained[kind].path / name).read_bytes(), name
        assert str(tmp_path).encode() not in content and str(documents.path).encode() not in content


@pytest.mark.parametrize("kind", KINDS)
def test_auto_tokenizer_gives_equal_ids(
    kind: str, trained: dict[str, Artifact], tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    export_hugging_face(trained[kind].path, tmp_path)
    ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert (theirs.eos_token_id, theirs.pad_token_id, len(theirs)) == (
        ours.eos_id,
        ours.pad_id,
        ours.vocab_size,
    )
    for text in [*HOSTILE, *sample_texts(30, 1500)]:
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ids == ours.encode(text).tolist()
        assert theirs.decode(ids) == text
        assert theirs(text)["input_ids"] == [ours.eos_id, *ids]


def test_sentencepiece_bpe_gives_the_ids_of_sentencepiece(trained: dict[str, Artifact]) -> None:
    folder = trained["sentencepiece_bpe"].path
    ours = load_tokenizer(folder)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    for text in sample_texts(200, 1200):
        if "\u2581" not in text and "\0" not in text:
            assert ours.encode(text).tolist() == theirs.encode(text)


def test_unigram_segments_as_sentencepiece_does(trained: dict[str, Artifact]) -> None:
    ours = load_tokenizer(trained["unigram"].path)
    theirs = sentencepiece.SentencePieceProcessor(
        model_file=str(trained["unigram"].path / "tokenizer.model")
    )
    texts = [t for t in sample_texts(100, 1200) if "\u2581" not in t]
    different = 0
    for text in texts:
        ids, expected = ours.encode(text).tolist(), theirs.encode(text)
        different += ids != expected
        # Ties, and sums that sentencepiece rounds to single precision, may fall either way; scores
        # may not differ.
        score, expected_score = (sum(theirs.get_score(i) for i in row) for row in (ids, expected))
        assert score == pytest.approx(expected_score, rel=1e-5)
    assert different <= len(texts) // 20


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_only_training_documents_are_trained_on(kind: str, tmp_path: Path) -> None:
    texts = sample_texts(60, 600)
    held_out = [("zqxj " * 100 if i % 10 == 1 else text) for i, text in enumerate(texts)]
    removed = [("" if i % 10 == 1 else text) for i, text in enumerate(texts)]
    models = []
    for name, rows in (("held_out", held_out), ("removed", removed)):
        out_dir = tmp_path / f"{name}_tokenizer"
        out_dir.mkdir()
        train_tokenizer(
            write_documents(tmp_path / name, rows), out_dir, TokenizerConfig(kind, vocab_size=700)
        )  # type: ignore[arg-type]
        models.append((out_dir / "tokenizer.json").read_bytes())
    assert models[0] == models[1]


def test_metrics_state_what_was_measured(trained: dict[str, Artifact]) -> None:
    for kind, artifact in trained.items():
        metrics = artifact.metrics
        assert metrics["kind"] == kind and metrics["vocab_size"] == 1000
        assert metrics["round_trip_frac"] == 1.0 and metrics["unknown_frac"] == 0.0
        assert set(metrics["bytes_per_token"]) == {"train", "validation"}
        assert (
            all(1 < x < 6 for x in metrics["bytes_per_token"].values()) and metrics["fertility"] > 1
        )
        for groups in (metrics["by_language"], metrics["by_source"]):
            assert sum(v["documents"] for v in groups.values()) == 100
            assert all(
                v["round_trip_frac"] == 1.0 and 0 < v["single_character_frac"] < 1
                for v in groups.values()
            )
        assert len(metrics["sample_tokens"]) == 30
        assert artifact.counters["skipped_bytes"] == 0


def test_bpe_reaches_four_thousand_tokens_on_the_sample(tmp_path: Path) -> None:
    made = train_tokenizer(
        write_documents(tmp_path / "d", sample_texts(200, 1500)),
        tmp_path,
        TokenizerConfig("bpe", 4096),
    )
    assert made.metrics["vocab_size"] == 4096


def test_bpe_reports_what_a_small_corpus_yields(tmp_path: Path) -> None:
    made = train_tokenizer(
        write_documents(tmp_path / "d", ["some words, few"] * 3),
        tmp_path,
        TokenizerConfig("bpe", 4096),
    )
    assert 258 < made.metrics["vocab_size"] < 300
    assert len(np.load(tmp_path / "bytes_per_token.npy")) == made.metrics["vocab_size"]


def test_unigram_names_the_largest_size_a_small_corpus_allows(tmp_path: Path) -> None:
    documents = write_documents(tmp_path / "d", sample_texts(10, 300))
    with pytest.raises(StageFailure, match=r"set tokenizer.vocab_size=\d+ or less") as failure:
        train_tokenizer(documents, tmp_path, TokenizerConfig("unigram", 20000))
    largest = int(str(failure.value).split("vocab_size=")[1].split()[0])
    made = train_tokenizer(documents, tmp_path, TokenizerConfig("unigram", largest))
    assert made.metrics["vocab_size"] == largest


def test_a_sample_is_a_pure_function_of_seed_and_ids(tmp_path: Path) -> None:
    texts = sample_texts(100, 1000)
    one, three = (
        write_documents(tmp_path / "one", texts),
        write_documents(tmp_path / "three", texts, num_files=3),
    )
    models = {}
    for name, source, seed in (("a", one, 0), ("b", three, 0), ("c", one, 1)):
        (tmp_path / name).mkdir()
        made = train_tokenizer(
            source, tmp_path / name, TokenizerConfig("bpe", 600, sample_bytes=20_000, seed=seed)
        )
        assert 20_000 <= made.counters["bytes"] < 20_000 + 4000
        models[name] = (tmp_path / name / "tokenizer.json").read_bytes()
    assert models["a"] == models["b"] != models["c"]


@settings(max_examples=60, deadline=None)
@given(
    st.text(max_size=40),
    st.sampled_from(["a", "日", "x ", "\u2581", "\t", "😀"]),
    st.integers(0, 5000),
)
def test_chunks_for_the_trainer_lose_nothing(text: str, fill: str, times: int) -> None:
    whole, count = text + fill * times + text, ChunkCount()
    without = {ord(c): "\0" for c in RESERVED + "😀"}
    chunks = list(split_chunks(whole, without, count))
    assert "".join(chunks) == "".join(c for c in whole if ord(c) not in without)
    assert all(0 < len(chunk.encode()) <= MAX_CHUNK_BYTES for chunk in chunks)
    assert count.used_bytes + count.uncovered_bytes == len(whole.encode())


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"vocab_size \(100\) of bpe must be from 258"):
        TokenizerConfig("bpe", 100)
    with pytest.raises(StageFailure, match="no text in split train"):
        train_tokenizer(write_documents(tmp_path, ["", "held out"]), tmp_path, TokenizerConfig())
    with pytest.raises(ArtifactMismatch, match=r"force=\[tokenizer\]"):
        load_tokenizer(tmp_path / "nowhere")
    assert SPECIAL_TOKENS == ("<|endoftext|>", "<|pad|>")


def test_a_byte_level_token_of_other_characters_stands_for_itself() -> None:
    vocab = {letter: id for id, letter in enumerate([*letter_bytes(), "a b", "→"])}
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    model.decoder = tokenizers.decoders.ByteLevel()
    pieces = token_bytes(model)
    assert pieces[256:] == [b"a b", "→".encode()]
    assert [model.decode([id]) for id in (256, 257)] == ["a b", "→"]
