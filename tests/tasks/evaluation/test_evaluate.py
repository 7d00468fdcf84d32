import dataclasses
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llm_core.config import ConfigError
from llm_core.data.shards import Document, open_shards
from llm_core.infer.choice.sampling import GREEDY
from tasks.corpus.documentset import write_table
from tasks.corpus.tally import MAX_LABELS, OTHER
from tasks.corpus.turns import TURNS, TURNS_COLUMN, join_turns
from tasks.evaluation.config import EvaluateConfig, EvaluateStageConfig, GenerateConfig
from tasks.evaluation.generate import generate_text
from tasks.evaluation.held_out import Scored, check_round_trip, summarise
from tasks.evaluation.stage import evaluate_model
from tasks.runtime.artifact import Artifact
from tasks.runtime.stage import StageFailure
from tasks.tokenizer.encoder import load_tokenizer
from tests.support.data.trained_run import Run, make_run, save_model

CONFIG = EvaluateConfig(bootstrap_samples=200, sample_prompts=("Hello",), num_document_prompts=1)
SHORT = GenerateConfig(max_new_tokens=4)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("run"))


def evaluate(run: Run, out_dir: Path, config: EvaluateConfig = CONFIG) -> Artifact:
    out_dir.mkdir()
    both = EvaluateStageConfig(config, SHORT)
    return evaluate_model(run.documents, run.tokenizer, run.shards, run.train, out_dir, both)


