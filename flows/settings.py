"""Lists every setting: its name, type, unit, default and meaning.

Types come from the config dataclasses, meanings from the docstrings of their attributes and
classes. Those of attributes are read from the source, since Python does not keep them.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flows.compose import compose
from flows.run_config import RunConfig
from llm_core.config import plain_defaults

REQUIRED = object()
"""Default of a setting without one."""

# The last word of a number's name, where it is not itself what is counted.
_UNITS = {
    "every": "steps",
    "frac": "a share, 0 to 1",
    "len": "tokens",
    "s": "seconds",
    "std": "standard deviations",
}
_COUNTED = re.compile(
    "bytes|chars|units|tokens|steps|sequences|documents|samples|layers|heads|processes|threads"
    "|batches|workers|prompts|epochs"
)
_SCALARS: dict[Any, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
    type(None): "null",
    Any: "any value",
}


@dataclass(frozen=True)
class Setting:
    """A field of a config, or a group of fields, by its dotted name."""

    name: str
    """NAME stands for a word of the user's, [] for each entry of a list."""
    hint: Any
    default: Any
    """Plain value of a run without overrides."""
    meaning: str

    @property
    def group(self) -> str:
        return self.name.partition(".")[0]

    @property
    def is_group(self) -> bool:
        return dataclasses.is_dataclass(self.hint)

    @property
    def unit(self) -> str | None:
        if not {int, float} & {self.hint, *typing.get_args(self.hint)}:
            return None
        last = re.split(r"[._]", self.name)[-1]
        return _UNITS.get(last) or (last if _COUNTED.fullmatch(last) else None)


@functools.cache
def settings() -> dict[str, Setting]:
    """Every setting by name; a group comes before its fields."""
    return {one.name: one for one in _walk(RunConfig, compose().resolved(), "")}


def _walk(cls: type, values: dict[str, Any], prefix: str) -> Iterator[Setting]:
    hints, meanings = typing.get_type_hints(cls), _attribute_docstrings(cls)
    for field in dataclasses.fields(cls):
        hint, default = hints[field.name], values.get(field.name, REQUIRED)
        name, inner = prefix + field.name, inner_dataclass(hint)
        about = meanings.get(field.name) or (inner and _class_docstring(inner[1])) or ""
        yield Setting(name, hint, default, about)
        if inner is not None:
            step, config = inner
            given = default if dataclasses.is_dataclass(hint) else plain_defaults(config)
            yield from _walk(config, given, f"{name}{step}.")


def inner_dataclass(hint: Any) -> tuple[str, type] | None:
    """The config that a type holds, and the step of a dotted name that leads to it."""
    if dataclasses.is_dataclass(hint):
        return "", typing.cast(type, hint)
    steps: dict[Any, str] = {dict: ".NAME", tuple: "[]"}
    step = steps.get(typing.get_origin(hint), "")
    for part in typing.get_args(hint):
        if dataclasses.is_dataclass(part):
            return step, typing.cast(type, part)
        # A list, where a name may stand for one.
        if typing.get_origin(part) is tuple and (inner := inner_dataclass(part)):
            return inner
    return None


@functools.cache
def _attribute_docstrings(cls: type) -> dict[str, str]:
    """The string below each attribute, those of base classes included."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        body = typing.cast(ast.ClassDef, tree.body[0]).body
        for before, after in itertools.pairwise(body):
            if (
                isinstance(before, ast.AnnAssign)
                and isinstance(before.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                found[before.target.id] = _one_line(str(after.value.value))
    return found


def _class_docstring(cls: type) -> str:
    written = inspect.getdoc(cls) or ""
    # A dataclass without a docstring gets its signature.
    return "" if written.startswith(f"{cls.__name__}(") else _one_line(written.split("\n\n")[0])


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def type_text(hint: Any) -> str:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return _either(map(str, parts))
    if origin in (typing.Union, types.UnionType):
        return _either(type_text(part) for part in parts)
    if origin is tuple and parts[-1] is not Ellipsis:
        return f"list of {len(parts)}: " + ", ".join(type_text(part) for part in parts)
    if origin is tuple:
        return f"list of {type_text(parts[0])}"
    if origin is dict:
        return f"mapping to {type_text(parts[1])}"
    return "group" if dataclasses.is_dataclass(hint) else _SCALARS[hint]


def _either(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last
