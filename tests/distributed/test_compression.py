"""Sums in fewer bytes are those of the papers, and what they lose is carried on exactly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.distributed.compressed import STEPS
from tests.support.distributed.plain_sums import METHODS
from tests.support.distributed.processes import run_program


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of each method, on four gloo processes in float64."""
    folder = tmp_path_factory.mktemp("compressed")
    run_program("tests.support.distributed.compressed", [str(folder)], folder)
    answers: dict[str, Any] = json.loads((folder / "found.json").read_text("utf-8"))
    return answers


@pytest.mark.parametrize("method", METHODS)
def test_every_step_is_that_of_the_plain_form_in_one_process(
    found: dict[str, Any], method: str
) -> None:
    errors = [found[method][f"step {step}"] for step in range(1, STEPS + 1)]
    assert max(errors) <= 1e-10, errors


@pytest.mark.parametrize("method", METHODS)
def test_all_processes_keep_the_same_bits(found: dict[str, Any], method: str) -> None:
    assert found[method]["agree"]


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_goes_on_to_the_bit_with_what_each_process_has_lost(
    found: dict[str, Any], method: str
) -> None:
    assert found[method]["resumed"]


@pytest.mark.parametrize("method", METHODS)
def test_a_skipped_step_leaves_what_was_lost_as_it_was(found: dict[str, Any], method: str) -> None:
    assert found[method]["skipped"]


def test_signs_send_a_thirtieth_of_the_bytes_and_eight_bits_a_quarter(
    found: dict[str, Any],
) -> None:
    assert found["bytes"]["signs"] >= 30
    assert found["bytes"]["int8"] >= 3.95
