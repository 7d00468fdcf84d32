"""Lists what is fuzzed: for each target sound files, and the code that reads them with the errors
by which it may refuse them."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from llm_core.config import ConfigError
from tests.fuzz.reader_targets import reader_targets
from tests.fuzz.target import Target

PRELOADED = (
    *("llm_core.checkpoint.folders", "llm_core.checkpoint.index", "llm_core.huggingface.export"),
    *(
        "tasks.runtime.artifact",
        "tasks.shards.exchange",
        "tasks.fasttext.files",
        "tasks.readers.pages",
    ),
    *(
        "duckdb",
        "tasks.ingest.documentrows",
        "tasks.ingest.pagetext",
        "mwparserfromhell",
        "pylatexenc.latex2text",
        "pypdfium2",
        "tasks.readers",
        "tasks.readers.recordlimits",
        "tasks.tokenizer.files",
    ),
)
"""The modules that targets import when they read."""


def _fasttext(data: bytes, folder: Path) -> None:
    from tasks.fasttext.files import load_fasttext

    (folder / "model.bin").write_bytes(data)
    try:
        load_fasttext(folder / "model.bin").f.predict("abc de fgh\n", 1, 0.0, "strict")
    except RuntimeError as error:  # fastText's own word for NaN
        if "NaN" not in str(error):
            raise


def _fasttext_models(folder: Path) -> list[bytes]:
    from tests.support.data.fasttext_models import write_model

    return [
        write_model(
            folder / f"seed{loss}.bin", loss=loss, buckets=50, quantised=loss > 2
        ).read_bytes()
        for loss in (1, 2, 3, 4)
    ]


def _tokenizer(data: bytes, folder: Path) -> None:
    from tasks.tokenizer.files import read_tokenizer

    (folder / "tokenizer.json").write_bytes(data)
    read_tokenizer(folder / "tokenizer.json").encode("some words, größere 数据 12345")


def _tokenizers() -> list[bytes]:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    seeds = []
    for model in (
        models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]),
        models.WordPiece({"[UNK]": 0, "a": 1}),
    ):
        made = Tokenizer(model)
        made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
        made.pre_tokenizer = pre_tokenizers.ByteLevel()
        seeds.append(made.to_str().encode())
    return seeds


def _megatron(data: bytes, folder: Path) -> None:
    from tasks.shards.megatron import read_megatron

    (folder / "train.idx").write_bytes(data)
    (folder / "train.bin").write_bytes(bytes(64))
    for document in read_megatron(folder, "train"):
        document.tokens.sum()


def _megatron_index() -> bytes:
    lengths, pointers, borders = (
        np.array([3, 4, 5], "<i4"),
        np.array([0, 12, 28], "<i8"),
        np.array([0, 1, 3], "<i8"),
    )
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 4, len(lengths), len(borders))
    return head + lengths.tobytes() + pointers.tobytes() + borders.tobytes()


def _dataset(data: bytes, folder: Path) -> None:
    from tasks.shards.exchange import read_datasets

    (folder / "train").mkdir(exist_ok=True)
    (folder / "train" / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}]}')
    (folder / "train" / "a.arrow").write_bytes(data)
    for document in read_datasets(folder, "train"):
        document.tokens.sum()


def _dataset_rows() -> bytes:
    import pyarrow as pa

    table, out = (
        pa.table(
            {"input_ids": [[1, 2], [], [3]], "id": ["ab", "cd", None], "source": ["x", "y", "z"]}
        ),
        io.BytesIO(),
    )
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def _dataset_state(data: bytes, folder: Path) -> None:
    from tasks.shards.exchange import read_datasets

    (folder / "train").mkdir(exist_ok=True)
    (folder / "train" / "state.json").write_bytes(data)
    (folder / "train" / "b.arrow").write_bytes(_dataset_rows())
    list(read_datasets(folder, "train"))


def _model_config(data: bytes, folder: Path) -> None:
    from llm_core.huggingface.export import read_config

    (folder / "config.json").write_bytes(data)
    read_config(folder)


MODEL_CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 16,
    "head_dim": 8,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
}


def _weights(data: bytes, folder: Path) -> None:
    from llm_core.huggingface.export import load_model

    (folder / "config.json").write_text(json.dumps(MODEL_CONFIG))
    (folder / "model.safetensors").write_bytes(data)
    load_model(folder)


def _weights_file(folder: Path) -> bytes:
    from safetensors.torch import save

    from llm_core.huggingface.export import read_config
    from llm_core.huggingface.names import to_hugging_face
    from llm_core.model.transformer import Transformer

    (folder / "config.json").write_text(json.dumps(MODEL_CONFIG))
    config = read_config(folder)
    weights = to_hugging_face(config, Transformer(config).state_dict())
    return save({name: weight.contiguous() for name, weight in weights.items()})


def _checkpoint_index(data: bytes, folder: Path) -> None:
    from llm_core.checkpoint.index import INDEX_FILE, read_index

    (folder / INDEX_FILE).write_bytes(data)
    read_index(folder)


def _checkpoint_indexes() -> list[bytes]:
    from llm_core.checkpoint.index import Entry, Index, dump_index

    cut = Entry((8, 4), "F32", (("tp", 0), ("dp_shard", 0)), 1)
    return [dump_index(Index((2, 1, 2, 2), {"weight": cut})).encode()]


def _progress(data: bytes, folder: Path) -> None:
    from llm_core.checkpoint.folders import PROGRESS_FILE, folder_of, read_progress

    folder_of(folder, 7).mkdir(exist_ok=True)
    (folder_of(folder, 7) / PROGRESS_FILE).write_bytes(data)
    read_progress(folder, 7)


def _artifact(data: bytes, folder: Path) -> None:
    from tasks.runtime.artifact import load_artifact

    (folder / "artifact.json").write_bytes(data)
    load_artifact(folder)


def _artifact_record() -> bytes:
    from tasks.runtime.artifact import SCHEMA_VERSION

    record = {
        "schema_version": SCHEMA_VERSION,
        "stage": "ingest",
        "key": "ab",
        "config": {},
        "counters": {},
        "metrics": {},
    }
    return json.dumps(
        record | {"files": [{"path": "documents/part-0.parquet", "bytes": 3, "digest": "cd"}]}
    ).encode()


def targets(folder: Path) -> Mapping[str, Target]:
    """{name: target}; folder: a place for the making of sound files."""
    from llm_core.checkpoint.index import CheckpointError
    from tasks.runtime.artifact import ArtifactMismatch
    from tasks.shards.foreign import ExchangeError

    progress = {"step": 7, "val_loss": 1.5, "files": {"a": [3, "digest"]}, "made_with": {"seed": 1}}
    state = {"_data_files": [{"filename": "b.arrow"}]}
    return reader_targets() | {
        "fasttext": Target(_fasttext_models(folder), _fasttext, (ConfigError, ValueError)),
        "tokenizer": Target(_tokenizers(), _tokenizer, (ConfigError,)),
        "import megatron": Target([_megatron_index()], _megatron, (ExchangeError,)),
        "import datasets": Target([_dataset_rows()], _dataset, (ExchangeError,)),
        "import datasets state": Target(
            [json.dumps(state).encode()], _dataset_state, (ExchangeError,)
        ),
        "model config": Target([json.dumps(MODEL_CONFIG).encode()], _model_config, (ConfigError,)),
        "model weights": Target([_weights_file(folder)], _weights, (ConfigError,)),
        "checkpoint index": Target(_checkpoint_indexes(), _checkpoint_index, (CheckpointError,)),
        "checkpoint progress": Target([json.dumps(progress).encode()], _progress),
        "artifact": Target([_artifact_record()], _artifact, (ArtifactMismatch,)),
    }
