"""Imports between the modules of the engine, those for types and within functions included."""

from graphlib import TopologicalSorter

import grimp
import pytest

MAX_DEPTH = 16


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    graph = grimp.build_graph("llm_core", cache_dir=None)
    return {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}


def test_no_modules_import_each_other_in_a_circle(imports: dict[str, set[str]]) -> None:
    TopologicalSorter(imports).prepare()  # CycleError names the circle


def test_a_chain_of_imports_has_at_most_sixteen_modules(imports: dict[str, set[str]]) -> None:
    depth: dict[str, int] = {}
    for name in TopologicalSorter(imports).static_order():
        depth[name] = 1 + max((depth[other] for other in imports[name]), default=0)
    assert not {name: found for name, found in depth.items() if found > MAX_DEPTH}
