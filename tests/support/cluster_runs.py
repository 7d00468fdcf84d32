"""Refreshes whose parts are worked on by a Ray or Dask cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.whole_runs import SMALL

CLUSTERS = [
    "dask",
    pytest.param(
        "ray",
        marks=pytest.mark.skipif(
            sys.version_info >= (3, 13), reason="prefect-ray has no release for it"
        ),
    ),
]


def refresh(corpus: Path, place: Path, *overrides: str) -> Any:
    """The state of a flow run in this process that keeps everything under `place`."""
    from flows.pipeline import refresh

    places = [
        f"source.paths=['{corpus}']",
        f"store='{place / 'store'}'",
        f"state='{place / 'state'}'",
    ]
    kept = [o for o in SMALL if not o.startswith("orchestrator=")]
    return refresh(overrides=[*kept, *places, "num_workers=2", *overrides], return_state=True)
