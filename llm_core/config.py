"""Builds frozen config dataclasses strictly from plain mappings.

YAML gives values, dataclasses give meaning; `build` is the one door between them. It needs the
standard library only, so training ranks can read a written config without Hydra.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
import sys
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

T = TypeVar("T")


NOT_IN_KEY: Mapping[str, Any] = {"in_key": False}
"""Dataclass field metadata for settings that change how a result is made, never what it is."""

NOT_IN_PART_KEY: Mapping[str, Any] = {"in_part_key": False}
"""Dataclass field metadata for settings that each part carries in its own digest."""


IN_KEY_IF_SET: Mapping[str, Any] = {"in_key_if_set": True}
"""Dataclass field metadata for settings that came later: at its default a result keeps the key that
it had before."""


def in_key_by(name: str) -> Mapping[str, Any]:
    """Dataclass field metadata for a group of which most settings change how a result is made: in
    the key is what its property of this name gives, if that is anything."""
    return {"in_key_by": name}


ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(/|$)")
"""A scheme; `pathlib` makes `s3:/bucket` of `s3://bucket`. One letter would be a drive."""


class ConfigError(ValueError):
    """A user error: the message names the value, the rule and the way out."""


def build(cls: type[T], mapping: Mapping[str, Any], path: str = "") -> T:
    """Make a `cls` from a plain mapping; unknown keys, wrong types and missing values are errors.

    `path` is the dotted place of this mapping in the whole config, used in messages only.
    Raises ConfigError; rules checked in `__post_init__` are re-raised with their place.
    """
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{path or cls.__name__} must be a group of values, got {mapping!r}")
    hints = _type_hints(cls)  # type: ignore[arg-type]
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    for key in mapping:
        if key not in fields:
            where = f"{path}.{key}" if path else key
            raise ConfigError(f"{where} is not a known setting; {nearest(str(key), list(fields))}")
    values = {}
    for name, field in fields.items():
        where = f"{path}.{name}" if path else name
        if name in mapping:
            values[name] = _convert(hints[name], mapping[name], where)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{where} has no value; set it, e.g. {where}=...")
    try:
        return cls(**values)
    except ConfigError as error:
        # Groups inside this one have named their place already.
        if path and not str(error).startswith(path):
            # A rule begins with the setting it is about, or speaks of the whole group.
            sign = "." if re.split(r"\W", str(error))[0] in fields else ": "
            raise ConfigError(f"{path}{sign}{error}") from error
        raise


def to_plain(value: Any) -> Any:
    """The plain dict/list/scalar form of a config, the inverse of `build`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    return value


