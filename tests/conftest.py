"""Which tests share a process: those of a file, and those that would compile the same kernels twice."""

from __future__ import annotations

import pytest

COMPILE_THE_SAME = {
    "pii": ("test_pii", "test_scrub", "test_documents", "test_edits", "test_evaluate"),
    "features": ("test_quality", "test_replay", "test_features", "test_scan", "test_analysis"),
    "dedup": ("test_dedup", "test_cuts", "test_near_duplicates", "test_minhash", "test_datasketch", "test_planted"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = item.path.stem
        groups = [group for group, files in COMPILE_THE_SAME.items() if name.startswith(files)]
        item.add_marker(pytest.mark.xdist_group(groups[0] if groups else item.path.as_posix()))
