"""Files of one repository are neighbours in the shards, whatever files of documents they are in."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa

from llm_core.data.shards import open_shards
from tasks.corpus.documentset import ID, read_table, write_table
from tasks.corpus.groups import GROUP_COLUMN
from tasks.runtime.artifact import Artifact
from tasks.shards.config import ShardsConfig
from tasks.shards.stage import write_shards
from tasks.tokenizer.config import TokenizerConfig
from tasks.tokenizer.stage import train_tokenizer
from tests.support.data.make_artifacts import empty_dir
from tests.support.data.sample_documents import sample_texts, write_documents

NUM_GROUPS = 5


def test_documents_of_a_group_are_neighbours_over_all_files(tmp_path: Path) -> None:
    plain = write_documents(tmp_path / "plain", sample_texts(60, 300), num_files=4)
    grouped, group_of = empty_dir(tmp_path / "grouped"), {}
    for file in plain.files("part-*.parquet"):
        table = read_table(file)
        names = [
            None if (number := (id[0] ^ id[1]) % (NUM_GROUPS + 1)) == 0 else bytes([number] * 16)
            for id in table["id"].to_pylist()
        ]
        group_of |= dict(zip(table["id"].to_pylist(), names, strict=True))
        write_table(table.append_column(GROUP_COLUMN, pa.array(names, ID)), grouped / file.name)
    tokenizer = train_tokenizer(plain, empty_dir(tmp_path / "t"), TokenizerConfig("bpe", 400))
    orders = []
    for name, documents in (("a", plain), ("b", Artifact(grouped, "documents"))):
        out = empty_dir(tmp_path / name)
        write_shards(documents, tokenizer, out, ShardsConfig())
        orders.append([document.id for document in open_shards(out, "train").documents()])
    alone, together = orders
    assert sorted(alone) == sorted(together)
    runs = [group for group, _ in itertools.groupby(map(group_of.get, together)) if group]
    assert len(runs) == len(set(runs)) == NUM_GROUPS
    # The others stand as they would without groups.
    others = [[id for id in order if group_of[id] is None] for order in orders]
    assert others[0] == others[1] and len(others[0]) > 3
