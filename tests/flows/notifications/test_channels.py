"""Notices reach their receivers without secrets, and an unreachable receiver costs only a line."""

from __future__ import annotations

import email
import email.policy
import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from flows.notifications.channels import deliver
from flows.notifications.config import EmailConfig, NotifyConfig
from flows.notifications.notices import MOST_CHARS, Notice
from llm_core.config import ConfigError
from tests.support.receivers import mail_receiver, silent_receiver, web_receiver

TOKEN, ADDRESS = "ghp_" + "a1B2" * 9, "jane.doe@example.org"
NOTICE = Notice(
    "failed",
    "refresh",
    f"StageFailure: s3://me:{TOKEN}@host/{ADDRESS} is gone\nand password=hunter2",
    "20261129-030000-abcdef",
    {"changes": "/store/.runs/changes/x.html", "prefect": "http://admin:hunter2@localhost:4200/r"},
)
TO = EmailConfig(to=("night@example.org",), host="127.0.0.1", security="none")


def mail(port: int) -> EmailConfig:
    return EmailConfig(to=TO.to, host=TO.host, port=port, security="none")


def assert_clean(text: str) -> None:
    for secret in (TOKEN, ADDRESS, "hunter2"):
        assert secret not in text


def test_every_channel_gets_one_line_with_cause_and_links_and_nothing_secret(
    tmp_path: Path,
) -> None:
    file = tmp_path / "got.json"
    program = ("/bin/sh", "-c", f"cat > {file}")
    with web_receiver() as (address, posted), mail_receiver() as (port, mails):
        config = NotifyConfig(webhook=address, email=mail(port), command=program)
        assert deliver(NOTICE, config) == []
    (body,) = posted
    assert body == json.loads(file.read_text())
    assert (body["event"], body["flow"], body["run"]) == ("failed", "refresh", NOTICE.run_id)
    first, *links = body["text"].splitlines()
    assert first.startswith(f"textmill refresh {NOTICE.run_id} failed: StageFailure: ")
    assert "is gone" in first and links[0] == "changes: /store/.runs/changes/x.html"
    message = email.message_from_string(mails[0], policy=email.policy.default)
    assert message["Subject"] == first and message["To"] == "night@example.org"
    assert message.get_content().strip().splitlines()[0] == first
    for text in (json.dumps(body), mails[0], file.read_text()):
        assert_clean(text)


def test_what_a_notice_takes_to_write_is_not_taken_from_the_time_of_receivers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a new machine the first notice compiles what scrubs it."""
    slow = Notice.to_json

    def compiled_first(notice: Notice) -> dict[str, Any]:
        time.sleep(3)
        return slow(notice)

    monkeypatch.setattr(Notice, "to_json", compiled_first)
    with web_receiver() as (address, posted):
        assert deliver(NOTICE, NotifyConfig(webhook=address, timeout_s=2.5)) == []
    assert len(posted) == 1


def test_a_cause_of_any_length_is_one_line_of_bounded_length() -> None:
    line = Notice("failed", "refresh", "broken\n" * 999 + "\x1b[2J").line
    assert len(line) == MOST_CHARS and line.isprintable()


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"webhook": "http://127.0.0.1:9/x?sig=hunter2"}, "Connection refused"),
        ({"email": mail(9)}, "Connection refused"),
        ({"command": ("/no/such/program", "hunter2")}, "No such file or directory"),
        ({"command": (sys.executable, "-c", "raise SystemExit(3)")}, "exit code 3"),
        ({"webhook_env": "NO_SUCH_VARIABLE"}, "NO_SUCH_VARIABLE holds no http or https address"),
    ],
)
def test_whom_nobody_reaches_costs_one_warning_without_the_address(
    wrong: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert deliver(NOTICE, NotifyConfig(**wrong)) == [next(iter(wrong)).removesuffix("_env")]
    (line,) = [record.getMessage() for record in caplog.records]
    assert reason in line and "the run is not affected" in line
    assert_clean(line)


@pytest.mark.parametrize("status", [302, 404, 500])
def test_an_answer_that_is_no_yes_is_a_warning_and_is_not_followed(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with web_receiver(status) as (address, posted):
        assert deliver(NOTICE, NotifyConfig(webhook=address)) == ["webhook"]
    assert len(posted) == 1 and f"answered {status}" in caplog.text


def test_an_answer_that_is_not_http_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            client, _ = server.accept()
            with client:
                client.recv(1 << 16)
                client.sendall(b"hello\r\n")

        threading.Thread(target=answer, daemon=True).start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert deliver(NOTICE, NotifyConfig(webhook=address)) == ["webhook"]
    assert "BadStatusLine" in caplog.text


def test_receivers_that_never_answer_cost_the_time_limit_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    forever = (sys.executable, "-c", "import time; time.sleep(600)")
    with silent_receiver() as port:
        config = NotifyConfig(
            webhook=f"http://127.0.0.1:{port}", email=mail(port), command=forever, timeout_s=3
        )
        NOTICE.to_json()  # what it compiles the first time is not a matter of receivers
        began = time.monotonic()
        assert deliver(NOTICE, config) == ["command", "email", "webhook"]
        assert time.monotonic() - began < 2.5 * config.timeout_s  # in turn they take three
    assert len(caplog.records) == 3


def test_a_program_that_takes_too_long_is_ended_with_what_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"echo $$ > {pids}; sleep 600 & echo $! >> {pids}; wait"
    deliver(NOTICE, NotifyConfig(command=("/bin/sh", "-c", script), timeout_s=1.0))
    for pid in pids.read_text().split():
        for _ in range(100):
            state = subprocess.run(
                ["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True, check=False
            ).stdout
            if not state.strip() or state.startswith("Z"):
                break
            time.sleep(0.05)
        else:
            pytest.fail(f"process {pid} is left")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"webhook": "file:///etc/passwd"}, "must be an http or https address"),
        ({"webhook": "http://a/b", "webhook_env": "A"}, "exclude each other"),
        ({"timeout_s": 0.0}, "timeout_s"),
        ({"late_after_s": 0.0}, "late_after_s"),
    ],
)
def test_settings_that_tell_nobody_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NotifyConfig(**values)


def test_a_password_goes_over_protected_connections_only() -> None:
    with pytest.raises(ConfigError, match="user needs password_env and a protected connection"):
        EmailConfig(to=("a@b.c",), user="me", password_env="PASSWORD", security="none")
    with pytest.raises(ConfigError, match="must be addresses"):
        EmailConfig(to=("a@b.c\nBcc: d@e.f",))
