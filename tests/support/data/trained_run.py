"""A small run up to a model: documents, tokenizer and shards made by their stages, weights that are
random."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from llm_core.huggingface.export import export_model
from llm_core.model.config import ModelConfig
from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer
from tasks.corpus.documentset import ID, read_table, write_table
from tasks.runtime.artifact import Artifact
from tasks.shards.config import ShardsConfig
from tasks.shards.stage import write_shards
from tasks.tokenizer.config import TokenizerConfig
from tasks.tokenizer.stage import train_tokenizer

SAMPLE = Path(__file__).parents[3] / "data/sample/sample.jsonl"


@dataclass(frozen=True)
class Run:
    documents: Artifact
    tokenizer: Artifact
    shards: Artifact
    train: Artifact
    texts: dict[bytes, str]
    """Validation texts by id."""


def make_run(
    folder: Path,
    num_documents: int = 36,
    weight_scale: float = 4.0,
    shard_seed: int = 0,
    reverse: bool = False,
) -> Run:
    rows = [
        json.loads(line) for line in SAMPLE.read_text("utf-8").splitlines()[: num_documents * 3]
    ]
    rows = [row for row in rows if row["text"].strip()][:num_documents]
    table = [
        {
            "id": n.to_bytes(2, "big") * 8,
            "text": row["text"].replace("\r", "")[:1200],
            "source": row["source"],
            "language": row["lang"],
            "split": "validation" if n % 3 == 0 else "train",
            "repeats": 1,
        }
        for n, row in enumerate(rows)
    ]
    for name in ("documents", "tokenizer", "shards", "train"):
        (folder / name).mkdir(parents=True)
    labels = [(name, pa.string()) for name in ("source", "language", "split")]
    schema = pa.schema([("id", ID), ("text", pa.large_string()), *labels, ("repeats", pa.int32())])
    write_table(
        pa.Table.from_pylist(table[::-1] if reverse else table, schema),
        folder / "documents/part-00000.parquet",
    )
    documents = Artifact(folder / "documents", "documents")
    tokenizer = train_tokenizer(documents, folder / "tokenizer", TokenizerConfig(vocab_size=400))
    shards = write_shards(
        documents,
        tokenizer,
        folder / "shards",
        ShardsConfig(max_shard_tokens=3000, seed=shard_seed),
    )
    vocab_size = len(np.load(tokenizer.file("bytes_per_token.npy")))
    save_model(folder / "train", vocab_size, weight_scale)
    texts = {row["id"]: row["text"] for row in table if row["split"] == "validation"}
    return Run(documents, tokenizer, shards, Artifact(folder / "train", "train"), texts)


def save_model(folder: Path, vocab_size: int, weight_scale: float) -> None:
    shape = {
        "dim": 32,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "ffn_dim": 64,
        "max_seq_len": 96,
    }
    config = ModelConfig(vocab_size=vocab_size, **shape, tied_embeddings=False)
    model = Transformer(config)
    init_weights(model, seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(weight_scale)
    export_model(config, model.state_dict(), folder / "model", eos_id=0)


def publish(run: Run, folder: Path, weight_scale: float = 4.0) -> Path:
    """A model with the tokenizer beside it, as others publish one."""
    save_model(folder, len(np.load(run.tokenizer.file("bytes_per_token.npy"))), weight_scale)
    for file in run.tokenizer.path.glob("*.json"):
        if file.name != "artifact.json":
            shutil.copyfile(file, folder / "model" / file.name)
    return folder / "model"


def words_of(run: Run, split: str, skip: int, count: int, number: int = -1) -> str:
    """Words from inside a document of a split."""
    (file,) = run.documents.files("part-*.parquet")
    rows = [row for row in read_table(file).to_pylist() if row["split"] == split]
    return " ".join(rows[number]["text"].split()[skip : skip + count])
