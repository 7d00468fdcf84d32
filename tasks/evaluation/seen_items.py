"""Finds the items of suites that occur in the training shards, as `tasks.contamination` does.

What was trained on are the tokens of the shards, whatever was searched and dropped before: shards
may be imported, or hold documents of earlier runs. So their text is decoded again, a shard at a
time, and searched for the same n-grams. A document that was cut over two shards counts as two.

In: `train-*.arrow`, the tokenizer, records of suites. Out: the place of each item found, and how
many of its suite have enough units to be looked for. Cost: decoding and one walk over all training
text, some 50 MB/s on one core.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.contamination.config import ContaminationConfig
from tasks.contamination.passes import FOUND_FILE, matches, occurrences
from tasks.contamination.suites import SuiteConfig, SuiteIndex, index_items, read_items
from tasks.corpus.documentset import read_table, write_table
from tasks.runtime.artifact import Artifact, digest_file
from tasks.runtime.keys import digest
from tasks.runtime.parts import Part, RunParts, scratch_dir

if TYPE_CHECKING:
    from llm_core.data.shards import Shard
    from tasks.tokenizer.encoder import Tokenizer

BLOCK_TOKENS = 1 << 23
"""Decoded at a time, unless one document has more: some 40 MB of text."""


@dataclass(frozen=True)
class Seen:
    """The items of one suite that were found."""

    places: frozenset[int]
    """From 0, in the order of the records."""
    searched: int
    """Items long enough to be looked for."""


def seen_items(
    shards: Artifact,
    tokenizer: Artifact,
    suites: Mapping[str, SuiteConfig],
    config: ContaminationConfig,
    out_dir: Path,
    run_parts: RunParts,
) -> dict[str, Seen]:
    """{suite: what training has seen of it}. config: what counts as found."""
    from llm_core.data.shards import open_shards

    of_suites = {name: list(read_items(name, suite)) for name, suite in suites.items()}
    items = [item for found in of_suites.values() for item in found]
    index = index_items(items, config.ngram_units, config.min_units)
    folder = scratch_dir(out_dir) / "suites"
    folder.mkdir(parents=True, exist_ok=True)
    index.save(folder)
    known = {array.name: digest_file(folder / f"{array.name}.npy") for array in fields(index)}
    known["tokenizer"] = digest_file(tokenizer.file("tokenizer.json"))
    common = {"index": str(folder), "tokenizer": str(tokenizer.path)}
    parts = [
        Part(
            f"seen-{shard.path.stem}",
            digest({**known, "shard": shards.file_digest(shard.path.name)}),
            {**common, "shards": str(shards.path), "number": number},
        )
        for number, shard in enumerate(open_shards(shards.path, "train").shards)
    ]
    results = run_parts(search_shard, parts, config, out_dir)
    tables = [read_table(result.path / FOUND_FILE) for result in results]
    documents_of = np.zeros(len(index.hashes), np.int64)
    for table in tables:
        pairs = np.unique(np.stack([table["ngram"].to_numpy(), table["row"].to_numpy()]), axis=1)
        documents_of += np.bincount(pairs[0], minlength=len(documents_of))
    frequent = documents_of > (config.max_ngram_documents or documents_of.max(initial=0))
    found = {
        match.item
        for table in tables
        for match in matches(table, index, frequent, len(items), config)
    }
    searched, begin, seen = set(np.unique(index.items).tolist()), 0, {}
    for name, own in of_suites.items():
        places = range(begin, begin + len(own))
        seen[name] = Seen(
            frozenset(place - begin for place in places if place in found),
            sum(place in searched for place in places),
        )
        begin += len(own)
    return seen


def search_shard(part: Part, directory: Path, config: ContaminationConfig) -> Mapping[str, Any]:
    """Every occurrence in one shard."""
    import pyarrow as pa

    from llm_core.data.shards import open_shards
    from tasks.tokenizer.encoder import load_tokenizer

    del config
    given = part.payload
    index, tokenizer = SuiteIndex.load(Path(given["index"])), load_tokenizer(given["tokenizer"])
    shard = open_shards(given["shards"], "train").shards[given["number"]]
    tables, unproved = [], 0
    for first, buf, begins in _texts(shard, tokenizer):
        table, wrong = occurrences(buf, begins, index)
        rows = pa.array(table["row"].to_numpy() + first)
        tables.append(table.set_column(0, "row", rows))
        unproved += wrong
    write_table(pa.concat_tables(tables), directory / FOUND_FILE)
    return {"found": sum(table.num_rows for table in tables), "unproved": unproved}


def _texts(shard: Shard, tokenizer: Tokenizer) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """(first row, bytes, where each text begins and the last ends) of blocks of documents."""
    offsets = shard.batch["tokens"].offsets.to_numpy().astype(np.int64)
    offsets -= offsets[0]
    first, num_rows = 0, len(offsets) - 1
    while first < num_rows or first == 0:
        last = int(np.searchsorted(offsets, offsets[first] + BLOCK_TOKENS, "right")) - 1
        last = min(max(last, first + 1), num_rows)
        ids = shard.tokens[offsets[first] : offsets[last]]
        ends = np.concatenate([[0], np.cumsum(tokenizer.bytes_per_token[ids], dtype=np.int64)])
        begins = ends[offsets[first : last + 1] - offsets[first]]
        yield first, np.frombuffer(tokenizer.decode_bytes(ids), np.uint8), begins
        first = max(last, 1)
