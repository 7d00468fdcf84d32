"""Other engines' files hold the tokens of our shards, and come back as they were."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.console import in_and_out
from llm_core.config import ConfigError
from llm_core.data.shards import open_shards
from tasks.runtime.artifact import Artifact
from tasks.runtime.stage import StageFailure
from tasks.shards.config import ShardsConfig
from tasks.shards.exchange import export_shards, foreign_files, has_split, read_datasets
from tasks.shards.foreign import ExchangeError
from tasks.shards.megatron import read_megatron
from tasks.shards.stage import write_shards
from tasks.tokenizer.config import TokenizerConfig
from tasks.tokenizer.encoder import load_tokenizer
from tasks.tokenizer.stage import train_tokenizer
from tests.support.data.foreign_shards import write_megatron
from tests.support.data.sample_documents import sample_texts, write_documents
from tests.support.engine.shard_files import write_split

FORMS = ("megatron", "datasets")


READERS = {"megatron": read_megatron, "datasets": read_datasets}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, Artifact, Artifact]:
    """(documents, tokenizer, shards); shards so small that documents are cut."""
    folder = tmp_path_factory.mktemp("made")
    documents = write_documents(folder / "documents", [*sample_texts(40, 900), ""])
    for name in ("tokenizer", "shards"):
        (folder / name).mkdir()
    tokenizer = train_tokenizer(documents, folder / "tokenizer", TokenizerConfig(vocab_size=500))
    return (
        documents,
        tokenizer,
        write_shards(documents, tokenizer, folder / "shards", ShardsConfig(250)),
    )


@pytest.mark.parametrize("form", FORMS)
def test_every_document_is_exported_with_its_tokens(
    form: str, made: tuple[Artifact, ...], tmp_path: Path
) -> None:
    counts = export_shards(made[2], form, tmp_path / "out")
    for split in ("train", "validation"):
        ours = list(open_shards(made[2].path, split).documents())
        theirs = list(READERS[form](tmp_path / "out", split))
        assert counts[split] == len(ours) == len(theirs)
        for our, their in zip(ours, theirs, strict=True):
            assert np.array_equal(our.tokens, their.tokens)
            assert form == "megatron" or (our.id, our.source, our.language) == (
                their.id,
                their.source,
                their.language,
            )


@pytest.mark.parametrize("form", FORMS)
def test_what_was_exported_is_imported_as_it_was(
    form: str, made: tuple[Artifact, ...], tmp_path: Path
) -> None:
    documents, tokenizer, shards = made
    export_shards(shards, form, tmp_path / "out")
    (tmp_path / "back").mkdir()
    back = write_shards(
        documents, tokenizer, tmp_path / "back", ShardsConfig(250, form=form, path=tmp_path / "out")
    )  # type: ignore[arg-type]
    # The document of no text is end-of-text alone.
    eos = load_tokenizer(tokenizer.path).eos_id
    assert (
        back.counters["read"] == shards.counters["read"]
        and back.counters["tokens"] == shards.counters["tokens"] - 1
    )
    for split in ("train", "validation"):
        ours, theirs = (list(open_shards(a.path, split).documents()) for a in (shards, back))
        ours = [d for d in ours if d.tokens.tolist() != [eos]]
        assert sum(d.num_bytes for d in ours) == sum(d.num_bytes for d in theirs)
        if form == "datasets":
            assert [(d.tokens.tolist(), d.id, d.source) for d in ours] == [
                (d.tokens.tolist(), d.id, d.source) for d in theirs
            ]
        assert sorted(d.tokens.tolist() for d in ours) == sorted(d.tokens.tolist() for d in theirs)


def megatron_by_definition(folder: Path, split: str) -> list[np.ndarray]:
    """Read field by field, as the layout is documented."""
    index = (folder / f"{split}.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00" and struct.unpack_from("<Q", index, 9) == (1,)
    dtype = {4: np.int32, 8: np.uint16}[index[17]]
    sequences, borders = struct.unpack_from("<QQ", index, 18)
    lengths = np.frombuffer(index, np.int32, sequences, 34)
    pointers = np.frombuffer(index, np.int64, sequences, 34 + lengths.nbytes)
    ends = np.frombuffer(index, np.int64, borders, 34 + lengths.nbytes + pointers.nbytes)
    assert len(
        index
    ) == 34 + lengths.nbytes + pointers.nbytes + ends.nbytes and ends.tolist() == list(
        range(sequences + 1)
    )
    data = (folder / f"{split}.bin").read_bytes()
    return [
        np.frombuffer(data, dtype, n, p)
        for n, p in zip(lengths.tolist(), pointers.tolist(), strict=True)
    ]


def test_the_megatron_layout_is_the_documented_one(
    made: tuple[Artifact, ...], tmp_path: Path
) -> None:
    export_shards(made[2], "megatron", tmp_path / "out")
    for split in ("train", "validation"):
        ours = open_shards(made[2].path, split).documents()
        assert [x.tolist() for x in megatron_by_definition(tmp_path / "out", split)] == [
            d.tokens.tolist() for d in ours
        ]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(1, 60000), max_size=20), min_size=1, max_size=20))
def test_any_documents_survive_both_forms(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[list[int]]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    for split in ("train", "validation"):
        write_split(folder, [[[*document, 0] for document in drawn]], split)
    for form in FORMS:
        export_shards(Artifact(folder, "shards"), form, folder / form)
        assert [d.tokens.tolist() for d in READERS[form](folder / form, "train")] == [
            [*document, 0] for document in drawn
        ]


def test_hugging_face_datasets_loads_the_folder(made: tuple[Artifact, ...], tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    export_shards(made[2], "datasets", tmp_path / "out")
    loaded = datasets.load_from_disk(str(tmp_path / "out"))
    for split in ("train", "validation"):
        ours = list(open_shards(made[2].path, split).documents())
        assert [row["input_ids"] for row in loaded[split]] == [d.tokens.tolist() for d in ours]
        assert loaded[split]["id"][:] == [d.id.hex() for d in ours]
    other = datasets.DatasetDict(
        {"train": datasets.Dataset.from_dict({"input_ids": [[5, 6], [7]]})}
    )
    other.save_to_disk(str(tmp_path / "theirs"))
    assert [d.tokens.tolist() for d in read_datasets(tmp_path / "theirs", "train")] == [[5, 6], [7]]


def test_megatron_files_are_found_by_the_names_of_its_own_script(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    names = ("b", "a", "valid_x", "test_x")
    for number, name in enumerate(names):
        write_megatron(tmp_path / name, [[number]])
        folder.mkdir(exist_ok=True)
        for ending in ("idx", "bin"):
            made = tmp_path / name / f"train.{ending}"
            made.rename(folder / f"{name}_text_document.{ending}")

    def tokens(place: Path, split: str) -> list[list[int]]:
        return [d.tokens.tolist() for d in read_megatron(place, split)]

    assert (tokens(folder, "train"), tokens(folder, "validation")) == ([[1], [0]], [[2]])
    assert sorted(foreign_files("megatron", folder)) == sorted(
        f"{name}_text_document.{ending}" for name in names[:3] for ending in ("bin", "idx")
    )
    alone = folder / "b_text_document"
    assert tokens(alone, "train") == [[0]] and not has_split("megatron", alone, "validation")
    assert set(foreign_files("megatron", alone)) == {"b_text_document.bin", "b_text_document.idx"}
    with pytest.raises(ConfigError, match="PREFIX_text_document.idx"):
        foreign_files("megatron", tmp_path)


def test_a_dataset_that_was_saved_without_splits_is_the_train_split(
    made: tuple[Artifact, ...], tmp_path: Path
) -> None:
    export_shards(made[2], "datasets", tmp_path / "out")
    alone = tmp_path / "out" / "train"
    ours = [d.tokens.tolist() for d in open_shards(made[2].path, "train").documents()]
    assert [d.tokens.tolist() for d in read_datasets(alone, "train")] == ours
    assert not has_split("datasets", alone, "validation")
    assert "state.json" in foreign_files("datasets", alone)


def test_documents_without_an_end_or_a_validation_split_get_one(
    made: tuple[Artifact, ...], tmp_path: Path
) -> None:
    documents, tokenizer, _ = made
    eos = load_tokenizer(tokenizer.path).eos_id
    write_megatron(tmp_path / "in", [[5, 6, 7], [8, eos], [], *([i, 9] for i in range(10, 60))])
    (tmp_path / "out").mkdir()
    back = write_shards(
        documents, tokenizer, tmp_path / "out", ShardsConfig(form="megatron", path=tmp_path / "in")
    )
    splits = [
        [d.tokens.tolist() for d in open_shards(back.path, split).documents()]
        for split in ("train", "validation")
    ]
    assert sorted(splits[0] + splits[1]) == sorted(
        [[5, 6, 7, eos], [8, eos], *([i, 9, eos] for i in range(10, 60))]
    )
    assert 0 < len(splits[1]) < 5


@pytest.mark.parametrize("form", ["megatron", "datasets"])
def test_empty_documents_are_dropped_and_counted_and_become_no_tokens(
    form: str, made: tuple[Artifact, ...], tmp_path: Path
) -> None:
    documents, tokenizer, _ = made
    eos = load_tokenizer(tokenizer.path).eos_id
    full = [[i, 9, eos] for i in range(10, 60)]
    mixed = [[], *full[:20], [eos], [], *full[20:], []]
    (tmp_path / "out").mkdir()
    if form == "megatron":
        # As Megatron writes them: a sequence of no tokens for an empty document; `write_megatron`
        # gives it none at all.
        write_megatron(tmp_path / "in", mixed, empty_sequences=True)
        write_megatron(tmp_path / "without", mixed)
        assert [d.tokens.tolist() for d in read_megatron(tmp_path / "without", "train")] == mixed
    else:
        table = pa.table({"input_ids": pa.array(mixed, pa.large_list(pa.uint32()))})
        (tmp_path / "in" / "train").mkdir(parents=True)
        with pa.ipc.new_stream(
            str(tmp_path / "in" / "train" / "data.arrow"), table.schema
        ) as writer:
            writer.write_table(table)
        (tmp_path / "in" / "train" / "state.json").write_text(
            json.dumps({"_data_files": [{"filename": "data.arrow"}]})
        )
    back = write_shards(
        documents, tokenizer, tmp_path / "out", ShardsConfig(form=form, path=tmp_path / "in")
    )  # type: ignore[arg-type]
    splits = [
        [d.tokens.tolist() for d in open_shards(back.path, split).documents()]
        for split in ("train", "validation")
    ]
    assert sorted(splits[0] + splits[1]) == full
    assert back.counters["tokens"] == 3 * len(full)
    assert (back.counters["read"], back.counters["kept"]) == (54, 50) and back.counters[
        "dropped"
    ] == {"EMPTY": 4}
    assert in_and_out(back) == ("50 documents (4 without tokens dropped)", "150 tokens")


def test_an_import_of_nothing_but_empty_documents_says_so(
    made: tuple[Artifact, ...], tmp_path: Path
) -> None:
    write_megatron(tmp_path / "in", [[5], [], []], empty_sequences=True)
    whole = (tmp_path / "in" / "train.idx").read_bytes()
    zeros = np.zeros(6, "<i4").tobytes()
    (tmp_path / "in" / "train.idx").write_bytes(whole[:34] + zeros + whole[34 + len(zeros) :])
    (tmp_path / "out").mkdir()
    with pytest.raises(
        StageFailure, match=r"split train has no documents \(3 read, 3 of them without tokens"
    ):
        write_shards(
            made[0], made[1], tmp_path / "out", ShardsConfig(form="megatron", path=tmp_path / "in")
        )


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([[5, 501]], "document 0 of split train has id 501, but the tokenizer has only 500 ids"),
        ([[5], [6, -1]], "document 1 of split train has id -1"),
        ([[5, 0, 6]], r"document 0 of split train has end-of-text \(0\) before its end"),
    ],
)
def test_tokens_of_another_tokenizer_are_refused(
    documents: list[list[int]], message: str, made: tuple[Artifact, ...], tmp_path: Path
) -> None:
    write_megatron(tmp_path / "in", documents)
    (tmp_path / "out").mkdir()
    with pytest.raises(StageFailure, match=message):
        write_shards(
            made[0], made[1], tmp_path / "out", ShardsConfig(form="megatron", path=tmp_path / "in")
        )


def test_a_damaged_dataset_is_named(made: tuple[Artifact, ...], tmp_path: Path) -> None:
    export_shards(made[2], "datasets", tmp_path / "out")
    (tmp_path / "out" / "train" / "data-00000-of-00001.arrow").write_bytes(b"short")
    with pytest.raises(ExchangeError, match=r"data-00000-of-00001\.arrow cannot be read"):
        list(read_datasets(tmp_path / "out", "train"))
    table = pa.table({"text": ["a"]})
    with pa.ipc.new_stream(
        str(tmp_path / "out" / "train" / "data-00000-of-00001.arrow"), table.schema
    ) as writer:
        writer.write_table(table)
    with pytest.raises(ExchangeError, match="has no column input_ids; it has text"):
        list(read_datasets(tmp_path / "out", "train"))
    (tmp_path / "out" / "train" / "state.json").write_text(json.dumps({}))
    with pytest.raises(ExchangeError, match=r"state\.json is not the state"):
        list(read_datasets(tmp_path / "out", "train"))


def test_errors_say_what_to_do(made: tuple[Artifact, ...], tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"megatrom is not a form of shards; did you mean megatron\?"
    ):
        export_shards(made[2], "megatrom", tmp_path / "out")
    with pytest.raises(ConfigError, match="is not empty; name a new folder"):
        export_shards(made[2], "megatron", made[2].path)
    with pytest.raises(ConfigError, match=r"has no train\.idx or PREFIX_text"):
        ShardsConfig(form="megatron", path=tmp_path).input_files()
    with pytest.raises(
        ConfigError, match=r"shards\.path \(null\) must name a folder of megatron data"
    ):
        ShardsConfig(form="megatron").input_files()
    with pytest.raises(ConfigError, match="is for form=megatron or datasets"):
        ShardsConfig(path=tmp_path)
