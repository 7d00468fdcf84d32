"""Shards hold every document once, in a keyed order, in the same bytes for any number of
workers."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tasks.shards.stage
from llm_core.config import ConfigError
from llm_core.data.shards import open_shards
from tasks.runtime.artifact import Artifact
from tasks.runtime.parts import PartRunner, process_executor, scratch_dir, serial
from tasks.runtime.stage import StageFailure
from tasks.shards.config import ShardsConfig
from tasks.shards.encoding import kept_tokenizer
from tasks.shards.stage import plan_shards, token_dtype, write_shards
from tasks.tokenizer.config import TokenizerConfig
from tasks.tokenizer.encoder import TOKENIZER_FILE, Tokenizer, load_tokenizer
from tasks.tokenizer.stage import train_tokenizer
from tests.support.data.make_artifacts import empty_dir
from tests.support.data.sample_documents import sample_texts, stored, write_documents

TEXTS = [*sample_texts(58, 700), "", "<|endoftext|> stays text"]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return write_documents(tmp_path_factory.mktemp("documents"), TEXTS, num_files=3)


@pytest.fixture(scope="module")
def tokenizer(documents: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return train_tokenizer(
        documents, tmp_path_factory.mktemp("tokenizer"), TokenizerConfig("bpe", 500)
    )


def write(
    documents: Artifact, tokenizer: Artifact, out_dir: Path, config: ShardsConfig, run_parts=serial
) -> dict[str, bytes]:
    out_dir.mkdir(parents=True, exist_ok=True)
    write_shards(documents, tokenizer, out_dir, config, run_parts)
    return {path.name: path.read_bytes() for path in sorted(out_dir.iterdir())}


@pytest.mark.parametrize("max_shard_tokens", [64, 300, 1 << 26])
def test_every_document_is_read_back_once(
    documents: Artifact, tokenizer: Artifact, tmp_path: Path, max_shard_tokens: int
) -> None:
    made = write_shards(documents, tokenizer, tmp_path, ShardsConfig(max_shard_tokens))
    model, expected, num_tokens = load_tokenizer(tokenizer.path), stored(documents), 0
    for split in ("train", "validation"):
        shards = open_shards(tmp_path, split)
        shards.verify()
        assert all(len(shard.metadata["tokens_digest"]) == 32 for shard in shards.shards)
        assert shards.num_documents == made.metrics["splits"][split]["documents"]
        assert max(len(shard.tokens) for shard in shards.shards) <= max_shard_tokens
        for tokens, id, source, language, num_bytes in shards.documents():
            row = expected.pop(id)
            assert row["split"] == split and (source, language) == (row["source"], row["language"])
            assert model.decode(tokens) == row["text"] and num_bytes == len(row["text"].encode())
            assert tokens[-1] == model.eos_id and model.eos_id not in tokens[:-1]
            num_tokens += len(tokens)
        assert np.array_equal(
            shards.read(0, shards.num_tokens),
            np.concatenate([d.tokens for d in shards.documents()]),
        )
    assert not expected
    assert (
        num_tokens
        == made.counters["tokens"]
        == sum(s["tokens"] for s in made.metrics["splits"].values())
    )
    assert made.counters["read"] == made.counters["kept"] == made.counters["verified"] == len(TEXTS)


def test_a_document_is_written_as_often_as_it_repeats_and_copies_stand_apart(
    tokenizer: Artifact, tmp_path: Path
) -> None:
    repeated = write_documents(
        tmp_path / "documents", TEXTS, num_files=2, repeats=lambda i: 1 + i % 4
    )
    once = write_documents(tmp_path / "once", TEXTS, num_files=2)
    made = write_shards(repeated, tokenizer, empty_dir(tmp_path / "shards"), ShardsConfig())
    write_shards(once, tokenizer, empty_dir(tmp_path / "single"), ShardsConfig())
    written, expected = (
        [d.id for d in open_shards(tmp_path / "shards", "train").documents()],
        stored(repeated),
    )
    train = {id: row["repeats"] for id, row in expected.items() if row["split"] == "train"}
    assert Counter(written) == train
    assert made.counters["read"] == made.counters["kept"] == len(TEXTS)
    assert made.metrics["splits"]["train"]["documents"] == sum(train.values())
    # The first copies are in the order they have alone, and no more neighbours are alike than
    # chance gives.
    alone = [d.id for d in open_shards(tmp_path / "single", "train").documents()]
    assert [id for id in written if train[id] == 1] == [id for id in alone if train[id] == 1]
    assert sum(a == b for a, b in pairwise(written)) < 0.1 * len(written)


def test_bytes_do_not_depend_on_workers_or_files(
    documents: Artifact, tokenizer: Artifact, tmp_path: Path
) -> None:
    config = ShardsConfig(2000)
    alone = write(documents, tokenizer, tmp_path / "alone", config)
    two = write(
        documents,
        tokenizer,
        tmp_path / "two",
        config,
        PartRunner(make_executor=process_executor(2)),
    )
    regrouped = write_documents(tmp_path / "regrouped", TEXTS, num_files=1)
    assert alone == two == write(regrouped, tokenizer, tmp_path / "one", config)


def test_the_seed_orders_documents_and_nothing_else(
    documents: Artifact, tokenizer: Artifact, tmp_path: Path
) -> None:
    orders = []
    for seed in (0, 1):
        write(documents, tokenizer, tmp_path / str(seed), ShardsConfig(seed=seed))
        orders.append(
            [document.id for document in open_shards(tmp_path / str(seed), "train").documents()]
        )
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != sorted(orders[0])


def test_a_killed_write_goes_on_where_it_stopped(
    documents: Artifact, tokenizer: Artifact, tmp_path: Path, monkeypatch
) -> None:
    script = """
