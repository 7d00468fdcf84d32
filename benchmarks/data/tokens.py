"""Measures tokenizer training, encoding and loading against the usual alternatives.

`python -m benchmarks.data.tokens PATH` or `make bench-tokens DOCS=PATH`: a file or folder of JSON
lines (plain, .gz, .zst) with `text`, or of Parquet with a column `text`; at most BENCH_MB (16)
million bytes of it are used.

* train: byte-level BPE of 8,192 tokens.
* encode: cold (nothing remembered, everything compiled) and warm, against
  `tokenizers.encode_batch_fast` with the same tokenizer, and against sentencepiece's BPE of the
  same size, trained on a part of the text. `ids_equal` compares all documents with `tokenizers`;
  without it speeds of encoding are withheld.
* loader: shuffled batches of 16 x 1,024 from the page cache, against a
  `torch.utils.data.DataLoader` without workers over a `numpy.memmap`, which gives the same
  tensors.

CPU seconds of one process and one thread, medians of ROUNDS rounds in which all take their turn, so
that a machine that gets slower is slower to all.
"""

from __future__ import annotations

import io
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tokenizers
import torch

from llm_core.config import ConfigError
from llm_core.data.loader import Loader
from llm_core.data.shards import open_shards
from llm_core.printing import note, show
from tasks.tokenizer.bpe import train_bpe
from tasks.tokenizer.encoder import Tokenizer
from tasks.tokenizer.fast_bpe import fast_encoder
from tasks.tokenizer.sentencepieces import train_model

ROUNDS = 3
VOCAB_SIZE = 8192
SENTENCEPIECE_BYTES = 2_000_000
SEQ_LEN, BATCH_ROWS, NUM_BATCHES = 1024, 16, 60


def read_texts(path: Path, max_bytes: int) -> list[str]:
    """Texts up to `max_bytes`. Raises ConfigError where there are none."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    texts: list[str] = []
    left = max_bytes
    for file in files:
        for text in _texts(file):
            if left <= 0:
                return texts
            texts.append(text)
            left -= len(text.encode())
    if not texts:
        raise ConfigError(
            f"DOCS ({path}) has no text; name a file or folder of .jsonl, .jsonl.gz, .jsonl.zst or"
            " .parquet"
        )
    return texts


def _texts(file: Path) -> Iterator[str]:
    if file.suffix == ".parquet":
        for batch in pq.ParquetFile(file).iter_batches(columns=["text"]):
            yield from batch["text"].to_pylist()
        return
    if file.name.removesuffix(".gz").removesuffix(".zst").endswith((".jsonl", ".json")):
        with pa.input_stream(str(file)) as stream:  # decompresses by the name
            for line in io.TextIOWrapper(stream, "utf-8"):
                yield json.loads(line)["text"]


def take_turns(works: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median CPU seconds of each, A B C A B C …"""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            started = time.process_time()
            work()
            seconds[name].append(time.process_time() - started)
    return {name: statistics.median(each) for name, each in seconds.items()}


def bench_encoding(texts: Sequence[str], model: tokenizers.Tokenizer) -> dict[str, Any]:
    import sentencepiece

    tokenizer = Tokenizer(model)
    ours, theirs = fast_encoder(model), tokenizer.encode_whole(texts)
    assert ours is not None
    found = ours.encode_batch(texts)  # compiles, and fills the table for the warm rounds
    equal = all(
        ids is not None and np.array_equal(ids, other)
        for ids, other in zip(found, theirs, strict=True)
    )
    ends = np.cumsum([len(text.encode()) for text in texts])
    part = list(texts[: int(np.searchsorted(ends, SENTENCEPIECE_BYTES, "right")) + 1])
    pieces = sentencepiece.SentencePieceProcessor(
        model_proto=train_model(part, VOCAB_SIZE, "bpe")[0]
    )
    megabytes = ends[-1] / 1e6

    def cold() -> None:
        encoder = fast_encoder(model)
        assert encoder is not None
        encoder.encode_batch(texts)

    seconds = take_turns(
        {
            "cold": cold,
            "tokenizers": lambda: model.encode_batch_fast(texts, add_special_tokens=False),
            "warm": lambda: ours.encode_batch(texts),
            "sentencepiece": lambda: pieces.encode(list(texts), num_threads=1),
        }
    )
    speed = {name: megabytes / each for name, each in seconds.items()}
    return {
        "encode_mb_s": speed["cold"] if equal else None,
        "encode_warm_mb_s": speed["warm"] if equal else None,
        "tokenizers_mb_s": speed["tokenizers"],
        "sentencepiece_mb_s": speed["sentencepiece"],
        "encode_vs_tokenizers": speed["cold"] / speed["tokenizers"] if equal else None,
        "ids_equal": equal,
        "documents": len(texts),
        "megabytes": megabytes,
    }


