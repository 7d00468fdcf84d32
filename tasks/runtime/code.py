"""Digests the code that a stage can run: the definitions it reaches, wherever they live.

From the modules a stage starts in, every name that a definition loads is followed to the definition
it stands for, through imports anywhere in a file. The digest is that of the set of definitions
reached: their syntax trees without docstrings, comments, layout and import paths. So moving a
function, renaming a module or rewriting prose leaves every artifact valid, and editing a function
rebuilds the stages that reach it and no others. A statement that defines nothing, such as a call at
import, counts wherever anything of its module is reached.

Over-inclusion is harmless and happens: a local variable with the name of a function reaches the
function. What is only named in a string is not seen; stages declare such modules as entry points,
and files that are not Python, such as templates, as data files.
Syntax trees are read once per content of a file and kept in the user's cache folder, as JSON.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from llm_core.durable import write_durably
from llm_core.private_folder import cache_folder

ROOT = Path(__file__).resolve().parents[2]
FIRST_PARTY = ("tasks", "llm_core")
TABLE_VERSION = 1
"""Of the tables in the cache: to be raised when this file reads sources in another way."""
MAX_TABLES = 5000
EFFECTS = ""
"""The name under which a module's statements that define nothing are kept."""


class Target(NamedTuple):
    """What an imported name stands for: a definition of a module, or the module itself."""

    module: str
    name: str | None


class Definition(NamedTuple):
    """A statement of a module: the digest of its syntax tree, and the names it loads."""

    digest: str
    names: list[str]
    imports: dict[str, list[str]]
    """Local name → `module` or `module, name`, of the imports inside it."""


class Source(NamedTuple):
    """A module: its definitions by name, and what its imports bind."""

    definitions: dict[str, list[Definition]]
    imports: dict[str, list[str]]


def code_digest(
    modules: Iterable[str],
    data_files: Iterable[str] = (),
    root: Path = ROOT,
    sources: Sources | None = None,
) -> str:
    """Digest of every definition that `modules` reach, and of the data files they read.

    sources: of the root, for a caller who asks about several stages at once.
    """
    reached = reached_definitions(modules, root, sources)
    digests = sorted({definition.digest for found in reached.values() for definition in found})
    digests += sorted(line for name in data_files for line in _file_digests(root / name))
    return hashlib.blake2b("\n".join(digests).encode(), digest_size=8).hexdigest()


def _file_digests(place: Path) -> Iterator[str]:
    """A line for a file, or for every file below a folder: its name there, and its content."""
    files = [place] if place.is_file() else [p for p in place.rglob("*") if p.is_file()]
    if not files:
        raise FileNotFoundError(f"{place} is a data file of a stage and does not exist")
    for file in files:
        content = hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest()
        yield f"{file.relative_to(place.parent).as_posix()} {content}"


def reached_definitions(
    modules: Iterable[str], root: Path = ROOT, sources: Sources | None = None
) -> dict[tuple[str, str], list[Definition]]:
    """(module, name) → definition, of all that code in `modules` can run."""
    reached: dict[tuple[str, str], list[Definition]] = {}
    entered: set[str] = set()
    pending = [Target(module, None) for module in modules]
    sources = sources or Sources(root)
    while pending:
        module, name = pending.pop()
        source = sources.of(module)
        if source is None:
            continue
        if module not in entered:
            entered.add(module)
            # Importing a module runs it and the packages it is in: `a`, `a.b`, `a.b.c`.
            packages = accumulate(module.split("."), "{}.{}".format)
            pending += [Target(package, EFFECTS) for package in packages]
        if name is None:
            pending += [Target(module, each) for each in source.definitions]
            continue
        if (module, name) in reached:
            continue
        reached[module, name], targets = sources.behind(module, name)
        pending += targets
    sources.keep()
    return {place: found for place, found in reached.items() if found}


def _uses(
    used: str, module: str, source: Source, definition: Definition, sources: Sources
) -> Iterator[Target]:
    """What a loaded name, or `name.attribute`, stands for."""
    first, _, attribute = used.partition(".")
    if first in source.definitions:
        yield Target(module, first)
    for imports in (definition.imports, source.imports):
        for target in _targets(imports.get(first, []), sources):
            yield target._replace(name=attribute or None) if target.name is None else target


def _targets(imported: list[str], sources: Sources) -> Iterator[Target]:
    if len(imported) == 2 and sources.of(".".join(imported)) is None:
        yield Target(imported[0], imported[1])
    elif imported:
        yield Target(".".join(imported), None)


