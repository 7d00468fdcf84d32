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
from tasks.shards.exchange import ExchangeError, export_shards, read_datasets, read_megatron
from tasks.shards.stage import write_shards
from tasks.tokenizer.config import TokenizerConfig
from tasks.tokenizer.encoder import load_tokenizer
from tasks.tokenizer.stage import train_tokenizer
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


def write_megatron(
    folder: Path,
    documents: list[list[int]],
    dtype: str = "<i4",
    code: int = 4,
    empty_sequences: bool = False,
) -> None:
    """Each document is two sequences, as other programs may cut them; an empty one is none, or two
    without tokens."""
    folder.mkdir()
    sequences = [
        piece
        for document in documents
        if document or empty_sequences
        for piece in (document[:1], document[1:])
    ]
    lengths = np.array([len(s) for s in sequences], "<i4")
    pointers = (np.cumsum(lengths) - lengths).astype("<i8") * np.dtype(dtype).itemsize
    borders = np.cumsum(
        [0] + [2 * (bool(document) or empty_sequences) for document in documents]
    ).astype("<i8")
    (folder / "train.bin").write_bytes(
        np.concatenate([np.array(s, dtype) for s in sequences]).tobytes()
    )
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(lengths), len(borders))
    (folder / "train.idx").write_bytes(
        head + lengths.tobytes() + pointers.tobytes() + borders.tobytes()
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


@pytest.mark.parametrize("keep", [0, 20, 40, -4])
def test_damaged_files_are_named(keep: int, tmp_path: Path) -> None:
    write_megatron(tmp_path / "in", [[5, 6], [7, 8]])
    whole = (tmp_path / "in" / "train.idx").read_bytes()
    (tmp_path / "in" / "train.idx").write_bytes(whole[:keep])
    with pytest.raises(ExchangeError, match=r"train\.idx is"):
        list(read_megatron(tmp_path / "in", "train"))
    (tmp_path / "in" / "train.idx").write_bytes(whole)
    (tmp_path / "in" / "train.bin").write_bytes(b"\0\0")
    with pytest.raises(ExchangeError, match=r"train\.bin does not hold what train\.idx says"):
        list(read_megatron(tmp_path / "in", "train"))


def test_an_arrow_file_whose_column_has_no_name_in_utf_8_is_refused(tmp_path: Path) -> None:
    table = pa.table({"column": [1]})
    (tmp_path / "train").mkdir()
    with pa.ipc.new_stream(tmp_path / "train" / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    file = tmp_path / "train" / "a.arrow"
    file.write_bytes(file.read_bytes().replace(b"column", b"colum\xc9"))
    (tmp_path / "train" / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}]}')
    with pytest.raises(ExchangeError, match="a.arrow cannot be read .*utf-8"):
        list(read_datasets(tmp_path, "train"))


def test_a_state_that_names_a_file_with_a_lone_surrogate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    state = '{"_data_files": [{"filename": "\\ud800.arrow"}]}'
    (tmp_path / "train" / "state.json").write_text(state)
    with pytest.raises(ExchangeError, match="cannot be read .*surrogates not allowed"):
        list(read_datasets(tmp_path, "train"))


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
    with pytest.raises(ConfigError, match=r"has no train\.idx and train\.bin"):
        ShardsConfig(form="megatron", path=tmp_path).input_files()
    with pytest.raises(
        ConfigError, match=r"shards\.path \(null\) must name a folder of megatron data"
    ):
        ShardsConfig(form="megatron").input_files()
    with pytest.raises(ConfigError, match="is for form=megatron or datasets"):
        ShardsConfig(path=tmp_path)


