"""Configures where documents come from, and which columns mean what.

One source is a list of paths and a column mapping (`paths`, `text_column` … beside `name`). Several
are a mapping from name to the same settings (`sources`): every document then carries the name of
its source, which later stages mix by. A source's documents have the same identities alone and among
others.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from llm_core.config import NOT_IN_KEY, NOT_IN_PART_KEY, ConfigError
from tasks.ingest.code import holds_code
from tasks.ingest.databases import are_fetched, is_database, list_rows, shown
from tasks.ingest.sourcefiles import Listing, Unfetched, list_files, list_unfetched
from tasks.ingest.withdrawn import REMOVE_FILE
from tasks.readers.contents import is_sqlite
from tasks.readers.encodings import is_encoding
from tasks.readers.formats import Layout, format_of, known_formats
from tasks.readers.recordlimits import DEFAULT_RECORD_BYTES, Limits
from tasks.readers.tables.queries import may_be_one_select, unsaved_changes


@dataclass(frozen=True, kw_only=True)
class InputConfig:
    """Files of one kind."""

    paths: tuple[str, ...] = field(default=(), metadata=NOT_IN_KEY)
    """Files, folders and globs, relative to the current directory, or on s3://, gs://, hf:// and
    http(s)://; or one postgresql:// database. Contents and relative names enter the key."""
    root: Path | None = field(default=None, metadata=NOT_IN_KEY)
    """Folder that files are named from. Null: the folder that all paths have in common."""
    format: str | None = None
    """Ending by which files without a known one are read, such as jsonl for part-00000. auto: their
    content decides. Null skips such files in folders."""
    delimiter: str | None = None
    """Character between the fields of CSV and TSV files. Null: a comma in CSV, a tab in TSV."""
    quote: str | None = None
    """Character around fields of such files that hold delimiters or line ends. Null: \" in CSV,
    none in TSV. Empty: none."""
    query: str | None = None
    """One SELECT statement whose rows are the records: over the tables of SQLite and PostgreSQL
    databases, and over `input` for Parquet files. Null: the only table with the text column; all
    rows."""
    encoding: str = "utf-8"
    """Encoding of text, JSON, CSV and TSV files, such as gb18030, cp1252 or utf-16. auto: found for
    each file; lines in UTF-8 and in another encoding may be mixed."""
    text_unit: Literal["file", "paragraph", "line"] = "file"
    """What is one document in text and Markdown files. Blank lines separate paragraphs."""
    archive_unit: Literal["file", "sample"] = "file"
    """What has records of its own in archives. sample: members that are named alike up to the first
    dot are one record, as in WebDataset."""
    text_column: str = "text"
    """Column, or key of JSON records, that holds the text. a.b is member b of column a; so in the
    other settings that name columns."""
    text_kind: Literal["plain", "html", "chat", "code"] = "plain"
    """What the text column of tables and JSON lines holds. html: pages, of which the main content
    is taken. chat: turns, in `messages`, ShareGPT or Alpaca form. code: source files, also those of
    a folder; language, licence and repository become metadata, and no generated or minified file
    is read."""
    id_column: str | None = "id"
    """Column of a record's own id, where it has one. Null: none is read."""
    url_column: str | None = "url"
    """Column of a record's URL. Null: none is read."""
    language_column: str | None = "language"
    """Column of the language that a record claims. Null: none is read."""
    added_column: str | None = "added"
    """Column of the date that a record was added. Null: none is read."""
    source_column: str | None = None
    """Column of a record's source, in place of the name in the configuration. Null: none is
    read."""
    exclude: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """{column: values}: records with one of these values are dropped."""
    include: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """{column: values}: records without one of these values are dropped."""

    def __post_init__(self) -> None:
        if self.text_column in self.mapped_columns()[1:]:
            raise ConfigError(
                f"text_column ({self.text_column}) is mapped twice; name another column for one of"
                " the settings, or null"
            )
        if self.encoding != "auto" and not is_encoding(self.encoding):
            raise ConfigError(
                f"encoding ({self.encoding}) is not an encoding of files; write one that Python"
                " knows, such as gb18030, shift_jis or cp1252, or auto"
            )
        if self.format not in (None, "auto") and format_of(f"x.{self.format}") is None:
            raise ConfigError(
                f"format ({self.format}) has no reader; write an ending without its dot:"
                f" {known_formats()}"
            )
        for name, sign in (("delimiter", self.delimiter), ("quote", self.quote or None)):
            if sign is not None and (len(sign) != 1 or sign in "\r\n\0"):
                raise ConfigError(
                    f"{name} ({sign!r}) must be one character and no line end, e.g. {name}=';'"
                )
        if self.query is not None and not may_be_one_select(self.query):
            raise ConfigError(
                f"query ({self.query!r}) must be one SELECT statement; try query='select id, text"
                " from input'"
            )
        if self.delimiter is not None and self.delimiter == self.quote:
            raise ConfigError(
                f"delimiter and quote ({self.quote!r}) must differ; leave one of them out to get"
                " the usual one"
            )

    @property
    def layout(self) -> Layout:
        name = "auto" if self.encoding == "auto" else codecs.lookup(self.encoding).name
        encoding = "utf-8" if name == "utf-8-sig" else name
        return Layout(
            self.assumed_format,
            self.delimiter,
            self.quote,
            encoding,
            self.text_unit,
            self.archive_unit,
            self.query,
            holds_code if self.text_kind == "code" else None,
        )

    @property
    def is_database(self) -> bool:
        """Whether the records are rows of a database server."""
        return any(map(is_database, self.paths))

    @property
    def assumed_format(self) -> str | None:
        """The ending that names without a known one are taken to have: source files are text."""
        return "txt" if self.text_kind == "code" and self.format is None else self.format

    def chosen(self, listing: Listing) -> Listing:
        """Of a folder of code the source files, and those that hold records of some."""
        if self.text_kind != "code":
            return listing
        kept = {name: path for name, path in listing.files.items() if holds_code(name)}
        others = sorted({*listing.left_out, *listing.files} - kept.keys())
        return Listing(kept, others)

    def mapped_columns(self) -> tuple[str | None, ...]:
        """Columns with a meaning of their own; all others become metadata."""
        return (
            self.text_column,
            self.id_column,
            self.url_column,
            self.language_column,
            self.added_column,
            self.source_column,
        )


