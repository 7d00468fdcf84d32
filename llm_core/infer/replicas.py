"""Splits the items of a call among processes that each hold the whole model.

A model that was loaded into several (`llm_core.infer.ranks.team`) knows them; a function that is
marked here is then run in each of them on a part of its items, and gives all results in order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, runtime_checkable

from llm_core.model.transformer import Transformer

Item = TypeVar("Item")
Result = TypeVar("Result")
P = ParamSpec("P")


class Replicas(Protocol):
    """The processes that hold a model."""

    def run(
        self, function: Callable[..., Sequence[Any]], items: Sequence[Any], *about: Any
    ) -> list[Any]:
        """A result for each item. Items and `about` are plain values, or arrays of them."""


@runtime_checkable
class IsReplicated(Protocol):
    """A model in several processes."""

    replicas: Replicas


Call = Callable[Concatenate[Transformer, Sequence[Item], P], list[Result]]


def among_replicas(
    read: Callable[[Any], Result],
) -> Callable[[Call[Item, P, Result]], Call[Item, P, Result]]:
    """Mark a function of a model and items, whose results do not depend on each other. read: a
    result of the plain values of another process."""

    def mark(function: Call[Item, P, Result]) -> Call[Item, P, Result]:
        @functools.wraps(function)
        def split(
            model: Transformer, items: Sequence[Item], *about: P.args, **named: P.kwargs
        ) -> list[Result]:
            if not isinstance(model, IsReplicated):
                return function(model, items, *about, **named)
            assert not named, "arguments are told to other processes by their places"
            return [read(each) for each in model.replicas.run(function, items, *about)]

        return split

    return mark