def write_dataset(folder: Path, table: pa.Table, name: str = "data.arrow") -> Path:
    """A split `train` as `load_from_disk` reads it; its data file."""
    (folder / "train").mkdir(parents=True)
    file = folder / "train" / "data.arrow"
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    (folder / "train" / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    return file


FOREIGN = pa.table(
    {
        "input_ids": pa.array([[5, 6], [7, 8, 9]], pa.large_list(pa.int32())),
        "source": ["first", "second"],
    }
)


@pytest.mark.parametrize(
    ("offsets", "changed"),
    [
        (struct.pack("<3q", 0, 2, 5), struct.pack("<3q", 0, 2, 2**40)),
        (struct.pack("<3q", 0, 2, 5), struct.pack("<3q", -4000, 2, 5)),
        (struct.pack("<3q", 0, 2, 5), struct.pack("<3q", 0, 9, 5)),
        (struct.pack("<3i", 0, 5, 11), struct.pack("<3i", 0, 5, 2**31 - 1)),
        (struct.pack("<3i", 0, 5, 11), struct.pack("<3i", -(2**30), 5, 11)),
    ],
)
def test_offsets_that_leave_their_buffer_are_one_line(
    offsets: bytes, changed: bytes, tmp_path: Path
) -> None:
    file = write_dataset(tmp_path, FOREIGN)
    assert [d.tokens.tolist() for d in read_datasets(tmp_path, "train")] == [[5, 6], [7, 8, 9]]
    assert file.read_bytes().count(offsets) == 1
    file.write_bytes(file.read_bytes().replace(offsets, changed))
    with pytest.raises(
        ExchangeError, match=r"data\.arrow cannot be read \(In column . ?: Invalid: .*[Oo]ffset"
    ):
        list(read_datasets(tmp_path, "train"))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2]),
        pa.array(["a", "b"]),
        pa.array([["a"], ["b"]]),
        pa.array([[1], [2]], pa.list_(pa.int32(), 1)),
    ],
)
def test_tokens_that_are_not_lists_of_numbers_are_one_line(
    column: pa.Array, tmp_path: Path
) -> None:
    write_dataset(tmp_path, pa.table({"input_ids": column}))
    with pytest.raises(ExchangeError, match="must have one column input_ids of lists of whole"):
        list(read_datasets(tmp_path, "train"))


@pytest.mark.parametrize(
    "column", [pa.array([1, 2]), pa.array([b"x", b"y"]), pa.array([None, None])]
)
def test_facts_of_documents_that_are_not_texts_are_passed_over(
    column: pa.Array, tmp_path: Path
) -> None:
    write_dataset(tmp_path, FOREIGN.set_column(1, "source", column).append_column("id", column))
    assert [(d.id, d.source) for d in read_datasets(tmp_path, "train")] == [(None, None)] * 2


@pytest.mark.parametrize(
    "name",
    [
        "../../other/train/data.arrow",
        "/etc/passwd",
        "..",
        "",
        "sub/data.arrow",
        "data.bin",
        3,
        None,
    ],
)
def test_a_state_names_arrow_files_of_its_own_folder(name: str, tmp_path: Path) -> None:
    write_dataset(tmp_path / "other", FOREIGN)
    write_dataset(tmp_path / "saved", FOREIGN, name)
    with pytest.raises(
        ExchangeError, match=r"state\.json names .*, which is not an \.arrow file of its folder"
    ):
        list(read_datasets(tmp_path / "saved", "train"))


@pytest.mark.parametrize(
    "state", ["[" * 100_000, "[]", "{}", '{"_data_files": 3}', '{"_data_files": [3]}']
)
def test_a_state_that_cannot_be_read_is_one_line(state: str, tmp_path: Path) -> None:
    write_dataset(tmp_path, FOREIGN)
    (tmp_path / "train" / "state.json").write_text(state)
    with pytest.raises(ExchangeError, match="is not the state of a saved dataset"):
        list(read_datasets(tmp_path, "train"))


@pytest.mark.parametrize(
    ("sequences", "borders", "lengths", "pointers"),
    [
        (1, 2, [4], [2**63 - 4]),
        (1, 2, [2**31 - 1], [2**63 - 2**31]),
        (2, 3, [1, 4], [0, 2**62]),
        (2**62, 2, [4], [0]),
        (2**61, 2**61, [4], [0]),
        (1, 2**62, [4], [0]),
        (2**64 - 1, 2**64 - 1, [4], [0]),
    ],
)
def test_numbers_of_an_index_that_pass_their_type_are_one_line(
    sequences: int, borders: int, lengths: list[int], pointers: list[int], tmp_path: Path
) -> None:
    (tmp_path / "train.bin").write_bytes(bytes(16))
    places = list(range(len(lengths) + 1))
    body = struct.pack(
        f"<{len(lengths)}i{len(lengths)}q{len(places)}q", *lengths, *pointers, *places
    )
    (tmp_path / "train.idx").write_bytes(
        struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, sequences, borders) + body
    )
    with pytest.raises(ExchangeError, match="is cut off|does not hold what"):
        list(read_megatron(tmp_path, "train"))