import os, signal, sys
from pathlib import Path
import tasks.shards.stage
from tasks.runtime.artifact import Artifact
write, calls = tasks.shards.stage._write, []
def dies_in_the_second_part(table, path):
    calls.append(path)
    write(table, path)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
tasks.shards.stage._write = dies_in_the_second_part
documents, tokenizer, out_dir = (Path(arg) for arg in sys.argv[1:])
parents = Artifact(documents, "documents"), Artifact(tokenizer, "tokenizer")
tasks.shards.stage.write_shards(*parents, out_dir, tasks.shards.stage.ShardsConfig(2000))
"""
    out_dir = tmp_path / "killed"
    out_dir.mkdir()
    command = [sys.executable, "-c", script, str(documents.path), str(tokenizer.path), str(out_dir)]
    assert subprocess.run(command, check=False, timeout=120).returncode == -signal.SIGKILL
    assert list(out_dir.iterdir()) == []
    assert len(list(scratch_dir(out_dir).glob("*/part.json"))) == 1

    again: list[str] = []
    encode = tasks.shards.stage.encode_part
    monkeypatch.setattr(
        tasks.shards.stage,
        "encode_part",
        lambda part, *rest: again.append(part.name) or encode(part, *rest),
    )
    resumed = write(documents, tokenizer, out_dir, ShardsConfig(2000))
    assert len(again) == 2
    assert resumed == write(documents, tokenizer, tmp_path / "whole", ShardsConfig(2000))


def test_shards_carry_their_lineage(
    documents: Artifact, tokenizer: Artifact, tmp_path: Path
) -> None:
    made = write_shards(documents, tokenizer, tmp_path, ShardsConfig(seed=7))
    with pa.ipc.open_file(tmp_path / "train-00000.arrow") as reader:
        batch, metadata = reader.read_all(), reader.schema.metadata
        assert reader.num_record_batches == 1
    assert (
        batch.schema.field("tokens").type == pa.large_list(pa.uint16())
        and made.metrics["dtype"] == "uint16"
    )
    assert metadata[b"tokenizer_digest"].decode() == tokenizer.file_digest("tokenizer.json")
    assert (metadata[b"seed"], metadata[b"split"], metadata[b"eos_id"]) == (b"7", b"train", b"0")
    assert int(metadata[b"num_tokens"]) == made.metrics["splits"]["train"]["tokens"]


def test_the_width_follows_the_largest_id() -> None:
    assert token_dtype(65536) == np.uint16
    assert token_dtype(65537) == np.uint32


def test_a_tokenizer_that_changes_text_is_refused(
    documents: Artifact, tokenizer: Artifact, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(
        tasks.shards.stage.Tokenizer, "decode_bytes", lambda self, ids: b"something else"
    )
    with pytest.raises(
        StageFailure, match=r"does not give document [0-9a-f]{32} back; .*force=\[tokenizer\]"
    ):
        write_shards(documents, tokenizer, tmp_path, ShardsConfig())


def test_no_training_documents_is_a_failure_with_counts(
    tokenizer: Artifact, tmp_path: Path
) -> None:
    held_out = write_documents(tmp_path / "d", ["a", "b"], validation_every=1)
    table = pq.read_table(held_out.path / "part-00000.parquet")
    column = pa.array(["validation"] * 2)
    pq.write_table(
        table.set_column(table.schema.get_field_index("split"), "split", column),
        held_out.path / "part-00000.parquet",
    )
    with pytest.raises(
        StageFailure, match=r"split train has no documents \(2 read, 2 in validation\)"
    ):
        write_shards(held_out, tokenizer, tmp_path, ShardsConfig())
    with pytest.raises(ConfigError, match="at least 16"):
        ShardsConfig(3)


def test_an_empty_validation_split_is_an_empty_shard(tokenizer: Artifact, tmp_path: Path) -> None:
    write_shards(
        write_documents(tmp_path / "d", ["one document"]), tokenizer, tmp_path, ShardsConfig()
    )
    empty = open_shards(tmp_path, "validation")
    assert (empty.num_tokens, empty.num_documents, list(empty.documents())) == (0, 0, [])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 20))
def test_plans_cover_every_token_within_the_limit(lengths: list[int], limit: int) -> None:
    shards = plan_shards(np.array(lengths, np.int64), limit)
    pieces = [piece for shard in shards for piece in shard]
    assert all(sum(p.stop - p.start for p in shard) <= limit for shard in shards)
    assert all(shard for shard in shards) or not lengths
    covered = [
        [(p.start, p.stop, p.continues) for p in pieces if p.document == i]
        for i in range(len(lengths))
    ]
    for length, parts in zip(lengths, covered, strict=True):
        assert [p[0] for p in parts] == [0, *(p[1] for p in parts[:-1])] and parts[-1][1] == length
        assert [p[2] for p in parts] == [True] * (len(parts) - 1) + [False]
        assert len(parts) == 1 or length > limit
    assert [p.document for p in pieces] == sorted(p.document for p in pieces)


def test_small_parts_of_a_thread_load_their_tokenizer_once(
    tokenizer: Artifact, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loaded: list[Path] = []

    def load(folder: Path) -> Tokenizer:
        loaded.append(folder)
        return load_tokenizer(folder)

    monkeypatch.setattr("tasks.shards.encoding.load_tokenizer", load)
    other = shutil.copytree(tokenizer.path, tmp_path / "other")
    first = kept_tokenizer(other)
    assert kept_tokenizer(other) is first and loaded == [other]
    rewritten = (other / TOKENIZER_FILE).read_bytes()
    (other / TOKENIZER_FILE).unlink()
    (other / TOKENIZER_FILE).write_bytes(rewritten)
    assert kept_tokenizer(other) is not first
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(kept_tokenizer, other).result() is not kept_tokenizer(other)
    assert len(loaded) == 3
