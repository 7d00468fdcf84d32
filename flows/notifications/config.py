"""Sets who is told of which events, and how."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from llm_core.config import ConfigError, check_bounds
from llm_core.secrets import mask_secrets

Event = Literal["failed", "died", "quarantine", "drift", "late"]
EVENTS: tuple[Event, ...] = ("failed", "died", "quarantine", "drift", "late")


@dataclass(frozen=True)
class EmailConfig:
    """Mail through an SMTP server."""

    to: tuple[str, ...] = ()
    """Addresses of receivers. Empty: no mail is sent."""
    sender: str = "textmill@localhost"
    """Address of the sender."""
    host: str = "localhost"
    """Name of the server."""
    port: int = 587
    """Port of the server: usually 587 for starttls, 465 for tls, 25 for none."""
    security: Literal["starttls", "tls", "none"] = "starttls"
    """How the connection is protected."""
    user: str | None = None
    """Name to log in with. Null: none."""
    password_env: str | None = None
    """Environment variable that holds the password of `user`."""

    def __post_init__(self) -> None:
        for address in (*self.to, self.sender):
            if "@" not in address or not address.isprintable() or " " in address:
                raise ConfigError(
                    "to and sender must be addresses, such as to='[night@example.org]'"
                )
        if self.user and (self.security == "none" or not self.password_env):
            raise ConfigError(
                "user needs password_env and a protected connection; set security=starttls and"
                " password_env=NAME"
            )
        check_bounds(self, port=(1, 65535))


@dataclass(frozen=True)
class NotifyConfig:
    """Receivers of notices about a run. They are in no key and no run record."""

    on: tuple[Event, ...] = EVENTS
    """Events that are sent. died: the process of an earlier run ended unexpectedly. quarantine:
    more than source.max_bad_frac could not be read. late: see `late_after_s`."""
    webhook: str | None = None
    """Address that receives one JSON object by POST; chat servers show its `text`."""
    webhook_env: str | None = None
    """Environment variable that holds that address, if it is a secret."""
    email: EmailConfig = field(default_factory=EmailConfig)
    command: tuple[str, ...] = ()
    """Program with arguments that receives the same JSON object on stdin."""
    late_after_s: float | None = None
    """A run is late if it has not ended this long after its scheduled time, or after its start if
    it has none. Null: never."""
    timeout_s: float = 10.0
    """How long a run waits for all receivers together."""

    def __post_init__(self) -> None:
        if self.webhook and self.webhook_env:
            raise ConfigError("webhook and webhook_env exclude each other; give one of them")
        if self.webhook is not None and not _is_web(self.webhook):
            raise ConfigError(
                f"webhook ({mask_secrets(self.webhook)}) must be an http or https address, such as"
                " https://chat.example.org/hook"
            )
        check_bounds(self, timeout_s=(0.1, 300.0), late_after_s=(1.0, None))

    @property
    def channels(self) -> list[str]:
        """Names of the ways in which somebody is told."""
        ways = {
            "webhook": self.webhook or self.webhook_env,
            "email": self.email.to,
            "command": self.command,
        }
        return [name for name, is_set in ways.items() if is_set]

    def webhook_address(self) -> str:
        """Raises ConfigError where the variable that should hold it does not."""
        address = self.webhook or os.environ.get(self.webhook_env or "", "")
        if not _is_web(address):
            raise ConfigError(
                f"notify.webhook_env: the variable {self.webhook_env} holds no http or https"
                " address"
            )
        return address


def without_notify(overrides: Sequence[str]) -> list[str]:
    """Overrides that say what a run makes: whom it tells is personal, and in no record."""
    return [override for override in overrides if not is_personal(override)]


def is_personal(override: str) -> bool:
    """Whether an override says who is told."""
    return override.lstrip("+~").startswith(("notify.", "notify="))


def _is_web(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme in ("http", "https") and bool(parts.hostname)
