"""Puts the shards of an earlier run before those of this one, so that a corpus grows at its end.

`order.json` lists the shards of each split by a digest of their tokens and ids, beside what two
runs must agree on. Earlier shards are linked, byte for byte: their tokens keep their place in the
stream, and only new documents are encoded and written. Withdrawn documents are not looked for in
them (`flows.chains` refuses a chain that would need it).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from llm_core.json_files import UnreadableJson, read_json
from tasks.corpus.documentset import id_matrix
from tasks.runtime.artifact import link_file, write_json
from tasks.runtime.stage import StageFailure

ORDER_FILE = "order.json"
COUNTS = ("tokens", "documents", "shards", "bytes")


def link_earlier(
    earlier: Path | None, out_dir: Path, scheme: Mapping[str, str], splits: Sequence[str]
) -> dict[str, dict[str, int]]:
    """{split: counts of what is linked}, all 0 without an earlier run.

    scheme: what both must agree on. Raises StageFailure where they do not, or where the order of
    the earlier run cannot be read.
    """
    if earlier is None:
        return {split: dict.fromkeys(COUNTS, 0) for split in splits}
    try:
        order = read_json(earlier / ORDER_FILE)
        theirs, linked = order["scheme"], {s: dict(order["counts"][s]) for s in splits}
    except (FileNotFoundError, UnreadableJson, KeyError, TypeError) as error:
        raise StageFailure(
            f"shards.earlier ({earlier}) has no readable {ORDER_FILE}; rebuild it with"
            " force=[shards]"
        ) from error
    for name, value in scheme.items():
        if theirs.get(name) != value:
            raise StageFailure(
                f"shards.earlier ({earlier}) has {name} {theirs.get(name)}, this run {value}; keep"
                " the tokenizer (refresh.tokenizer=first) and the settings of shards, or begin a"
                " chain of another name"
            )
    for split in splits:
        for number in range(linked[split]["shards"]):
            name = f"{split}-{number:05d}.arrow"
            link_file(earlier / name, out_dir / name)
    return linked


def write_order(
    out_dir: Path, scheme: Mapping[str, str], counts: Mapping[str, Mapping[str, int]]
) -> None:
    """Write `order.json` of finished shards."""
    shards = {
        split: [digest_shard(path) for path in sorted(out_dir.glob(f"{split}-*.arrow"))]
        for split in counts
    }
    order: dict[str, Any] = {"scheme": dict(scheme), "counts": counts, "shards": shards}
    write_json(out_dir / ORDER_FILE, order)


def digest_shard(path: Path) -> str:
    """128-bit BLAKE2b of a shard's tokens and the ids of its rows, in hex."""
    table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    digest = hashlib.blake2b(table.schema.metadata[b"tokens_digest"], digest_size=16)
    digest.update(id_matrix(table["id"]).tobytes())
    return digest.hexdigest()
