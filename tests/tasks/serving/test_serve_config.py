"""A server that others can reach needs a key that only its owner reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_core.config import ConfigError
from tasks.serving.config import MIN_KEY_CHARS, ServeConfig, read_api_key


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1"])
def test_loopback_needs_no_key(host: str) -> None:
    assert ServeConfig(host=host).is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "models.example", ""])
def test_other_addresses_need_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match=r"host \(.*\) can be reached from other machines"):
        ServeConfig(host=host)
    assert not ServeConfig(host=host, api_key_file=Path("key")).is_loopback


def test_a_key_file_is_read_without_its_line_end(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.touch(mode=0o600)
    file.write_text("k" * MIN_KEY_CHARS + "\n")
    assert read_api_key(file) == "k" * MIN_KEY_CHARS


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (b"k" * MIN_KEY_CHARS, 0o644, "can be read by others"),
        (b"k" * (MIN_KEY_CHARS - 1), 0o600, "must hold one word of at least"),
        (b"", 0o600, "must hold one word"),
        (b"two words of enough length", 0o600, "must hold one word"),
        ("schlüssel-lang-genug".encode(), 0o600, "must be ASCII"),
    ],
)
def test_a_key_file_that_is_none_is_refused(
    tmp_path: Path, content: bytes, mode: int, reason: str
) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    file.chmod(mode)
    with pytest.raises(ConfigError, match=reason) as error:
        read_api_key(file)
    assert content.decode() not in str(error.value) or not content
    with pytest.raises(ConfigError, match="is not a file"):
        read_api_key(tmp_path / "nowhere")
