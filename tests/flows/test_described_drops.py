"""The end of a run says which reason took most documents at each stage."""

from __future__ import annotations

from tests.flows.conftest import RunCli


def test_each_stage_that_dropped_documents_names_its_largest_reason(
    stand_in_stages: list[str], run_cli: RunCli
) -> None:
    said = run_cli("run")["out"].splitlines()
    assert "dropped ingest                1   most by EMPTY (1)" in said
    assert "        quality               2   most by TOO_FEW_WORDS (2)" in said
    assert "judges  quality, pii and contamination each read all that ingest kept" in said
