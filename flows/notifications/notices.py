"""Makes a notice of an event: one line that says what and why, and links for the rest.

A notice leaves this machine, so nothing in it is a secret or personal: causes are masked, scrubbed
and cut to one line, links lose their passwords.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_core.printing import one_line, shortened
from llm_core.secrets import mask_secrets

MOST_CHARS = 300
HAPPENED = {
    "failed": "failed",
    "died": "died",
    "quarantine": "stopped at too many unreadable records",
    "drift": "found drift",
    "late": "is late",
}


@dataclass(frozen=True)
class Notice:
    """What is told."""

    event: str
    flow: str
    cause: str
    run_id: str | None = None
    links: Mapping[str, str] = field(default_factory=dict)

    @property
    def line(self) -> str:
        run = f" {self.run_id}" if self.run_id else ""
        line = f"textmill {self.flow}{run} {HAPPENED[self.event]}: {clean(self.cause)}"
        return shortened(line, MOST_CHARS)

    def to_json(self) -> dict[str, Any]:
        """`text` for whoever shows one line, and its pieces."""
        return {
            "text": "\n".join([self.line, *(f"{k}: {v}" for k, v in self.clean_links().items())]),
            "event": self.event,
            "flow": self.flow,
            "run": self.run_id,
            "cause": clean(self.cause),
            "links": self.clean_links(),
            "host": platform.node(),
        }

    def clean_links(self) -> dict[str, str]:
        return {name: one_line(mask_secrets(link)) for name, link in self.links.items()}


def clean(text: str) -> str:
    """One line without secrets and personal data."""
    from tasks.pii.scrub import scrub  # compiled code, which runs that tell nothing do without

    return one_line(scrub(mask_secrets(text)))
