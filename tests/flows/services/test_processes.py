"""Processes are recognised while others come and go."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Any

import pytest

from flows.services.dead_runs import _has_process
from flows.services.processes import descendants


def test_a_process_that_ends_while_all_are_listed_stops_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look = os.stat

    def look_at_one_that_ends(path: Any, **more: Any) -> os.stat_result:
        if re.fullmatch(r"/proc/\d+/\w+", str(path)):
            raise ProcessLookupError(path)
        return look(path, **more)

    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            monkeypatch.setattr(os, "stat", look_at_one_that_ends)
            assert child.pid in descendants([os.getpid()])
            assert not _has_process("no flow run has this id")
        finally:
            child.kill()
