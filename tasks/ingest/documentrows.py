"""Turns records into documents: columns get their meaning, the text is repaired, the rest becomes
metadata.

Repaired and counted, per document: NUL (removed), BOM (removed at the beginning), CRLF (becomes
LF), LONE_SURROGATE (becomes U+FFFD), RECODED (read in an encoding that was found), ENCODING (bytes
without a meaning in a page's encoding become U+FFFD). Dropped: EMPTY (nothing but white space and
zero-width characters), EXCLUDED (by `exclude` or `include`). Left out: any normalisation of Unicode
forms; documents are what the source says.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from tasks.corpus.visible import shows
from tasks.ingest.chats import NotAChat, read_chat
from tasks.ingest.code import code_facts, fault_of
from tasks.ingest.sources import HtmlConfig, InputConfig
from tasks.readers import Fault, Record, json_type
from tasks.readers.items import MAX_NESTING, TOO_DEEP, find_column
from tasks.readers.pages import BrokenPage, Encoded, PageText, extract
from tasks.readers.recordlimits import USUAL, Limits
from tasks.runtime.sandbox import OutOfBounds, Sandbox

DUMP_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATETIME
_MISSING = object()


class NestedTooDeeply(ValueError):
    """A value with more levels than a record may have."""


class Row(NamedTuple):
    """A document without its id; texts that may be long are UTF-8."""

    text: bytes
    source: str
    source_id: str | None
    url: str | None
    language: str | None
    added_at: str | None
    metadata: bytes
    license: str | None
    repairs: tuple[str, ...]
    turns: list[dict[str, Any]] | None = None
    """Of a chat (`tasks.corpus.turns`)."""


class RowReader:
    """Makes rows of the records of one source. `sandbox` reads its pages."""

    def __init__(
        self,
        source: str,
        config: InputConfig,
        html: HtmlConfig,
        sandbox: Sandbox,
        limits: Limits = USUAL,
    ) -> None:
        self._source, self._config, self._html, self._sandbox = source, config, html, sandbox
        self._limits = limits
        # A column that is null has no name that a record could use.
        self._columns: tuple[Any, ...] = config.mapped_columns()[1:]
        named = (*config.mapped_columns(), *config.exclude, *config.include)
        self._nested = [name for name in dict.fromkeys(named) if name and "." in name]

    def prepare(self, record: Record, partitions: Mapping[str, str | None]) -> None:
        """Give a record the columns that its folders name, and those in others their whole name."""
        if partitions:
            record.values = {**partitions, **record.values}
        for column in self._nested:
            if found := find_column(record.values, column):
                holder, name = found
                record.values[column] = holder.pop(name)

    def read(self, record: Record) -> Row | str | Fault:
        """A row, or a drop reason, or a fault. Takes the record's values apart."""
        try:
            return self._read(record)
        except NestedTooDeeply:
            return Fault(record.line, record.byte_offset, TOO_DEEP)
        except (RecursionError, ArithmeticError) as error:
            what = f"wrong type: {type(error).__name__} where a value becomes JSON"
            return Fault(record.line, record.byte_offset, what)

    def _read(self, record: Record) -> Row | str | Fault:
        config, values = self._config, record.values
        if (config.exclude or config.include) and _excluded(values, config):
            return "EXCLUDED"
        page: PageText | None = None
        repairs, turns = record.repaired, None
        text: Any
        if config.text_kind == "chat":
            try:
                chat = read_chat(values, config.text_column, repair_text)
            except NotAChat as error:
                return Fault(record.line, record.byte_offset, str(error))
            if isinstance(chat, str):
                return chat
            text, turns, repairs = chat.text, chat.turns, (*repairs, *chat.repairs)
        else:
            text = values.pop(config.text_column, _MISSING)
            if type(text) is not str or config.text_kind == "html":
                found = self._find_text(text, record)
                if isinstance(found, Fault):
                    return found
                text, page = found
        try:
            encoded = text.encode("utf-8")
        except UnicodeEncodeError:  # half a surrogate pair from a table format that does not check
            encoded, repairs = text.encode("utf-8", "replace"), (*repairs, "LONE_SURROGATE")
            text = encoded.decode("utf-8")
        if len(encoded) > self._limits.record_bytes:
            return Fault(record.line, record.byte_offset, self._limits.over("a text"))
        # Looked for in bytes: a search for one byte is many times faster than one in wide
        # characters.
        odd = b"\0" in encoded or b"\r" in encoded or text.startswith("\ufeff")
        if odd and turns is None:  # turns are repaired one by one, before they get their places
            text, more = repair_text(text)
            encoded, repairs = text.encode("utf-8"), (*repairs, *more)
        if not shows(text):
            return "EMPTY"
        if config.text_kind == "code":
            name = values.get(config.id_column) if config.id_column else None
            values |= code_facts(values, name if isinstance(name, str) else None, text)
            if reason := fault_of(text, values.get("code_language")):
                return reason
        if page is not None:
            details = {"title": page.title, "encoding": page.encoding}
            names = {"language": config.language_column, "added": config.added_column}
            details |= {names.get(name) or name: value for name, value in page.values.items()}
            values = {name: value for name, value in details.items() if value is not None} | values
            repairs = (*repairs, "ENCODING") if page.repaired else repairs
        license_name = values.get("license")
        # Looked up before they are taken out: one column may be two things, as an address that is
        # the id too.
        meanings = [values.get(column) for column in self._columns]
        for column in self._columns:
            values.pop(column, None)
        source_id, url, language, added_at, source = [
            value if value is None or type(value) is str else _as_text(value) for value in meanings
        ]
        return Row(
            encoded,
            source or self._source,
            source_id,
            url,
            language,
            added_at,
            metadata_json(values),
            license_name if isinstance(license_name, str) else None,
            repairs,
            turns,
        )

    def source_id(self, record: Record) -> str | None:
        """The record's own id as a document has it, None if nested too deeply; asked for before
        `read` takes the values apart."""
        column = self._config.id_column
        try:
            return _as_text(record.values.get(column)) if column else None
        except NestedTooDeeply:
            return None

    def _find_text(self, value: Any, record: Record) -> tuple[str, PageText | None] | Fault:
        column, is_html = self._config.text_column, self._config.text_kind == "html"
        try:
            if isinstance(value, bytes) and not is_html:
                return value.decode("utf-8"), None
            if isinstance(value, str) and not is_html:
                return value, None
            if isinstance(value, bytes):
                value = Encoded(value, None, "html")
            elif isinstance(value, str):
                value = Encoded(value.encode("utf-8", "replace"), "utf-8", "html")
            if isinstance(value, Encoded):
                page = extract(value, self._sandbox, self._html.main_content, self._limits)
                return page.text, page
            what = f"wrong type: column {column} is {json_type(value)}, not text"
            if value is None or value is _MISSING:
                what = f"column {column} is {'missing' if value is _MISSING else 'null'}"
        except UnicodeDecodeError as error:
            what = f"invalid UTF-8: byte 0x{value[error.start]:02x}"
        except BrokenPage as error:
            what = str(error)
        except OutOfBounds as error:
            what = f"page out of bounds: {error}"
        return Fault(record.line, record.byte_offset, what)


