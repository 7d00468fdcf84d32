"""Delivers a notice by webhook, e-mail and command, in bounded time.

Every channel works in a thread of its own and all share one deadline. What fails or is not ready by
then is one warning without the address; the outcome of the run is the same.
"""

from __future__ import annotations

import json
import os
import signal
import smtplib
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from http.client import HTTPException
from typing import IO, Any

from flows.console import warn
from flows.notifications.config import NotifyConfig
from flows.notifications.notices import Notice
from llm_core.config import ConfigError

REASONS = (
    OSError,
    HTTPException,
    smtplib.SMTPException,
    subprocess.SubprocessError,
    ValueError,
    ConfigError,
)
"""What a receiver, an address or a program can be wrong with."""

Told = dict[str, Any]
"""A notice as it is sent: `Notice.to_json`."""


def deliver(notice: Notice, config: NotifyConfig) -> list[str]:
    """Send a notice on every channel; the channels that failed, each with a warning."""
    failures: dict[str, str] = {}
    # Before the receivers' time begins: what it compiles the first time can outlast that.
    told = notice.to_json()
    ends = time.monotonic() + config.timeout_s
    threads = {}
    for name in config.channels:
        send = _CHANNELS[name]
        threads[name] = threading.Thread(
            target=_try, args=(send, told, config, name, failures), daemon=True
        )
        threads[name].start()
    for name, thread in threads.items():
        thread.join(max(0.0, ends - time.monotonic()))
        if thread.is_alive():
            failures.setdefault(name, f"no answer in {config.timeout_s:g} s")
    for name, reason in failures.items():
        warn(f"notify.{name}: {notice.event} was not delivered ({reason}); the run is not affected")
    return sorted(failures)


def _try(
    send: Callable[[Told, NotifyConfig], None],
    told: Told,
    config: NotifyConfig,
    name: str,
    failures: dict[str, str],
) -> None:
    try:
        send(told, config)
    except REASONS as error:
        # The text of an error can hold the address, and that a secret.
        failures[name] = _reason(error)


def _reason(error: Exception) -> str:
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, urllib.error.HTTPError):
        return f"answered {error.code}"
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, Exception):
        return _reason(error.reason)
    if isinstance(error, smtplib.SMTPResponseException):
        return f"answered {error.smtp_code}"
    if isinstance(error, subprocess.CalledProcessError):
        return f"exit code {error.returncode}"
    if isinstance(error, OSError) and error.errno and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)
    return type(error).__name__


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A notice goes where it was sent, and nowhere else."""

    def redirect_request(
        self, req: Any, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


def _send_webhook(told: Told, config: NotifyConfig) -> None:
    request = urllib.request.Request(
        config.webhook_address(),
        json.dumps(told).encode(),
        {"Content-Type": "application/json", "User-Agent": "textmill"},
    )
    opener = urllib.request.build_opener(_NoRedirects)
    with opener.open(request, timeout=config.timeout_s):
        pass


def _send_email(told: Told, config: NotifyConfig) -> None:
    email = config.email
    message = EmailMessage()
    message["Subject"], message["From"] = told["text"].splitlines()[0], email.sender
    message["To"] = ", ".join(email.to)
    message["Date"], message["Message-ID"] = formatdate(), make_msgid(domain="textmill")
    message.set_content(told["text"] + "\n")
    context = ssl.create_default_context()
    if email.security == "tls":
        server: smtplib.SMTP = smtplib.SMTP_SSL(
            email.host, email.port, timeout=config.timeout_s, context=context
        )
    else:
        server = smtplib.SMTP(email.host, email.port, timeout=config.timeout_s)
    with server:
        if email.security == "starttls":
            server.starttls(context=context)
        if email.user:
            password = os.environ.get(email.password_env or "")
            if not password:
                raise ConfigError(
                    f"notify.email.password_env: the variable {email.password_env} is not set"
                )
            server.login(email.user, password)
        server.send_message(message)


def _run_command(told: Told, config: NotifyConfig) -> None:
    process = subprocess.Popen(
        config.command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.communicate(json.dumps(told).encode(), timeout=config.timeout_s)
    except subprocess.TimeoutExpired:
        # With all that it has started.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, config.command[0])


_CHANNELS: dict[str, Callable[[Told, NotifyConfig], None]] = {
    "webhook": _send_webhook,
    "email": _send_email,
    "command": _run_command,
}
