"""Triggers are found wherever they stand in the blocks that are compared at once."""

from __future__ import annotations

import pytest

from tasks.pii.config import PiiConfig
from tasks.pii.spans import find_spans


@pytest.mark.parametrize(
    ("found", "type_"),
    [
        (b"jane.doe@example.org", "EMAIL"),
        (b"198.51.100.7", "IP"),
        (b"0a:1b:2c:3d:4e:5f", "MAC"),
        (b"password=dj3Kw9xQ2v", "SECRET"),
    ],
)
def test_a_trigger_is_found_at_every_place_of_a_block(found: bytes, type_: str) -> None:
    config = PiiConfig()
    for before in range(130):
        for behind in (b"", b" " + b"x " * 70):
            [(_, end, name)] = find_spans(b"x" * before + b" " + found + behind, config)
            assert (end, name) == (before + 1 + len(found), type_), before