class Sources:
    """The modules below a root, read when they are asked for, once each."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._read: dict[str, Source | None] = {}
        self._behind: dict[tuple[str, str], tuple[list[Definition], list[Target]]] = {}
        self._file = cache_folder("code") / f"definitions-{TABLE_VERSION}.json"
        self._num_known = len(_tables(self._file))

    def of(self, module: str) -> Source | None:
        if module not in self._read:
            path = _module_path(module, self._root)
            self._read[module] = (
                None if path is None else _source(module, path, path.stat().st_mtime_ns, self._file)
            )
        return self._read[module]

    def behind(self, module: str, name: str) -> tuple[list[Definition], list[Target]]:
        """What a name of a module that is there is defined by, and what those definitions use."""
        if (module, name) not in self._behind:
            source = self.of(module)
            assert source is not None
            found = source.definitions.get(name, [])
            targets: list[Target] = []
            if not found and name in source.imports:
                targets += _targets(source.imports[name], self)
            for definition in found:
                for used in definition.names:
                    targets += _uses(used, module, source, definition, self)
            self._behind[module, name] = found, list(dict.fromkeys(targets))
        return self._behind[module, name]

    def keep(self) -> None:
        """Add to the cache what was read."""
        tables = _tables(self._file)
        if len(tables) > self._num_known:
            write_durably(self._file, json.dumps(tables))


# The time of change is an argument so that a file edited in a long process is read again.
@functools.lru_cache(maxsize=1024)
def _source(module: str, path: Path, _mtime_ns: int, cache: Path) -> Source:
    data = path.read_bytes()
    tables = _tables(cache)
    key = hashlib.blake2b(f"{module}\0".encode() + data, digest_size=16).hexdigest()
    if key not in tables:
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        tables[key] = _read_source(data, package)
    definitions, imports = tables[key]
    return Source(
        {n: [Definition(*each) for each in found] for n, found in definitions.items()}, imports
    )


@functools.lru_cache(maxsize=1)
def _tables(file: Path) -> dict[str, Any]:
    """{digest of a file: its Source}, as kept by earlier processes.

    One dict for the whole process: `_source` adds to it, `_Sources.keep` writes it.
    """
    try:
        tables: dict[str, Any] = json.loads(file.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    # Sources of old editions go with all others once there are far more than a tree of ours has.
    return tables if len(tables) < MAX_TABLES else {}


def _module_path(name: str, root: Path) -> Path | None:
    if name.split(".")[0] not in FIRST_PARTY:
        return None
    base = root.joinpath(*name.split("."))
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if candidate.exists():
            return candidate
    return None


def _read_source(data: bytes, package: str) -> Source:
    """Split a module into its definitions."""
    definitions: dict[str, list[Definition]] = {}
    imports: dict[str, list[str]] = {}
    for node in ast.parse(data).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imports |= _imports(node, package)
        elif not _is_docstring(node):
            bound = _bound_names(node)
            definition = _definition(node, package)
            for name in bound or [EFFECTS]:
                definitions.setdefault(name, []).append(definition)
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                imports |= definition.imports
    return Source(definitions, imports)


def _bound_names(node: ast.stmt) -> list[str]:
    """Names of the module that a statement of it defines, by assignment or in a branch."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return [
            n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        ]
    inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
    return [name for child in inner for name in _bound_names(child)]


def _definition(node: ast.stmt, package: str) -> Definition:
    tree = _Tree(package)
    text = repr(tree.plain(node)).encode()
    digest = hashlib.blake2b(text, digest_size=8).hexdigest()
    return Definition(digest, list(tree.names), tree.imports)


class _Tree:
    """Reads a syntax tree in one pass: its plain form, the names it loads and its imports."""

    def __init__(self, package: str) -> None:
        self._package = package
        self.names: dict[str, None] = {}
        self.imports: dict[str, list[str]] = {}

    def plain(self, node: Any) -> Any:
        """Nested tuples, the same in every Python: without docstrings, import paths and empty
        fields."""
        if isinstance(node, list):
            return [self.plain(each) for each in node if not _is_docstring(each)]
        if not isinstance(node, ast.AST):
            return node
        if isinstance(node, ast.Name):
            self.names[node.id] = None
            return node.id
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            # `module.name` reaches that name alone, not all of the module.
            self.names[f"{node.value.id}.{node.attr}"] = None
            return node.value.id, node.attr
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self.imports |= _imports(node, self._package)
            return ("import", sorted(alias.name.rpartition(".")[2] for alias in node.names))
        values = ((name, getattr(node, name, None)) for name in node._fields if name != "ctx")
        plain = [(name, self.plain(value)) for name, value in values if value not in (None, [])]
        return (type(node).__name__, *plain)


def _imports(node: ast.Import | ast.ImportFrom, package: str) -> dict[str, list[str]]:
    """{local name: what it stands for} of an import of first-party code."""
    if isinstance(node, ast.Import):
        found = {alias.asname or alias.name: [alias.name] for alias in node.names}
    else:
        parents = package.split(".")
        above = parents[: len(parents) - node.level + 1] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        found = {alias.asname or alias.name: [base, alias.name] for alias in node.names}
    return {name: to for name, to in found.items() if to[0].split(".")[0] in FIRST_PARTY}


def _is_docstring(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