class MemmapRows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Rows of a flat file of ids, as training scripts without a loader of their own read them."""

    def __init__(self, file: Path) -> None:
        self._tokens = np.memmap(file, np.uint16, "r")

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // SEQ_LEN

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = torch.from_numpy(
            self._tokens[index * SEQ_LEN : (index + 1) * SEQ_LEN + 1].astype(np.int64)
        )
        return row[:-1], row[1:]


def bench_loading(ids: Sequence[np.ndarray], folder: Path) -> dict[str, float]:
    documents = [np.append(each, 0).astype(np.uint16) for each in ids]
    flat = np.concatenate(documents)
    # Enough rows for every batch of every round, whatever the text.
    flat = np.tile(flat, max(1, -(-(NUM_BATCHES * BATCH_ROWS * SEQ_LEN + 1) // len(flat))))
    flat.tofile(folder / "tokens.bin")
    offsets = np.concatenate([[0], np.flatnonzero(flat == 0) + 1])
    count = len(offsets) - 1
    columns = {
        "tokens": pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(flat[: offsets[-1]])),
        "id": pa.array([i.to_bytes(16, "big") for i in range(count)], pa.binary(16)),
        "source": pa.nulls(count, pa.string()),
        "language": pa.nulls(count, pa.string()),
        "num_bytes": pa.array(np.zeros(count, np.int64)),
        "continues": pa.array(np.zeros(count, bool)),
    }
    metadata = {"split": "train", "tokenizer_digest": "", "config_digest": "", "seed": "0"}
    metadata |= {"eos_id": "0", "num_tokens": str(offsets[-1]), "num_shards": "1", "shard": "0"}
    batch = pa.record_batch(columns).replace_schema_metadata(metadata)
    with pa.ipc.new_file(str(folder / "train-00000.arrow"), batch.schema) as writer:
        writer.write_batch(batch)
    loader = Loader(open_shards(folder, "train"), SEQ_LEN, BATCH_ROWS, seed=0)
    rows = MemmapRows(folder / "tokens.bin")

    def ours() -> None:
        for step in range(NUM_BATCHES):
            loader.batch(step)

    def theirs() -> None:
        batches = iter(
            torch.utils.data.DataLoader(rows, BATCH_ROWS, shuffle=True, generator=torch.Generator())
        )
        for _ in range(NUM_BATCHES):
            next(batches)

    ours()
    theirs()  # both read everything once, into the page cache
    seconds = take_turns({"ours": ours, "theirs": theirs})
    tokens = NUM_BATCHES * BATCH_ROWS * SEQ_LEN
    return {
        "loader_tok_s": tokens / seconds["ours"],
        "memmap_tok_s": tokens / seconds["theirs"],
        "loader_vs_memmap": seconds["theirs"] / seconds["ours"],
    }


def main(argv: Sequence[str]) -> int:
    if len(argv) != 1 or not argv[0]:
        note("usage: make bench-tokens DOCS=PATH")
        return 2
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    try:
        texts = read_texts(Path(argv[0]), int(float(os.environ.get("BENCH_MB", "16")) * 1e6))
    except (ConfigError, OSError) as error:
        note(error)
        return 2
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    model: dict[str, tokenizers.Tokenizer] = {}
    note(f"training on {megabytes:.1f} MB, {ROUNDS} times")
    trained = take_turns({"train": lambda: model.update(bpe=train_bpe(texts, VOCAB_SIZE))})
    note("encoding")
    encoding = bench_encoding(texts, model["bpe"])
    note("loading")
    with tempfile.TemporaryDirectory() as folder:
        loading = bench_loading(Tokenizer(model["bpe"]).encode_batch(texts), Path(folder))
    row = {
        "train_mb_s": megabytes / trained["train"],
        **encoding,
        **loading,
        "rounds": ROUNDS,
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
    }
    show(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
