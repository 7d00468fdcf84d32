"""Tells from the name of a file what it holds.

`pages.warc.gz` is a web archive in gzip, `texts.tar.zst` an archive of files in zstd; the format of
a member of an archive is read off its own name. Config and planning need this before anything is
opened, so nothing heavy is imported here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import NamedTuple

COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")

_ENDINGS = {
    "jsonl": ".jsonl .ndjson .json",
    "parquet": ".parquet",
    "arrow": ".arrow .arrows .feather .ipc",
    "sqlite": ".sqlite .sqlite3",
    "csv": ".csv",
    "tsv": ".tsv",
    "text": ".txt .md .markdown",
    "html": ".html .htm .xhtml",
    "warc": ".warc .wet",
    "mailbox": ".mbox",
    "mediawiki": ".xml",
    "pdf": ".pdf",
    "docx": ".docx",
    "odt": ".odt",
    "epub": ".epub",
    "mail": ".eml",
    "notebook": ".ipynb",
    "latex": ".tex",
    "subtitles": ".srt .vtt",
    "mds": ".mds",
    "zip": ".zip",
    "tar": ".tar",
}
FORMATS = {ending: kind for kind, endings in _ENDINGS.items() for ending in endings.split()}
DOCUMENTS = ("html", "pdf", "docx", "odt", "epub", "mail", "notebook", "latex", "subtitles")
"""Files that are one document each, whose text is extracted in a sandbox."""
SHORT_NAMES = {f".t{compression[1:]}": (".tar", compression) for compression in COMPRESSIONS}
"""`.tgz` and similar."""
OTHER_NAMES = {".zstd": ".zst"}
UNKNOWN = "unknown"
"""A file whose content says what it is, for `source.format=auto`."""
ARCHIVES = ("zip", "tar")
SEEKING = ("parquet", "arrow", "sqlite", "zip")
"""Formats that are read from several places of a file; compressed as a whole, they would have to be
unpacked first."""


class Format(NamedTuple):
    """`compression` is a suffix, or empty."""

    kind: str
    compression: str


class Layout(NamedTuple):
    """What a source says of its files where their names do not."""

    format: str | None = None
    """An ending that files without a known one are read by; `auto`: by their content."""
    delimiter: str | None = None
    """Between the fields of CSV and TSV; None: a comma and a tab."""
    quote: str | None = None
    """Around fields that may hold the delimiter and line ends; None: `"` in CSV and none in TSV;
    empty: none."""
    encoding: str = "utf-8"
    """Of text, JSON, CSV and TSV; `auto`: found."""
    unit: str = "file"
    """What is a document in text files: `file`, `paragraph` or `line`."""

    archive_unit: str = "file"
    """What is a record in archives: a `file` has its own, or a `sample` is one."""

    query: str | None = None
    """SQL whose rows are the records of SQLite and Parquet files."""

    wanted: Callable[[str], bool] | None = None
    """Whether a member of an archive is read, by its name; None: those of known formats are."""


BY_NAME = Layout()


def format_of(name: str, assumed: str | None = None) -> Format | None:
    """The format of a file by its name, else by the ending `assumed`; None without a reader."""
    suffixes = [suffix.lower() for suffix in PurePosixPath(name).suffixes[-2:]]
    suffixes = [OTHER_NAMES.get(suffix, suffix) for suffix in suffixes]
    if suffixes and suffixes[-1] in SHORT_NAMES:
        suffixes[-1:] = SHORT_NAMES[suffixes[-1]]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else ""
    kind = FORMATS.get(suffixes[-1]) if suffixes else None
    if kind is None and assumed == "auto":
        return Format(UNKNOWN, compression)
    if kind is None and assumed is not None:
        as_if = format_of(f"x.{assumed}{compression}") or format_of(f"x.{assumed}")
        kind, compression = (as_if.kind, compression or as_if.compression) if as_if else (None, "")
    if kind is None or (compression and kind in SEEKING):
        return None
    return Format(kind, compression)


def known_formats() -> str:
    """For messages: every suffix with a reader."""
    return f"{', '.join(FORMATS)}, most also with {', '.join(COMPRESSIONS)}"
