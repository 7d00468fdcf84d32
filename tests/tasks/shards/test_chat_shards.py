"""Chats are written by the tokenizer's template, with a mask of what the assistant says that
survives both exchange forms."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llm_core.config import ConfigError
from llm_core.data.batch import IGNORED
from llm_core.data.config import DataConfig
from llm_core.data.loader import Loader
from llm_core.data.shards import open_shards
from tasks.corpus.documentset import read_table, write_table
from tasks.corpus.turns import TURNS, TURNS_COLUMN, join_turns
from tasks.runtime.artifact import Artifact
from tasks.runtime.stage import StageFailure
from tasks.shards.config import ShardsConfig
from tasks.shards.exchange import export_shards
from tasks.shards.foreign import ExchangeError
from tasks.shards.megatron import read_megatron
from tasks.shards.stage import write_shards
from tasks.tokenizer.config import TokenizerConfig
from tasks.tokenizer.encoder import load_tokenizer
from tasks.tokenizer.stage import train_tokenizer
from tests.support.chat_templates import CHATML, INSTRUCTIONS
from tests.support.data.make_artifacts import empty_dir
from tests.support.data.sample_documents import sample_texts, write_documents

CONTROLS = ("<|im_start|>", "<|im_end|>")
PLAIN = sample_texts(20, 300)
ANSWERS = [f"{number} times <|im_end|> é 👩‍🚀" for number in range(20)]


def talk(answer: str) -> list[tuple[str, str]]:
    return [("user", f"Say {answer}"), ("assistant", answer), ("user", "?"), ("assistant", "No.")]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """A file of plain texts, and one where every second document is a chat."""
    folder = tmp_path_factory.mktemp("documents")
    made = write_documents(folder, [*PLAIN, *ANSWERS], num_files=2)
    file = folder / "part-00001.parquet"
    table, texts, turns = read_table(file), [], []
    for number, text in enumerate(table["text"].to_pylist()):
        whole, spans = join_turns(talk(text)) if number % 2 else (text, None)
        texts.append(whole)
        turns.append(spans)
    table = table.set_column(1, "text", pa.array(texts, pa.large_string()))
    write_table(table.append_column(TURNS_COLUMN, pa.array(turns, TURNS)), file)
    return dataclasses.replace(made)


def tokenizer_of(documents: Artifact, folder: Path, template: str | None) -> Artifact:
    config = TokenizerConfig("bpe", 500, special_tokens=CONTROLS, chat_template=template)
    return train_tokenizer(documents, folder, config)


@pytest.fixture(scope="module")
def made(
    documents: Artifact, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Artifact, Artifact]:
    """(tokenizer, shards)."""
    tokenizer = tokenizer_of(documents, tmp_path_factory.mktemp("tokenizer"), CHATML)
    out_dir = tmp_path_factory.mktemp("shards")
    return tokenizer, write_shards(documents, tokenizer, out_dir, ShardsConfig(400))


def learnt(folder: Path) -> dict[bytes, tuple[list[int], list[bool]]]:
    """{id of a document: (its tokens, whether each is learnt)} of both splits."""
    found = {}
    for split in ("train", "validation"):
        shards = open_shards(folder, split)
        shards.verify()
        for document, bounds in zip(
            shards.documents(), zip(*shards.document_bounds(), strict=True), strict=True
        ):
            mask = shards.read_loss_mask(*bounds).tolist()
            found[document.id] = document.tokens.tolist(), mask
    return found


def rows(documents: Artifact) -> list[dict[str, Any]]:
    return [r for file in documents.files("*.parquet") for r in pq.read_table(file).to_pylist()]


def test_the_mask_marks_what_the_assistant_says_and_all_of_a_plain_text(
    documents: Artifact, made: tuple[Artifact, Artifact]
) -> None:
    tokenizer, shards = made
    model, found = load_tokenizer(tokenizer.path), learnt(shards.path)
    start, end = (model._model.token_to_id(control) for control in CONTROLS)
    assert shards.counters["read"] == shards.counters["verified"] == len(found) == 40
    for row in rows(documents):
        tokens, mask = found[row["id"]]
        assert tokens[-1] == model.eos_id and len(mask) == len(tokens)
        if row.get(TURNS_COLUMN) is None:
            assert all(mask) and model.decode(tokens) == row["text"]
            continue
        borders = np.flatnonzero(np.diff(mask, prepend=False, append=False))
        answers = [tokens[a:b] for a, b in zip(borders[::2], borders[1::2], strict=True)]
        spans = [turn for turn in row[TURNS_COLUMN] if turn["role"] == "assistant"]
        texts = [row["text"].encode()[turn["start"] : turn["end"]] for turn in spans]
        assert [model.decode_bytes(answer) for answer in answers] == texts
        # Each ends with the token that ends its turn, and the message's own spelling is text.
        assert all(answer[-1] == end and end not in answer[:-1] for answer in answers)
        assert tokens.count(start) == tokens.count(end) == 4


def test_shards_say_which_tokens_end_a_turn(made: tuple[Artifact, Artifact]) -> None:
    tokenizer, shards = made
    end = load_tokenizer(tokenizer.path)._model.token_to_id(CONTROLS[1])
    assert open_shards(shards.path, "train").turn_end_ids == (end,)


def test_documents_are_cut_over_shards_with_their_mask(
    documents: Artifact, made: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    write_shards(documents, made[0], empty_dir(tmp_path / "small"), ShardsConfig(16))
    assert learnt(tmp_path / "small") == learnt(made[1].path)


@pytest.mark.parametrize("form", ["megatron", "datasets"])
def test_masks_survive_an_exchange(
    form: str, documents: Artifact, made: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    export_shards(made[1], form, tmp_path / "out")
    config = ShardsConfig(400, form=form, path=tmp_path / "out")  # type: ignore[arg-type]
    write_shards(documents, made[0], empty_dir(tmp_path / "back"), config)
    ours, theirs = (sorted(learnt(f).values()) for f in (made[1].path, tmp_path / "back"))
    assert ours == theirs


def test_a_mask_of_other_tokens_is_refused(made: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    export_shards(made[1], "megatron", tmp_path / "out")
    for ending in ("bin", "idx"):
        mask = tmp_path / "out" / f"train_loss_mask.{ending}"
        mask.write_bytes((tmp_path / "out" / f"validation_loss_mask.{ending}").read_bytes())
    with pytest.raises(ExchangeError, match=r"train_loss_mask\.idx does not fit train\.idx"):
        list(read_megatron(tmp_path / "out", "train"))


def test_masks_of_another_engine_are_in_the_key(
    made: tuple[Artifact, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_shards(made[1], "megatron", tmp_path / "out")
    monkeypatch.chdir(tmp_path / "out")
    files = ShardsConfig(form="megatron", path=Path(".")).input_files()
    assert set(files) == {path.name for path in Path(".").iterdir()}


def test_datasets_reads_the_mask_beside_the_ids(
    made: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    datasets = pytest.importorskip("datasets")
    export_shards(made[1], "datasets", tmp_path / "out")
    loaded = datasets.load_from_disk(str(tmp_path / "out"))
    found = learnt(made[1].path)
    for row in [*loaded["train"], *loaded["validation"]]:
        expected = found[bytes.fromhex(row["id"])]
        assert (row["input_ids"], [bit == 1 for bit in row["loss_mask"]]) == expected


def test_chats_without_a_template_say_how_to_give_one(documents: Artifact, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(documents, empty_dir(tmp_path / "tokenizer"), None)
    with pytest.raises(StageFailure, match=r"tokenizer\.chat_template"):
        write_shards(documents, tokenizer, empty_dir(tmp_path / "out"), ShardsConfig())


def test_chats_that_the_template_refuses_are_counted(documents: Artifact, tmp_path: Path) -> None:
    template = INSTRUCTIONS.replace("[INST]", "{{ 1 // (message['content'] | length - 1) }}")
    tokenizer = tokenizer_of(documents, empty_dir(tmp_path / "tokenizer"), template)
    made = write_shards(documents, tokenizer, empty_dir(tmp_path / "out"), ShardsConfig())
    assert made.counters["dropped"] == {"EMPTY": 0, "REFUSED_BY_TEMPLATE": 10}
    assert made.counters["kept"] == 30 and "zero" in made.metrics["first_refusal"]


def test_shards_of_plain_texts_are_what_they_were(documents: Artifact, tmp_path: Path) -> None:
    plain = write_documents(empty_dir(tmp_path / "plain"), PLAIN)
    tokenizers = [
        tokenizer_of(documents, empty_dir(tmp_path / name), template)
        for name, template in (("with", CHATML), ("without", None))
    ]
    outs = [tmp_path / f"shards{number}" for number in range(2)]
    for tokenizer, out in zip(tokenizers, outs, strict=True):
        write_shards(plain, tokenizer, empty_dir(out), ShardsConfig())
    for name in ("train-00000.arrow", "validation-00000.arrow"):
        first, second = ((out / name).read_bytes() for out in outs)
        assert first == second and b"loss_mask" not in first and b"turn_end" not in first


@pytest.fixture(scope="module")
def paired(
    documents: Artifact, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Artifact, Artifact]:
    """(tokenizer, shards) of the same documents, of which chats are pairs of answers."""
    folder = tmp_path_factory.mktemp("pairs")
    made = write_documents(folder, [*PLAIN, *ANSWERS], num_files=2)
    file = folder / "part-00001.parquet"
    table, texts, turns = read_table(file), [], []
    for number, text in enumerate(table["text"].to_pylist()):
        roles = [("user", "?"), ("assistant", "What?"), ("user", f"Say {text}")]
        answers = [("chosen", text), ("rejected", "No.")]
        whole, spans = join_turns([*roles, *answers]) if number % 2 else (text, None)
        texts.append(whole)
        turns.append(spans)
    table = table.set_column(1, "text", pa.array(texts, pa.large_string()))
    write_table(table.append_column(TURNS_COLUMN, pa.array(turns, TURNS)), file)
    tokenizer = tokenizer_of(made, tmp_path_factory.mktemp("tokenizer"), CHATML)
    out_dir = tmp_path_factory.mktemp("shards")
    return tokenizer, write_shards(made, tokenizer, out_dir, ShardsConfig(400))


def test_a_row_of_a_pair_holds_the_prompt_with_each_answer(
    paired: tuple[Artifact, Artifact],
) -> None:
    tokenizer, made = paired
    model, shards = load_tokenizer(tokenizer.path), open_shards(made.path, "train")
    data = DataConfig(packing="pairs", mask_documents=True, loss_on="assistant")
    loader = Loader(shards, 300, 1, 0, data=data)
    assert shards.has_pairs and loader.num_samples > 3
    batch = loader.rows(np.arange(loader.num_samples))
    assert batch.documents_BT is not None
    for targets, documents in zip(batch.targets_BT, batch.documents_BT, strict=True):
        learnt = [targets[(documents == each) & (targets != IGNORED)] for each in (0, 1)]
        said = [model.decode(one.numpy()).strip() for one in learnt]
        assert said[0].removesuffix("<|im_end|>") in ANSWERS, said
        assert said[1].startswith("No.")
        assert {int(one[-1]) for one in learnt} == {model.id_of("<|im_end|>")}
    for ids, documents in zip(batch.ids_BT, batch.documents_BT, strict=True):
        prompts = [model.decode(ids[documents == each].numpy()) for each in (0, 1)]
        shown = [one.split("assistant\n")[1] for one in prompts]
        assert shown[0] == shown[1]
        assert prompts[0].count("Say ") == prompts[1].count("Say ") == 1


def test_fine_tuning_on_chats_learns_the_chosen_answer_alone(
    paired: tuple[Artifact, Artifact],
) -> None:
    tokenizer, made = paired
    model, shards = load_tokenizer(tokenizer.path), open_shards(made.path, "train")
    places = zip(*shards.document_bounds(), strict=True)
    rejected = set(shards.rejected_starts().tolist())
    for start, stop in places:
        if not rejected & set(range(start, stop)):
            continue
        learnt = shards.read(start, stop)[shards.read_loss_mask(start, stop)]
        assert "No." not in model.decode(learnt)
    with pytest.raises(ConfigError, match="would learn rejected answers"):
        Loader(shards, 32, 1, 0)


def test_pairs_that_do_not_fit_are_left_out_and_counted(
    paired: tuple[Artifact, Artifact],
) -> None:
    shards = open_shards(paired[1].path, "train")
    data = DataConfig(packing="pairs", mask_documents=True, loss_on="assistant")
    starts, stops = shards.document_bounds()
    first = np.searchsorted(starts, shards.rejected_starts(), "right") - 1
    lengths = np.sort((stops - starts)[first])
    limit = int(lengths[len(lengths) // 2])
    loader = Loader(shards, limit, 1, 0, data=data)
    kept = int(np.count_nonzero(lengths <= limit))
    assert loader.num_samples == kept < len(lengths)
    assert loader.shares().cut_documents_frac == (len(lengths) - kept) / shards.num_documents
    with pytest.raises(ConfigError, match=r"seq_len \(8\) holds none of the"):
        Loader(shards, 8, 1, 0, data=data)


def test_shards_without_pairs_are_refused_for_them(made: tuple[Artifact, Artifact]) -> None:
    data = DataConfig(packing="pairs", mask_documents=True, loss_on="assistant")
    with pytest.raises(ConfigError, match="needs pairs of answers"):
        Loader(open_shards(made[1].path, "train"), 300, 1, 0, data=data)