def plain_defaults(cls: type) -> dict[str, Any]:
    """The plain form of what a config is where nothing is given; required values are absent."""
    hints, values = _type_hints(cls), {}
    for field in dataclasses.fields(cls):
        if field.default is not dataclasses.MISSING:
            values[field.name] = to_plain(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            values[field.name] = to_plain(field.default_factory())
        elif dataclasses.is_dataclass(hints[field.name]):
            values[field.name] = plain_defaults(hints[field.name])
    return values


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    factory = field.default_factory
    default = field.default if factory is dataclasses.MISSING else factory()
    return bool(value == default)


def key_config(config: Any, of_parts: bool = False) -> dict[str, Any]:
    """The part of a config dataclass that decides a result, and so belongs in its key, as plain
    values.

    of_parts: without what parts have in their own digests, so that it can grow and leave finished
    parts good.
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        if field.metadata.get("in_key_if_set") and _is_default(field, getattr(config, field.name)):
            continue
        if name := field.metadata.get("in_key_by"):
            if decides := getattr(getattr(config, field.name), name):
                values[field.name] = decides
            continue
        if field.metadata.get("in_key", True) and not (
            of_parts and not field.metadata.get("in_part_key", True)
        ):
            values[field.name] = _key_value(getattr(config, field.name))
    return values


def check_bounds(config: Any, **bounds: tuple[float, float | None]) -> None:
    """Raise ConfigError for the first of these fields that is less or more than its bounds allow.

    Without an upper bound (None) any larger value passes, and a field that is None is not checked.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    for name, (least, most) in bounds.items():
        value = getattr(config, name)
        if value is not None and (value < least or (most is not None and value > most)):
            rule = f"at least {least}" if most is None else f"from {least} to {most}"
            default = "null" if defaults[name] is None else defaults[name]
            raise ConfigError(f"{name} ({value}) must be {rule}; the default is {default}")


def local_path(value: str | Path, where: str) -> Path:
    """A local path. Raises ConfigError for an address, which would become a folder `s3:`."""
    if ADDRESS.match(str(value)):
        raise ConfigError(
            f"{where} ({value}) is an address, and must be a path of this machine; only"
            " source.paths, and store as s3://bucket/prefix, may be elsewhere: name a local file"
            " or folder, or one on a disk that is mounted here"
        )
    return Path(value)


def nearest(word: str, known: list[str]) -> str:
    """A hint that names the closest known words, or lists them when none is close."""
    close = difflib.get_close_matches(word, known, n=2, cutoff=0.55)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "known: " + ", ".join(sorted(known))


def _key_value(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return key_config(value)
    if isinstance(value, Mapping):
        return {name: _key_value(one) for name, one in value.items()}
    return [_key_value(one) for one in value] if isinstance(value, (list, tuple)) else value


@functools.cache
def _type_hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(args, value, where)
    if value is None:
        raise ConfigError(f"{where} must not be null; give it a value")
    if origin is Literal:
        if value not in args:
            raise ConfigError(
                f"{where} ({value}) is not a choice; {nearest(str(value), [str(a) for a in args])}"
            )
        return value
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else build(hint, value, where)  # type: ignore[arg-type]
    if origin in (tuple, list):
        return _convert_sequence(origin, args, value, where)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} ({value!r}) must be a mapping")
        return {str(k): _convert(args[1], v, f"{where}.{k}") for k, v in value.items()}
    return _convert_scalar(hint, value, where)


def _convert_union(args: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in args:
        return None
    errors = []
    for arg in args:
        try:
            if arg is not type(None):
                return _convert(arg, value, where)
        except ConfigError as error:
            errors.append(error)
    raise errors[0]


def _convert_sequence(origin: type, args: tuple[Any, ...], value: Any, where: str) -> Any:
    if isinstance(value, (str, bytes)) or not isinstance(value, (list, tuple)):
        raise ConfigError(f"{where} ({value!r}) must be a list; write {where}='[{value!s}]'")
    items = args[:1] if (origin is list or (len(args) == 2 and args[1] is Ellipsis)) else args
    if len(items) > 1 and len(items) != len(value):
        raise ConfigError(f"{where} must have {len(items)} values, got {len(value)}")
    hints = items if len(items) > 1 else items * len(value)
    return origin(
        _convert(h, v, f"{where}[{i}]") for i, (h, v) in enumerate(zip(hints, value, strict=True))
    )


def _convert_scalar(hint: type, value: Any, where: str) -> Any:
    if hint is Path and isinstance(value, (str, Path)) and str(value).strip():
        return local_path(value, where)
    if hint in (bool, str) and isinstance(value, hint):
        return value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # No setting means anything as NaN or infinity, and comparisons let a NaN through: -1 < nan is
    # as false as nan < -1.
    if hint is float and is_number and abs(value) <= sys.float_info.max:
        return float(value)
    # 1e3 is a float in YAML; a whole number written that way is meant as a count.
    if hint is int and is_number and abs(value) < 2**63 and value == int(value):
        return int(value)
    name = {
        bool: "true or false",
        int: "a whole number of at most 64 bits",
        float: "a finite number",
        str: "text",
        Path: "a path",
    }
    raise ConfigError(
        f"{where} ({value!r}) must be {name.get(hint, getattr(hint, '__name__', str(hint)))}"
    )
