"""Shards are read without copies, and a missing or damaged one is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from llm_core.data.shards import ShardError, open_shards
from llm_core.training.train import REFUSED, main
from tests.support.engine.shard_files import counting_stream, write_split
from tests.support.engine.small_runs import run_config, trainer_arguments


def test_tokens_are_views_of_the_memory_map(tmp_path: Path) -> None:
    before = pa.total_allocated_bytes()
    shards = counting_stream(tmp_path, 50_000, shard_tokens=20_000)
    document = next(shards.documents())
    assert pa.total_allocated_bytes() - before < 20_000
    assert (
        np.shares_memory(document.tokens, shards.shards[0].tokens)
        and not document.tokens.flags.writeable
    )


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 0), (0, 1), (96, 98), (97, 194), (0, 500), (499, 500), (500, 500)]
)
def test_reads_cross_shard_borders(tmp_path: Path, start: int, stop: int) -> None:
    assert counting_stream(tmp_path, 500).read(start, stop).tolist() == list(range(start, stop))


def test_reads_outside_the_stream_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IndexError, match="stream of 500"):
        counting_stream(tmp_path, 500).read(400, 501)


@pytest.mark.parametrize("gone", [0, 2, 5])
def test_a_missing_shard_is_named(tmp_path: Path, gone: int) -> None:
    counting_stream(tmp_path, 500)
    name = f"train-{gone:05d}.arrow"
    (tmp_path / name).unlink()
    with pytest.raises(ShardError, match=f"{name} is missing"):
        open_shards(tmp_path, "train")


@pytest.mark.parametrize("keep", [0, 4, 100, -60, -8])
def test_a_cut_shard_is_named(tmp_path: Path, keep: int) -> None:
    counting_stream(tmp_path, 500)
    file = tmp_path / "train-00003.arrow"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ShardError, match=r"train-00003\.arrow cannot be read"):
        open_shards(tmp_path, "train")


SMALL_TOKENS = [5, 6, 7, 0, 8, 9, 0]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    write_split(folder, [[SMALL_TOKENS[:4], SMALL_TOKENS[4:]]])
    return folder / "train-00000.arrow"


def check_damage(file: Path, damage: list[tuple[int, int]]) -> None:
    """With these bits of these bytes turned over, the shard is refused by name, or every token is
    where it was."""
    whole = file.read_bytes()
    content = bytearray(whole)
    for place, bits in damage:
        content[place % len(content)] ^= bits
    file.write_bytes(content)
    try:
        shards = open_shards(file.parent, "train")
        shards.verify()
        assert shards.read(0, shards.num_tokens).tolist() == SMALL_TOKENS
        starts, ends = shards.document_bounds()
        assert (
            not starts[:1].any()
            and np.array_equal(starts[1:], ends[:-1])
            and np.all(starts <= ends)
        )
        documents = [token for document in shards.documents() for token in document.tokens]
        assert documents == SMALL_TOKENS[: ends[-1] if len(ends) else 0]
        assert len(shards.document_sources()[1]) == shards.num_documents
    except ShardError as error:
        assert file.name in str(error)
    finally:
        file.write_bytes(whole)


def test_a_damaged_byte_anywhere_is_named_or_changes_no_token(small: Path) -> None:
    # Every third byte: tokens have two, offsets eight.
    for place in range(0, small.stat().st_size, 3):
        check_damage(small, [(place, 1 + place % 255)])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(1, 255)), min_size=2, max_size=8))
def test_damaged_bytes_are_named_or_change_no_token(
    small: Path, damage: list[tuple[int, int]]
) -> None:
    check_damage(small, damage)


@pytest.mark.parametrize("offset", [-1, 1 << 40])
def test_an_offset_out_of_the_file_is_named(small: Path, offset: int) -> None:
    whole = small.read_bytes()
    begin = whole.index(np.array([0, 4, 7], np.int64).tobytes())
    small.write_bytes(whole[: begin + 8] + np.int64(offset).tobytes() + whole[begin + 16 :])
    with pytest.raises(ShardError, match=r"train-00000\.arrow cannot be read"):
        open_shards(small.parent, "train")
    small.write_bytes(whole)


def test_a_shard_of_another_run_is_named(tmp_path: Path) -> None:
    documents = [[[1, 0]], [[2, 0]], [[3, 0]]]
    write_split(tmp_path, documents)
    (tmp_path / "other").mkdir()
    write_split(tmp_path / "other", documents, seed=1)
    (tmp_path / "other" / "train-00001.arrow").rename(tmp_path / "train-00001.arrow")
    with pytest.raises(ShardError, match=r"train-00001\.arrow has seed 1, the others have 0"):
        open_shards(tmp_path, "train")


def test_changed_tokens_are_found_by_their_digest(tmp_path: Path) -> None:
    shards = counting_stream(tmp_path, 500)
    shards.verify()
    file = tmp_path / "train-00003.arrow"
    content = bytearray(file.read_bytes())
    place = content.index(shards.shards[3].tokens[20:30].tobytes())
    content[place] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(
        ShardError, match=r"train-00003\.arrow does not hold the tokens that were written"
    ):
        open_shards(tmp_path, "train").verify()


def test_an_unknown_split_is_named(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match="no shards of split 'test'"):
        open_shards(tmp_path, "test")


def test_documents_carry_their_facts(tmp_path: Path) -> None:
    write_split(tmp_path, [[[5, 6, 0], [0]], [[7, 0]]])
    shards = open_shards(tmp_path, "train")
    assert [
        (d.tokens.tolist(), int.from_bytes(d.id, "big"), d.source, d.num_bytes)
        for d in shards.documents()
    ] == [
        ([5, 6, 0], 0, "web", 3),
        ([0], 1, "web", 1),
        ([7, 0], 2, "web", 2),
    ]
    assert (shards.num_tokens, shards.num_documents, shards.eos_id) == (6, 3, 0)


def test_ids_that_the_model_has_not_are_refused_with_the_shard_and_the_way_out(
    tmp_path: Path,
) -> None:
    write_split(tmp_path, [[[1, 2, 0]], [[1, 7, 0]], [[9, 0]]])
    shards = open_shards(tmp_path, "train")
    shards.check_ids(10)
    with pytest.raises(
        ConfigError,
        match=r"train-00002.arrow has id 9, the model has ids 0 to 8; set model.vocab_size to 10",
    ):
        shards.check_ids(9)
    with pytest.raises(ConfigError, match=r"train-00001.arrow has id 7, the model has ids 0 to 6"):
        shards.check_ids(7)


def test_a_noted_largest_id_stands_for_the_tokens(tmp_path: Path) -> None:
    write_split(tmp_path, [[[1, 2, 0]]], metadata={"largest_id": "50"})
    assert open_shards(tmp_path, "train").shards[0].largest_id == 50
    for text in ("", "-1", "many"):
        write_split(tmp_path, [[[1, 2, 0]]], metadata={"largest_id": text})
        assert open_shards(tmp_path, "train").shards[0].largest_id == 2


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_run_on_ids_beyond_its_vocabulary_ends_in_one_line(
    split: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = run_config(tmp_path)
    # One more than there are, in the middle of a document.
    write_split(config.shards, [[[*range(1, 30), config.model.vocab_size, 3, 0]] * 12], split=split)
    with pytest.raises(SystemExit) as ended:
        main(trainer_arguments(tmp_path, config))
    assert ended.value.code == REFUSED
    [line] = capsys.readouterr().err.splitlines()
    assert (
        f"{split}-00000.arrow has id {config.model.vocab_size}, the model has ids 0 to"
        f" {config.model.vocab_size - 1}" in line
    )
