"""Says whether a run can work on this machine, what it would lose, and what to do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import click

from flows.commands.command import command, with_source
from flows.compose import compose
from flows.console import table
from llm_core.printing import show

CANNOT_WORK = 2

_JSON = click.Option(["--json", "as_json"], is_flag=True, help="Answer in JSON.")


@command("[OVERRIDES]...", options=[_JSON])
def doctor(words: Sequence[str], as_json: bool) -> int:
    """Packages, GPUs, memory, disks of store and state, clock, limits and ports. The exit code is
    2 where no run can work."""
    from flows.commands.machine.checks import examine

    found = list(examine(compose(with_source(words))))
    broken = [one.check for one in found if one.state == "broken"]
    if as_json:
        show(json.dumps({"usable": not broken, "checks": [asdict(one) for one in found]}))
    else:
        rows = [(one.check, one.state, one.found, one.advice) for one in found]
        show(table(("check", "state", "found", "what to do"), rows))
        show(f"\n{'a run cannot work: ' + ', '.join(broken) if broken else 'a run can work'}")
    return CANNOT_WORK if broken else 0
