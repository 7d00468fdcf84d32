"""Documents with the sidecars of every judge."""

from __future__ import annotations

import dataclasses
import hashlib

import pyarrow as pa

from tasks.corpus.documentset import read_table, write_table
from tasks.documents.config import DocumentsConfig
from tasks.documents.stage import write_documents
from tasks.runtime.artifact import Artifact
from tasks.runtime.parts import serial
from tests.support.data.make_artifacts import empty_dir

NUM = 60


def write_judged(parents: dict[str, Artifact], out_dir, runner=serial, **config) -> Artifact:
    return write_documents(*parents.values(), empty_dir(out_dir), DocumentsConfig(**config), runner)


def with_columns(parents: dict[str, Artifact], folder, **added) -> dict[str, Artifact]:
    """The same parents with columns {stage: {name: (type, values)}} added to, or put in place in,
    their sidecars."""
    changed = dict(parents)
    for stage, columns in added.items():
        out = empty_dir(folder / stage)
        begin = 0
        for file in parents[stage].files("*.parquet"):
            table = read_table(file)
            if file.name.startswith("part-"):
                for name, (kind, values) in columns.items():
                    column = pa.chunked_array(
                        [pa.array(values[begin : begin + table.num_rows], kind)]
                    )
                    known = name in table.column_names
                    table = (
                        table.set_column(table.column_names.index(name), name, column)
                        if known
                        else table.append_column(name, column)
                    )
                begin += table.num_rows
            write_table(table, out / file.name)
        changed[stage] = dataclasses.replace(parents[stage], path=out)
    return changed


def family(name: int) -> bytes:
    return hashlib.blake2b(str(name).encode(), digest_size=16).digest()
