"""An evaluation on a GPU is another one than on a CPU where its numbers have another type."""

from pathlib import Path

import pytest

from flows.compose import compose
from tasks.runtime.inputs import InputDigests
from tasks.runtime.plan import make_nodes

CPU, GPU = "some processor x2", "some processor x2 + NVIDIA H200 x1"


@pytest.mark.parametrize(
    ("overrides", "differ"),
    [
        ([], True),
        (["evaluate.dtype=float32"], False),
        (["evaluate.device=cpu"], False),
        (["evaluate.device=cuda"], False),
    ],
)
def test_a_type_chosen_by_the_device_is_part_of_the_key(
    tmp_path: Path, overrides: list[str], differ: bool
) -> None:
    stages = compose(["run=demo", *overrides]).stages
    digests = InputDigests(tmp_path / "digests.json")
    cpu, gpu = (make_nodes("evaluate", stages, digests, device) for device in (CPU, GPU))
    assert (cpu["evaluate"].key != gpu["evaluate"].key) == differ
    assert cpu["train"].key == gpu["train"].key
