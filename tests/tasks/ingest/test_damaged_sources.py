"""Whatever is damaged in a file of any format, ingest ends, and its counts say what was lost."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path

import pytest

from tasks.ingest import stage
from tasks.ingest.sources import SourceConfig
from tasks.ingest.stage import ingest_file, list_parts
from tasks.readers.pages import READ_PAGE
from tasks.runtime.parts import Part
from tasks.runtime.sandbox import Sandbox
from tests.fuzz.changes import changed, draw_changes
from tests.support.data.document_files import DOCUMENTS, mail, mds, pdf, sqlite, wiki
from tests.support.data.encoded_texts import TEXTS
from tests.support.data.input_files import as_zip, every_format

NUM_RECORDS = 12
RECORDS = [{"id": f"r{i}", "text": f"größere {i} 数据", "url": f"u{i}"} for i in range(NUM_RECORDS)]
ROWS = [{"text": one["text"]} for one in RECORDS]
MAILS = [b"From a@b Sun Nov 29 2026\n" + mail(b"Text %d\n\n" % i) for i in range(NUM_RECORDS)]


def encoded(text: str, encoding: str, is_mixed: bool) -> bytes:
    rows = [{"text": f"{i} {text}"} for i in range(NUM_RECORDS)]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    if not is_mixed:
        return "".join(lines).encode(encoding)
    return b"".join(line.encode(("utf-8", encoding)[i % 2]) for i, line in enumerate(lines))


FILES: dict[str, tuple[bytes, int]] = {
    **{
        name: (data, NUM_RECORDS) for name, data in every_format(RECORDS).items() if name != "r.tsv"
    },
    **{name: (data, 1) for name, data in DOCUMENTS.items()},
    "r.pdf": (pdf([["one", "two"], ["three"]]), 1),
    "w.xml": (wiki([("", f"Text {i}") for i in range(NUM_RECORDS)]), NUM_RECORDS),
    "s.mds": (mds({"text": "str"}, ROWS), NUM_RECORDS),
    "d.sqlite": (sqlite(RECORDS), NUM_RECORDS),
    "m.mbox": (b"".join(MAILS), NUM_RECORDS),
    "nested.zip": (as_zip({"in.zip": every_format(RECORDS)["r.zip"]}), NUM_RECORDS),
}
ENCODED = {
    f"{kind}.{encoding}.jsonl": (encoded(text, encoding, kind == "mixed"), 0)
    for encoding, text in TEXTS.items()
    for kind in ("whole", "mixed")
    if kind == "whole" or not encoding.startswith("utf")
}
"""Lines in each encoding, all of them or every other one, whose name no setting tells. Whole lines
that are missing leave no sign, so that no number of records is asked for."""
UNNOTICED = ("r.csv", "m.mbox")
"""Formats whose records may be joined without a sign of it: at a line end, or a `From ` line."""


def damaged(data: bytes, chooser: random.Random) -> bytes:
    """Flipped bits, a cut end, or pieces that are changed, repeated, missing or swapped."""
    kind = chooser.randrange(4)
    if kind == 0:
        flipped = bytearray(data)
        for _ in range(chooser.randint(1, 8)):
            flipped[chooser.randrange(len(data))] ^= 1 << chooser.randrange(8)
        return bytes(flipped)
    if kind == 1:
        return data[: chooser.randrange(len(data))]
    if kind == 2:
        a, b, c = sorted(chooser.randrange(len(data)) for _ in range(3))
        return data[:a] + data[b:c] + data[a:b] + data[c:]
    return changed(data, draw_changes(chooser))


@pytest.mark.parametrize(
    ("files", "encoding"), [(FILES, "utf-8"), (ENCODED, "auto")], ids=["formats", "encodings"]
)
@pytest.mark.parametrize(
    ("num_damages", "seed"), [(60, 1), pytest.param(1000, 2, marks=pytest.mark.slow)]
)
def test_every_damaged_file_is_read_and_accounted_for(
    tmp_path: Path,
    num_damages: int,
    seed: int,
    files: dict[str, tuple[bytes, int]],
    encoding: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # One process for all files: a start for each would take most of the time.
    shared = Sandbox(READ_PAGE, 10.0, 2_000_000_000)
    monkeypatch.setattr(stage, "Sandbox", lambda *limits: contextlib.nullcontext(shared))
    chooser, folder = random.Random(seed), tmp_path / "in"
    folder.mkdir()
    names = [sorted(files)[i % len(files)] for i in range(num_damages)]
    for i, name in enumerate(names):
        (folder / f"{i:04}.{name}").write_bytes(damaged(files[name][0], chooser))
    config = SourceConfig(paths=(str(folder),), max_record_bytes=1 << 22, encoding=encoding)
    with shared:
        for part in list_parts(config):
            require_accounting(part, files[part.name.partition(".")[2]][1], tmp_path, config)


def require_accounting(part: Part, num_records: int, tmp_path: Path, config: SourceConfig) -> None:
    number, _, name = part.name.partition(".")
    (tmp_path / number).mkdir()
    counts = ingest_file(part, tmp_path / number, config)
    lost = counts["quarantined"] + sum(counts["dropped"].values())
    assert counts["read"] == counts["kept"] + lost
    counted = counts["read"] + sum(counts["skipped"].values())
    is_noticed = counted >= num_records or lost or counts["extent"]["breaks"]
    is_empty = part.payload["stamp"][0] == 0
    assert is_noticed or is_empty or name.startswith(UNNOTICED), (part.name, counts)
