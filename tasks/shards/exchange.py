"""Exports token shards to other engines and imports theirs, streaming and without copies of text.

`megatron`: the files of `tasks.shards.megatron`.

`datasets`: a folder that Hugging Face's `load_from_disk` reads as a DatasetDict:
`dataset_dict.json`, and per split `data-*.arrow` streams with `dataset_info.json` and `state.json`.
Columns `input_ids` (large_list), `id` (hex), `source`, `language`, `num_bytes`, with chats also
`loss_mask`; a row is a document.

An import of either gives shards with everything they hold of a document: from `megatron` ids only,
so ids of documents are digests of their tokens and place, and `num_bytes` comes from the tokenizer.
Each document must end with the end-of-text id or is given one; ids beyond the tokenizer's are an
error.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from llm_core.config import ConfigError, nearest
from llm_core.data.shards import LOSS_MASK, TokenShards, open_shards
from llm_core.durable import sync_folder
from llm_core.json_files import UnreadableJson, is_plain_name, read_json
from tasks.readers.recordlimits import USUAL
from tasks.readers.tables.ipcbodies import require_small_bodies
from tasks.readers.tables.parquetfooters import OverLimit
from tasks.runtime.artifact import Artifact, write_json
from tasks.shards.foreign import ExchangeError, ForeignDocument
from tasks.shards.megatron import (
    export_megatron,
    megatron_files,
    megatron_indexes,
    read_megatron,
)

SPLITS = ("train", "validation")
ROWS_PER_BATCH = 1024
MAX_STATE_BYTES = 16 << 20


def export_shards(shards: Artifact, form: str, out_dir: Path) -> dict[str, int]:
    """Write the shards of an artifact in another engine's form; {split: documents}. Raises
    ConfigError on an unknown form."""
    if form not in EXPORTS:
        raise ConfigError(f"{form} is not a form of shards; {nearest(form, list(EXPORTS))}")
    if out_dir.exists() and any(out_dir.iterdir()):
        raise ConfigError(f"{out_dir} is not empty; name a new folder")
    out_dir.mkdir(parents=True, exist_ok=True)
    splits = {split: open_shards(shards.path, split) for split in SPLITS}
    for split in splits.values():
        split.verify()
    counts = {name: EXPORTS[form](split, out_dir) for name, split in splits.items()}
    if form == "datasets":
        write_json(out_dir / "dataset_dict.json", {"splits": list(SPLITS)})
    sync_folder(out_dir)
    return counts


def export_datasets(shards: TokenShards, out_dir: Path) -> int:
    """A folder that `load_from_disk` reads; documents written."""
    folder = out_dir / shards.split
    folder.mkdir()
    value = "uint16" if shards.shards[0].tokens.dtype == np.uint16 else "uint32"
    schema = pa.schema(
        [
            ("input_ids", pa.large_list(pa.from_numpy_dtype(value))),
            ("id", pa.string()),
            ("source", pa.string()),
            ("language", pa.string()),
            ("num_bytes", pa.int64()),
        ]
    )
    ids, *others = schema
    if shards.has_loss_mask:
        schema = schema.append(pa.field(LOSS_MASK, pa.large_list(pa.uint8())))
    features: dict[str, Any] = {field.name: _value(str(field.type)) for field in others}
    features = {ids.name: {"feature": _value(value), "_type": "LargeList"}, **features}
    if shards.has_loss_mask:
        features[LOSS_MASK] = {"feature": _value("uint8"), "_type": "LargeList"}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    name, count = "data-00000-of-00001.arrow", 0
    with (
        pa.OSFile(str(folder / name), "wb") as sink,
        pa.ipc.new_stream(sink, schema.with_metadata(metadata)) as writer,
    ):
        rows: list[dict[str, Any]] = []
        bounds = zip(*shards.document_bounds(), strict=True)
        for one, place in zip(shards.documents(), bounds, strict=True):
            row = [one.tokens, one.id.hex(), one.source, one.language, one.num_bytes]
            if shards.has_loss_mask:
                row.append(shards.read_loss_mask(*place).astype(np.uint8))
            rows.append(dict(zip(schema.names, row, strict=True)))
            count += 1
            if len(rows) == ROWS_PER_BATCH:
                writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=schema))
                rows = []
        writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=schema))
    info = {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
    write_json(folder / "dataset_info.json", info)
    identity = f"{shards.tokenizer_digest} {shards.split} {count}".encode()
    state: dict[str, Any] = {
        "_data_files": [{"filename": name}],
        "_fingerprint": hashlib.blake2b(identity, digest_size=8).hexdigest(),
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": shards.split,
    }
    write_json(folder / "state.json", state)
    return count


def _value(kind: str) -> dict[str, str]:
    return {"dtype": kind, "_type": "Value"}


def dataset_folder(folder: Path, split: str) -> Path:
    """Where a split of a saved dataset is: a dataset that was saved without splits is the train
    split."""
    is_alone = split == "train" and (folder / "state.json").exists()
    return folder if is_alone else folder / split


def read_datasets(folder: Path, split: str) -> Iterator[ForeignDocument]:
    """Documents of a split of a saved dataset: `input_ids`; `id`, `source`, `language` and
    `loss_mask` where there are. Raises ExchangeError."""
    state = dataset_folder(folder, split) / "state.json"
    try:
        names = [entry["filename"] for entry in read_json(state, MAX_STATE_BYTES)["_data_files"]]
    except (UnreadableJson, OSError, KeyError, TypeError) as error:
        raise ExchangeError(f"{state} is not the state of a saved dataset ({error})") from error
    for name in names:
        # Other files would not be in the key of the import either.
        if not is_plain_name(name) or not name.endswith(".arrow"):
            raise ExchangeError(
                f"{state} names {name!r}, which is not an .arrow file of its folder; save the"
                " dataset again"
            )
        file = state.with_name(name)
        try:
            with file.open("rb") as stream:
                require_small_bodies(stream, USUAL)
            with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as reader:
                _check_columns(reader.schema, file)
                for batch in reader:
                    # Lengths and offsets are the file's own: where they leave the buffers, reading
                    # ends the process.
                    batch.validate(full=True)
                    yield from _rows(batch)
        except OverLimit as error:
            raise ExchangeError(
                f"{file} has a batch that expands like a bomb; save it without compression"
            ) from error
        # Arrow does not check the names of columns, and no file has a name of lone surrogates.
        except (pa.ArrowException, OSError, UnicodeError) as error:
            raise ExchangeError(f"{file} cannot be read ({error})") from error


def _check_columns(schema: pa.Schema, file: Path) -> None:
    """Raises ExchangeError where the tokens are not there, or not of a type that is read."""
    if "input_ids" not in schema.names:
        raise ExchangeError(f"{file} has no column input_ids; it has {', '.join(schema.names)}")
    for name in [name for name in ("input_ids", LOSS_MASK) if name in schema.names]:
        places = schema.get_all_field_indices(name)
        kind = schema.field(places[0]).type
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        if len(places) > 1 or not (is_list and pa.types.is_integer(kind.value_type)):
            raise ExchangeError(
                f"{file} must have one column {name} of lists of whole numbers; it has"
                f" {len(places)}, of {kind}"
            )


def _rows(batch: pa.RecordBatch) -> Iterator[ForeignDocument]:
    is_text = (pa.types.is_string, pa.types.is_large_string)
    texts = [field.name for field in batch.schema if any(kind(field.type) for kind in is_text)]
    # Of two columns of one name nobody knows which is meant.
    clear = {name for name in texts if batch.schema.names.count(name) == 1}
    ids, sources, languages = (
        batch[name].to_pylist() if name in clear else [None] * batch.num_rows
        for name in ("id", "source", "language")
    )
    lists = batch["input_ids"]
    offsets, values = lists.offsets.to_numpy(), lists.values.to_numpy()
    masks = batch[LOSS_MASK] if LOSS_MASK in batch.schema.names else None
    for row, id in enumerate(ids):
        own = bytes.fromhex(id) if id and re.fullmatch("[0-9a-f]{32}", id) else None
        tokens = values[offsets[row] : offsets[row + 1]]
        mask = None if masks is None else masks[row].values
        if masks is not None and (mask is None or len(mask) != len(tokens)):
            raise ExchangeError(
                f"a document has {len(tokens)} input_ids and another number of {LOSS_MASK}"
            )
        learnt = None if mask is None else mask.to_numpy(zero_copy_only=False)
        yield ForeignDocument(tokens, own, sources[row], languages[row], learnt)


def has_split(form: str, folder: Path, split: str) -> bool:
    if form == "megatron":
        return bool(megatron_indexes(folder, split))
    return (dataset_folder(folder, split) / "state.json").exists()


def foreign_files(form: str, folder: Path) -> dict[str, Path]:
    """{name: file} of what an import reads. Raises ConfigError where split train is not there."""
    if not has_split(form, folder, "train"):
        wanted = "train/state.json"
        if form == "megatron":
            wanted = "train.idx or PREFIX_text_document.idx, with a .bin"
        raise ConfigError(f"path ({folder}) has no {wanted}; name a folder of {form} data")
    if form == "megatron":
        files = sorted(path for split in SPLITS for path in megatron_files(folder, split))
        return {path.name: path for path in files if path.exists()}
    places = [dataset_folder(folder, split) for split in SPLITS]
    files = sorted({path for one in places for path in (*one.glob("*.arrow"), one / "state.json")})
    files = [path for path in files if path.exists()]
    return {str(path.relative_to(folder)): path for path in files}


EXPORTS = {"megatron": export_megatron, "datasets": export_datasets}
READERS: Mapping[str, Any] = {"megatron": read_megatron, "datasets": read_datasets}
