"""Turns the overrides of a sweep into what varies and over which values.

Hydra's sweeper is not asked: it would expand the overrides a second time, in another order where
they are shuffled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from hydra.core.override_parser.types import IntervalSweep

from flows.compose import hydra_over, in_one_line, is_append, parse_override
from flows.conf_files import CONF_DIR
from llm_core.config import ConfigError

SIGNIFICANT_DIGITS = 4
"""Of values between the ends of an interval: enough for any setting, and short in names."""


@dataclass(frozen=True)
class Interval:
    """Numbers between two ends, both included. Whole ones where the ends are whole numbers."""

    low: float
    high: float
    is_log: bool

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def as_text(self, value: float) -> str:
        """A value of the interval, in a few digits."""
        if self.is_whole:
            return str(int(value))
        short = float(f"{value:.{SIGNIFICANT_DIGITS}g}")
        return repr(min(max(short, self.low), self.high))


@dataclass(frozen=True)
class Dimension:
    """One override of a sweep: a setting or group, and the values it takes."""

    key: str
    """As an override begins, with the signs before `=`."""
    values: tuple[str, ...]
    """Of an interval, its ends."""
    interval: Interval | None = None

    @property
    def name(self) -> str:
        return self.key.strip("+")

    @property
    def varies(self) -> bool:
        return len(self.values) > 1

    def override(self, value: str) -> str:
        return f"{self.key}={value}"


def dimensions(overrides: Sequence[str], conf_dir: Path = CONF_DIR) -> list[Dimension]:
    """What `a=1,2 b=interval(0,1)` vary, in order. Raises ConfigError where there is no value."""
    found: dict[object, Dimension] = {}
    with hydra_over(conf_dir) as hydra:
        for number, text in enumerate(overrides):
            override = parse_override(text)
            override.config_loader = hydra.config_loader  # lists choices for glob
            appends = is_append(text)
            key = override.get_key_element() + "+" * appends
            interval = None
            with in_one_line([text]):
                if override.is_interval_sweep():
                    interval = _interval(text, override.value())
                    values = [interval.as_text(end) for end in (interval.low, interval.high)]
                elif override.is_sweep_override():
                    values = list(override.sweep_string_iterator())
                else:
                    values = [override.get_value_element_as_str()]
            if not values:
                name = override.key_or_group
                raise ConfigError(
                    f"{text} gives no value; write values or choices of {name}, e.g. {name}=a,b"
                )
            # The last override of a setting counts, but every append is applied.
            place = number if appends else key
            found[place] = Dimension(key, tuple(values), interval)
    return list(found.values())


def further(params: Mapping[str, str], given: Sequence[Dimension]) -> list[Dimension]:
    """The dimensions of `sweep.params` that the command line does not name."""
    known = {dimension.name for dimension in given}
    return dimensions([f"{name}={text}" for name, text in params.items() if name not in known])


def listed_points(found: Sequence[Dimension]) -> list[list[str]]:
    """Every combination, the last dimension changing fastest. Raises ConfigError for intervals."""
    for dimension in found:
        if dimension.interval:
            low, high = dimension.values
            raise ConfigError(
                f"{dimension.name} has an interval, of which not every value can be run; search"
                f" with sweep.sampler=tpe, or give values: {dimension.name}={low},{high}"
            )
    named = [[dimension.override(value) for value in dimension.values] for dimension in found]
    return [list(point) for point in product(*named)]


def corners(found: Sequence[Dimension]) -> list[list[str]]:
    """The first value of every dimension, and each further value of one of them."""
    first = [dimension.override(dimension.values[0]) for dimension in found]
    return [first] + [
        [*first[:place], dimension.override(value), *first[place + 1 :]]
        for place, dimension in enumerate(found)
        for value in dimension.values[1:]
    ]


def _interval(text: str, value: object) -> Interval:
    assert isinstance(value, IntervalSweep)
    low, high, is_log = value.start, value.end, "log" in value.tags
    if low is None or high is None or not low < high or (is_log and low <= 0):
        raise ConfigError(
            f"{text} is not an interval; its first end must be less than the second, and more than"
            " 0 with log"
        )
    return Interval(low, high, is_log)