@pytest.fixture(scope="module")
def evaluated(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return evaluate(run, tmp_path_factory.mktemp("evaluated") / "out")


def eval_json(artifact: Artifact) -> dict[str, Any]:
    return json.loads(artifact.file("eval.json").read_text())


def test_uniform_model_has_log2_vocabulary_times_tokens_over_bytes(
    run: Run, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(run.tokenizer.path)
    save_model(tmp_path / "train", tokenizer.vocab_size, weight_scale=0.0)
    uniform = dataclasses.replace(run, train=Artifact(tmp_path / "train", "train"))
    metrics = evaluate(uniform, tmp_path / "out").metrics
    tokens = sum(len(tokenizer.encode(text)) for text in run.texts.values())
    num_bytes = sum(len(text.encode()) for text in run.texts.values())
    assert metrics["counts"]["tokens"] == tokens
    assert metrics["val_bpb"]["num_bytes"] == num_bytes
    assert metrics["val_bpb"]["value"] == round(
        math.log2(tokenizer.vocab_size) * tokens / num_bytes, 5
    )
    assert metrics["eos_bits_per_document"] == round(math.log2(tokenizer.vocab_size), 5)


def test_tokens_of_a_chat_are_those_of_its_template_too(run: Run, tmp_path: Path) -> None:
    text, turns = join_turns([("user", "Who?"), ("assistant", "I.")])
    rows = {"id": [b"c" * 16, b"p" * 16], "text": [text, text], TURNS_COLUMN: [turns, None]}
    types = [("id", pa.binary(16)), ("text", pa.large_string()), (TURNS_COLUMN, TURNS)]
    write_table(pa.table(rows, pa.schema(types)), tmp_path / "part-00000.parquet")
    documents, tokenizer = Artifact(tmp_path, "documents"), load_tokenizer(run.tokenizer.path)
    rendered = "user\nWho?\nassistant\nI.\n"
    ids, size = tokenizer.encode(rendered), len(rendered)
    chat = Document(ids, b"c" * 16, None, None, size)
    check_round_trip(documents, tokenizer, [chat])
    for other in (chat._replace(num_bytes=size + 1), chat._replace(id=b"p" * 16)):
        with pytest.raises(StageFailure, match="do not give its text back"):
            check_round_trip(documents, tokenizer, [other])


def test_documents_and_groups_add_up_to_the_headline(run: Run, evaluated: Artifact) -> None:
    metrics, rows = evaluated.metrics, eval_json(evaluated)["documents"]
    assert [bytes.fromhex(row["id"]) for row in rows] == sorted(run.texts)
    assert {row["id"]: row["bytes"] for row in rows} == {
        id.hex(): len(text.encode()) for id, text in run.texts.items()
    }
    bits, num_bytes = sum(row["bits"] for row in rows), sum(row["bytes"] for row in rows)
    assert metrics["val_bpb"]["value"] == pytest.approx(bits / num_bytes, abs=2e-5)
    assert metrics["val_bpb"]["low"] < metrics["val_bpb"]["value"] < metrics["val_bpb"]["high"]
    for groups in (metrics["by_source"], metrics["by_language"]):
        assert sum(g["documents"] for g in groups.values()) == len(run.texts)
        assert sum(g["value"] * g["bytes"] for g in groups.values()) == pytest.approx(
            bits, rel=1e-4
        )
        assert all(
            g["small"] == (g["documents"] < CONFIG.small_group_documents) for g in groups.values()
        )
        assert all((g["low"] is None) == (g["documents"] == 1) for g in groups.values())


def test_baselines_are_scored_on_the_tokens_and_bytes_of_the_model(
    run: Run, evaluated: Artifact
) -> None:
    metrics = evaluated.metrics
    train, vocab = (
        open_shards(run.shards.path, "train"),
        load_tokenizer(run.tokenizer.path).vocab_size,
    )
    counts = np.bincount(train.read(0, train.num_tokens), minlength=vocab)
    codec = load_tokenizer(run.tokenizer.path)
    tokens = np.concatenate([codec.encode(text) for text in run.texts.values()])
    expected = (
        -np.log2((counts[tokens] + 1) / (counts.sum() + vocab)).sum()
        / metrics["val_bpb"]["num_bytes"]
    )
    assert metrics["unigram_bpb"] == pytest.approx(expected, abs=1e-5)
    assert metrics["baselines"]["bigram"]["bytes"] == metrics["val_bpb"]["bytes"]
    gain = metrics["gain_over_best_baseline"]
    assert gain["value"] == pytest.approx(
        min(metrics["unigram_bpb"], metrics["bigram_bpb"]) - metrics["val_bpb"]["value"], abs=2e-5
    )


def test_order_of_documents_and_shards_does_not_change_a_byte(
    run: Run, evaluated: Artifact, tmp_path: Path
) -> None:
    other = make_run(tmp_path / "other", shard_seed=7, reverse=True)
    assert (
        other.tokenizer.file("tokenizer.json").read_bytes()
        == run.tokenizer.file("tokenizer.json").read_bytes()
    )
    again = evaluate(other, tmp_path / "b")
    for name in ("eval.json", "samples.json"):
        assert again.file(name).read_bytes() == evaluated.file(name).read_bytes()


def test_batch_size_changes_no_figure_beyond_rounding(
    run: Run, evaluated: Artifact, tmp_path: Path
) -> None:
    other = evaluate(run, tmp_path / "b", dataclasses.replace(CONFIG, batch_tokens=300))
    for mine, theirs in zip(
        eval_json(evaluated)["documents"], eval_json(other)["documents"], strict=True
    ):
        assert mine["id"] == theirs["id"] and mine["bits"] == pytest.approx(
            theirs["bits"], rel=1e-5
        )
    assert evaluated.metrics["val_bpb"]["value"] == pytest.approx(
        other.metrics["val_bpb"]["value"], abs=1e-5
    )


def test_batch_size_changes_no_digit_in_float64(run: Run, tmp_path: Path) -> None:
    exact = dataclasses.replace(CONFIG, dtype="float64")
    made = evaluate(run, tmp_path / "a", exact)
    other = evaluate(run, tmp_path / "b", dataclasses.replace(exact, batch_tokens=300))
    assert made.metrics["policy"]["dtype"] == "float64"
    assert eval_json(made) == eval_json(other)


def test_window_is_the_length_of_training(run: Run, tmp_path: Path) -> None:
    record = {"files": {}, "config": {"train": {"seq_len": 48}}}
    trained = dataclasses.replace(run.train, record=run.train.record | record)
    policy = evaluate(dataclasses.replace(run, train=trained), tmp_path / "out").metrics["policy"]
    assert (policy["window_tokens"], policy["context_tokens"]) == (48, 24)
    with pytest.raises(ConfigError, match="max_seq_len"):
        evaluate(run, tmp_path / "long", dataclasses.replace(CONFIG, window_tokens=97))


def test_perplexities_are_those_of_the_bits_and_the_policy_is_recorded(
    run: Run, evaluated: Artifact, tmp_path: Path
) -> None:
    metrics = evaluated.metrics
    bits = sum(row["bits"] for row in eval_json(evaluated)["documents"])
    texts = run.texts.values()
    sizes = {
        "token": metrics["counts"]["tokens"],
        "word": sum(len(re.split(r"\s+", text)) for text in texts),
        "byte": sum(len(text.encode()) for text in texts),
    }
    for unit, size in sizes.items():
        found = metrics["perplexity"][unit]
        assert found["value"] == pytest.approx(2 ** (bits / size), rel=1e-3)
        assert found["low"] < found["value"] < found["high"]
    assert metrics["bits_per_token"] == pytest.approx(bits / sizes["token"], rel=1e-4)
    assert set(metrics["by_source"]) == {
        name for name, group in metrics["by_source"].items() if group["perplexity"]["byte"]["value"]
    }
    assert metrics["policy"]["windows"] == "overlapping"
    disjoint = evaluate(run, tmp_path / "out", dataclasses.replace(CONFIG, windows="disjoint"))
    assert disjoint.metrics["policy"]["windows"] == "disjoint"
    assert disjoint.metrics["policy"]["context_tokens"] == 0
    assert disjoint.metrics["val_bpb"]["value"] != metrics["val_bpb"]["value"]


def test_shorter_numbers_are_recorded_with_their_difference_to_float32(
    run: Run, evaluated: Artifact, tmp_path: Path
) -> None:
    assert evaluated.metrics["policy"]["dtype"] == "float32"
    half = evaluate(run, tmp_path / "out", dataclasses.replace(CONFIG, dtype="bfloat16")).metrics
    difference = half["policy"]["bits_per_byte_more_than_float32"]
    assert half["policy"]["dtypes_compared_on_documents"] == len(run.texts)
    assert 0 < abs(difference) < 0.2
    # All documents are compared here; their end-of-texts are in one of both alone.
    assert half["val_bpb"]["value"] - evaluated.metrics["val_bpb"]["value"] == pytest.approx(
        difference, abs=0.01
    )


def test_whole_documents_that_do_not_fit_are_an_error_with_a_way_out(
    run: Run, tmp_path: Path
) -> None:
    whole = dataclasses.replace(CONFIG, windows="whole")
    with pytest.raises(ConfigError, match="set max_document_tokens=96"):
        evaluate(run, tmp_path / "a", whole)
    short = dataclasses.replace(whole, max_document_tokens=96)
    assert evaluate(run, tmp_path / "b", short).metrics["policy"]["window_tokens"] == 96


def test_limits_take_the_smallest_ids_and_first_tokens_and_count_their_bytes(
    run: Run, tmp_path: Path
) -> None:
    config = dataclasses.replace(CONFIG, max_documents=3, max_document_tokens=10)
    metrics = evaluate(run, tmp_path / "out", config).metrics
    codec, first = load_tokenizer(run.tokenizer.path), sorted(run.texts)[:3]
    assert metrics["counts"]["over_max_documents"] == len(run.texts) - 3
    assert metrics["val_bpb"]["num_bytes"] == sum(
        len(codec.decode_bytes(codec.encode(run.texts[id])[:10])) for id in first
    )


@pytest.mark.parametrize("change", [lambda text: text + "!", str.swapcase])
def test_tokens_that_do_not_give_the_text_back_are_refused(
    run: Run, tmp_path: Path, change: Callable[[str], str]
) -> None:
    table = pq.read_table(run.documents.file("part-00000.parquet"))
    texts = [change(text) for text in table["text"].to_pylist()]
    (tmp_path / "documents").mkdir()
    changed = table.set_column(
        table.schema.get_field_index("text"), "text", pa.array(texts, pa.large_string())
    )
    write_table(changed, tmp_path / "documents/part-00000.parquet")
    with pytest.raises(StageFailure, match="do not give its text back"):
        evaluate(
            dataclasses.replace(run, documents=Artifact(tmp_path / "documents", "documents")),
            tmp_path / "out",
        )


def test_samples_are_reproducible_and_scrubbed(run: Run, tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, sample_prompts=("Write to jane.doe@example.com now",))
    evaluate(run, tmp_path / "a", config)
    samples = json.loads((tmp_path / "a/samples.json").read_text())
    assert len(samples) == 2
    assert "jane.doe" not in samples[0]["prompt"] and samples[0]["prompt"].startswith("Write to ")
    evaluate(run, tmp_path / "b", config)
    assert (tmp_path / "a/samples.json").read_bytes() == (tmp_path / "b/samples.json").read_bytes()


def test_generated_text_is_told_in_pieces_that_make_the_whole(run: Run) -> None:
    pieces: list[str] = []
    answer = generate_text(
        run.train.path / "model", run.tokenizer.path, "The ", GREEDY, 12, pieces.append
    )
    assert answer.text and "".join(pieces) == answer.text
    assert 0 < answer.num_tokens <= 12 and not answer.reached_max_seq_len


@pytest.mark.parametrize(
    "values",
    [
        {"max_documents": 0},
        {"context_tokens": 9, "window_tokens": 9},
        {"bootstrap_samples": 3},
    ],
)
def test_impossible_settings_are_config_errors(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        EvaluateConfig(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values",
    [{"temperature": -0.5}, {"top_p": 1.5}, {"repetition_penalty": 0.0}, {"min_new_tokens": -1}],
)
def test_impossible_settings_of_generation_are_config_errors(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        GenerateConfig(**values)  # type: ignore[arg-type]


def test_groups_are_bounded_and_hold_no_address() -> None:
    """A column of the input may name its author as the source, or a source for each document."""
    sources = ["jo@example.com", "x" * 200, *(f"site {i}" for i in range(2 * MAX_LABELS))]
    documents = [
        Document(np.array([5, 0]), bytes(16), source, "en", 10 + i)
        for i, source in enumerate(sources)
    ]
    bits = np.arange(1.0, len(sources) + 1)
    sizes = np.array([d.num_bytes for d in documents])
    scored = Scored(
        documents,
        np.ones(len(sources), np.int64),
        np.ones(len(sources), np.int64),
        sizes,
        dict.fromkeys(("model", "unigram", "bigram"), bits),
        bits,
    )
    by_source = summarise(scored, CONFIG)["by_source"]
    assert len(by_source) == MAX_LABELS + 1 and not [
        name for name in by_source if "@" in name or len(name) > 100
    ]
    assert sum(group["documents"] for group in by_source.values()) == len(sources)
    assert by_source[OTHER]["documents"] == len(sources) - MAX_LABELS