@dataclass(frozen=True)
class HtmlConfig:
    """How the text of a page is found, and what a page may cost."""

    main_content: bool = True
    """Extract the main content, without navigation, headers, footers and comments. False keeps all
    visible text."""
    timeout_s: float = 10.0
    """A page that takes longer to parse is quarantined."""
    max_memory_bytes: int = 2_000_000_000
    """A page that takes more memory to parse is quarantined; some hundred times the size of a page
    is normal."""

    def __post_init__(self) -> None:
        if self.timeout_s <= 0:
            raise ConfigError(f"timeout_s ({self.timeout_s:g}) must be positive; try 10")
        if self.max_memory_bytes < 100_000_000:
            raise ConfigError(
                f"max_memory_bytes ({self.max_memory_bytes}) must be at least 100000000; try"
                " 2000000000"
            )


@dataclass(frozen=True, kw_only=True)
class SourceConfig(InputConfig):
    """Everything that is read in a run: one source, or several by name."""

    name: str = "files"
    """Name of the source; part of every document's identity."""
    sources: dict[str, InputConfig] = field(default_factory=dict, metadata=NOT_IN_PART_KEY)
    """Several sources by name, each with its own paths and columns. Those of `source` itself are
    not used then, and `source.paths` must be empty."""
    remove: Path | None = field(default=None, metadata=NOT_IN_KEY)
    """File that lists withdrawn documents, one id or source_id per line. They are in no artifact
    from then on; `textmill gc` removes older ones. Its content is in the key."""
    html: HtmlConfig = field(default_factory=HtmlConfig)
    max_bad_frac: float = field(default=0.05, metadata=NOT_IN_KEY)
    """The run fails where a larger share of the records is quarantined. Records that damaged files
    are estimated to hold count too."""
    max_text_bytes_per_file: int = 32_000_000
    """A file of documents is closed when it holds this much; bounds the memory of every later
    stage."""
    max_record_bytes: int = DEFAULT_RECORD_BYTES
    """A record that takes more in its file, uncompressed, is quarantined. Bounds the memory of
    reading, about six times this, and what members of archives may take on disk."""
    cache: Path = field(default=Path("data/store/.remote"), metadata=NOT_IN_KEY)
    """Folder for files from elsewhere; a file that has not changed is not fetched again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.inputs:
            if not name or not name.isprintable() or (self.sources and "/" in name):
                raise ConfigError(
                    f"name ({name!r}) must be printable text, and without / where there are several"
                    " sources; try name=crawl"
                )
        if self.sources and self.paths:
            raise ConfigError(
                f"paths ({', '.join(self.paths)}) and sources ({', '.join(self.sources)}) exclude"
                " each other; put the paths into one of the sources"
            )
        if not 1 <= self.max_text_bytes_per_file <= 1 << 30:
            raise ConfigError(
                f"max_text_bytes_per_file ({self.max_text_bytes_per_file}) must be from 1 to"
                f" {1 << 30}; try 32000000"
            )
        if not 1 <= self.max_record_bytes <= 1 << 30:
            raise ConfigError(
                f"max_record_bytes ({self.max_record_bytes}) must be from 1 to {1 << 30}; try"
                f" {DEFAULT_RECORD_BYTES}"
            )
        if not 0 <= self.max_bad_frac <= 1:
            raise ConfigError(f"max_bad_frac ({self.max_bad_frac:g}) must be from 0 to 1; try 0.05")

    @property
    def limits(self) -> Limits:
        return Limits(self.max_record_bytes)

    @property
    def inputs(self) -> Mapping[str, InputConfig]:
        """{name of the source: its settings}."""
        return self.sources or {self.name: self}

    @property
    def names(self) -> frozenset[str] | None:
        """What documents can say they are from; None where a column of the records says it."""
        if any(one.source_column for one in self.inputs.values()):
            return None
        return frozenset(self.inputs)

    def listings(self) -> dict[str, Listing]:
        """{name of the source: its files}; what is not here is fetched."""
        return {name: self._listing(name, one) for name, one in self.inputs.items()}

    def _listing(self, name: str, one: InputConfig) -> Listing:
        where = self._where(name)
        if one.is_database:
            return Listing(dict([list_rows(one.paths, one.query, self.cache, where)]), [])
        listed = list_files(one.paths, one.root, self.cache, where, one.assumed_format)
        listing = one.chosen(listed)
        for file in listing.files.values():
            # Changes beside a file are not in its digest, so a fault would be kept with its part.
            if (why := unsaved_changes(file)) and is_sqlite(file):
                raise ConfigError(f"{where}.paths: {file} is not its whole database: {why}")
        return listing

    def unfetched(self) -> list[Unfetched]:
        """Files elsewhere that `listings` would fetch."""
        found: list[Unfetched] = []
        for name, one in self.inputs.items():
            where = self._where(name)
            if not one.is_database:
                found += list_unfetched(one.paths, self.cache, where, one.assumed_format)
            elif not are_fetched(one.paths, one.query, self.cache, where):
                found.append(Unfetched(shown(one.paths[0]), None))
        return found

    def _where(self, name: str) -> str:
        return f"source.sources.{name}" if self.sources else "source"

    def input_files(self) -> dict[str, Path]:
        """{unique name: file} of everything that is read, the list of withdrawn documents among
        them. Raises ConfigError where that list is missing."""
        if self.remove is None:
            return self.data_files()
        if not self.remove.is_file():
            raise ConfigError(
                f"source.remove ({self.remove}) is not a file; name one that lists an id or"
                " source_id a line, or leave it out"
            )
        return self.data_files() | {REMOVE_FILE: self.remove}

    def data_files(self) -> dict[str, Path]:
        """{unique name: file} of everything that documents come from; with several sources the name
        begins with that of its source."""
        return {
            input_name(name, relative, bool(self.sources)): path
            for name, listing in self.listings().items()
            for relative, path in listing.files.items()
        }


def input_name(source: str, relative: str, among_others: bool) -> str:
    """What a file is called in keys, parts and the quarantine."""
    return f"{source}/{relative}" if among_others else relative