def repair_text(text: str) -> tuple[str, tuple[str, ...]]:
    """The text without NUL, leading BOM and CRLF, and which of them it had. Repairing twice changes
    nothing."""
    repairs = []
    if "\0" in text:
        text = text.replace("\0", "")
        repairs.append("NUL")
    if text.startswith("\ufeff"):
        text = text.lstrip("\ufeff")
        repairs.append("BOM")
    if "\r\n" in text:
        *lines, last = text.split("\n")
        text = "\n".join([*(line.rstrip("\r") for line in lines), last])
        repairs.append("CRLF")
    return text, tuple(repairs)


def metadata_json(values: Mapping[str, Any]) -> bytes:
    """One JSON text for one mapping, whatever the order of its keys; what is not a number in JSON
    becomes null. Raises NestedTooDeeply."""
    if not values:
        return b"{}"
    try:
        return orjson.dumps(values, option=DUMP_OPTIONS, default=_plain)
    # Integers beyond 64 bits, keys that are not texts, or more than MAX_NESTING levels.
    except orjson.JSONEncodeError:
        _require_shallow(values)
    try:
        return _dump(values)
    except ValueError:  # NaN and infinity, which become null
        text = json.dumps(values, default=_plain)
        return _dump(json.loads(text, parse_constant=lambda name: None))


def _require_shallow(values: Mapping[str, Any]) -> None:
    """Raise NestedTooDeeply where more than MAX_NESTING lists and objects are in each other, the
    mapping among them."""
    level, held = 1, [v for v in values.values() if type(v) is dict or type(v) is list]
    while held and level < MAX_NESTING:
        members = [m for one in held for m in (one.values() if type(one) is dict else one)]
        level, held = level + 1, [m for m in members if type(m) is dict or type(m) is list]
    if held:
        raise NestedTooDeeply


def _excluded(values: Mapping[str, Any], config: InputConfig) -> bool:
    return any(
        _as_text(values.get(column)) in unwanted for column, unwanted in config.exclude.items()
    ) or any(
        _as_text(values.get(column)) not in wanted for column, wanted in config.include.items()
    )


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    _require_shallow({"": value})
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=_plain).strip('"')


def _dump(values: Mapping[str, Any]) -> bytes:
    text = json.dumps(
        values,
        sort_keys=True,
        ensure_ascii=False,
        separators=(",", ":"),
        allow_nan=False,
        default=_plain,
    )
    return text.encode("utf-8", "replace")


def _plain(value: Any) -> str:
    """Text for column types that JSON does not have: dates, decimals, bytes."""
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if isinstance(value, (datetime.date, datetime.time)) else str(value)
