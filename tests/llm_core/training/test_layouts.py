"""A layout that cannot run is refused with its product and the nearest layouts that can."""

import dataclasses
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from llm_core.parallel.config import ParallelConfig
from llm_core.training.run_config import check_run, check_shares, nearest_layouts
from tests.support.engine.small_runs import MODEL, TRAIN


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        (
            {"kind": "hsdp", "num_processes": 8},
            (
                r"dp_shard .0. must divide the 8 .*dp_shard=2 or 4 .*8 = pp 1 x dp 8 x cp 1 x tp 1;"
                r" nearest .* dp 8 .dp_shard 2. "
            ),
        ),
        (
            {"kind": "hsdp", "num_processes": 8, "pp": 2, "dp_shard": 4},
            (
                r"the 4 processes .*try dp_shard=2 .* = pp 2 x dp 4 .dp_shard 4. x cp 1 x tp 1;"
                r" nearest .* pp 2 x dp 4 .dp_shard 2. "
            ),
        ),
        (
            {"kind": "hsdp", "num_processes": 2, "dp_shard": 2},
            r"into groups of two or more; use fsdp, or more processes",
        ),
        (
            {"kind": "zero1", "num_processes": 4, "dp_shard": 2},
            r"dp_shard .2. belongs to kind=hsdp, kind is zero1",
        ),
    ],
)
def test_impossible_shards_are_refused_with_the_product_and_the_possible_ones(
    values: dict[str, Any], rule: str
) -> None:
    with pytest.raises(ConfigError, match=rule):
        check_run(
            MODEL, dataclasses.replace(TRAIN, micro_batch_sequences=1), ParallelConfig(**values)
        )


DEGREES = st.integers(1, 5)


@settings(deadline=None)
@given(
    st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16]),
    DEGREES,
    DEGREES,
    DEGREES,
    st.sampled_from([0, 2, 4]),
    st.sampled_from([2, 4, 6]),
)
def test_a_refused_layout_shows_its_product_once_and_only_such_as_can_run(
    world: int, pp: int, cp: int, tp: int, dp_shard: int, layers: int
) -> None:
    model = dataclasses.replace(MODEL, num_layers=layers)
    train = dataclasses.replace(TRAIN, micro_batch_sequences=1)
    kind = "hsdp" if dp_shard else "fsdp"
    parallel = ParallelConfig(kind, world, pp=pp, cp=cp, tp=tp, dp_shard=dp_shard)  # type: ignore[arg-type]
    try:
        check_run(model, train, parallel)
    except ConfigError as error:
        said, _, near = str(error).partition("nearest that can run: ")
        product = r"pp (\d+) x dp (\d+)(?: .dp_shard (\d+).)? x cp (\d+) x tp (\d+)"
        offered = re.findall(product, near)
        divides = world % (pp * cp * tp) == 0
        assert (
            world == 1
            or len(re.findall(f"num_processes {world} = {product}; ", said))
            == len(re.findall(product, said))
            == divides
        )
        for values in offered:
            pp, dp, dp_shard, cp, tp = (int(value or 0) for value in values)
            assert pp * dp * cp * tp == world
            check_run(
                model, train, dataclasses.replace(parallel, pp=pp, cp=cp, tp=tp, dp_shard=dp_shard)
            )
        if fewer := re.search(r"; num_processes=(\d+) can", str(error)):
            check_run(model, train, dataclasses.replace(parallel, num_processes=int(fewer[1])))
        assert offered or fewer or world == 1 or "as many or fewer can run" in said


def test_the_nearest_layout_of_one_that_can_run_is_itself() -> None:
    parallel = ParallelConfig("hsdp", 16, pp=2, tp=2, dp_shard=2)
    found = nearest_layouts(parallel, check_shares)
    assert len(found) == 2 and found[0] == parallel and found[1].num_processes == 16
