"""Layers on grids of tensor ranks are those of one process, and send and keep what formulas say."""

import json

import pytest

from tests.support.distributed.processes import run_program

KINDS = {4: ("2d",), 8: ("2.5d", "3d")}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    layers: dict[str, dict[str, float]] = {}
    for world in KINDS:
        folder = tmp_path_factory.mktemp("grids")
        run_program("tests.support.distributed.grids", [str(folder), str(world)], folder)
        layers |= json.loads((folder / "found.json").read_text("utf-8"))
    return layers


@pytest.mark.parametrize("kind", [kind for kinds in KINDS.values() for kind in kinds])
@pytest.mark.parametrize("layer", ["into", "out", "embed", "rms", "layer"])
def test_a_layer_and_its_gradients_are_those_of_one_process(
    found: dict[str, dict[str, float]], kind: str, layer: str
) -> None:
    differences = {
        name: value
        for name, value in found[f"{kind} {layer}"].items()
        if name in ("out", "input", "weight", "bias")
    }
    least = {"embed": 2, "layer": 4}.get(layer, 3)
    assert len(differences) == least and max(differences.values()) < 1e-12


@pytest.mark.parametrize("kind", [kind for kinds in KINDS.values() for kind in kinds])
def test_a_process_receives_what_the_formulas_say(
    found: dict[str, dict[str, float]], kind: str
) -> None:
    for layer in ("into", "out", "embed"):
        assert found[f"{kind} {layer}"]["received"] == pytest.approx(
            found[f"{kind} {layer}"]["formula"]
        )


@pytest.mark.parametrize("layer", ["into", "out"])
def test_squares_keep_their_own_blocks_and_cubes_what_they_gathered(
    found: dict[str, dict[str, float]], layer: str
) -> None:
    for kind, copies in (("2d", 1), ("2.5d", 1), ("3d", 2)):
        made = found[f"{kind} {layer}"]
        assert made["kept"] == copies * made["held"]
