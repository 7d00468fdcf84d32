"""The configuration of the search for personal data: its checks, and its secret key.

The key is read from an environment variable or a file and never kept. `key_id`, a digest of it,
stands for it in configs and artifact keys.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from llm_core.config import NOT_IN_KEY, ConfigError, nearest
from tasks.definitions.pii_kinds import NATIONAL_IDS, TYPE_NAMES, TYPES

DEFAULT_TYPES = tuple(name for name in TYPE_NAMES if name != "NAME")
DEFAULT_REGIONS = ("US", "CN")
ACTIONS = ("tag", "mask", "drop_document", "pseudonym")
MIN_KEY_BYTES = 16


@dataclass(frozen=True)
class PiiConfig:
    """What counts as personal data, and what is done with it."""

    types: tuple[str, ...] = DEFAULT_TYPES
    """Types of personal data to find. NAME is found by its form alone, and is off by default."""
    regions: tuple[str, ...] = DEFAULT_REGIONS
    """ISO 3166 regions whose national phone numbers are found; international numbers always are."""
    national_ids: tuple[str, ...] = tuple(NATIONAL_IDS)
    """National ids that are found with type NATIONAL_ID."""
    addresses_in_words: bool = False
    """Also find addresses like "john at example dot com"."""
    action: str = "tag"
    """What happens to a span that is found: tag, mask, drop_document or pseudonym."""
    actions: dict[str, str] = field(default_factory=dict)
    """{type: action} for types that differ from `action`."""
    key_env: str | None = field(default=None, metadata=NOT_IN_KEY)
    """Environment variable with the secret key of pseudonyms and value digests."""
    key_file: Path | None = field(default=None, metadata=NOT_IN_KEY)
    """File with that key, instead of the variable."""
    key_id: str = ""
    """Digest of the key, filled in. Where it is given, no other key is accepted."""

    def __post_init__(self) -> None:
        for kind in (*self.types, *self.actions):
            if kind not in TYPES:
                raise ConfigError(
                    f"types ({kind}) is not a type of personal data; {nearest(kind, list(TYPES))}"
                )
        for name in self.national_ids:
            if name not in NATIONAL_IDS:
                raise ConfigError(
                    f"national_ids ({name}) is not known; {nearest(name, list(NATIONAL_IDS))}"
                )
        for region in self.regions:
            if not re.fullmatch("[A-Z]{2}", region):
                raise ConfigError(
                    f"regions ({region}) must be ISO 3166 codes of two capital letters, e.g."
                    " regions='[US,DE]'"
                )
        _check_regions(self.regions)
        for action in (self.action, *self.actions.values()):
            if action not in ACTIONS:
                raise ConfigError(
                    f"action ({action}) is not known; {nearest(action, list(ACTIONS))}"
                )
        key = self.read_key()
        if key is None and any(self.action_of(name) == "pseudonym" for name in self.types):
            raise ConfigError(
                "action (pseudonym) needs a secret key; name its place with key_env=VARIABLE or"
                " key_file=PATH"
            )
        made = key_id(key) if key else ""
        if self.key_id not in ("", made):
            raise ConfigError(
                f"key_id ({self.key_id}) is not that of the key given ({made or 'none'}); give the"
                " key it was made of"
            )
        object.__setattr__(self, "key_id", made)

    def action_of(self, kind: str) -> str:
        return self.actions.get(kind, self.action)

    @property
    def part_variables(self) -> tuple[str, ...]:
        """What worker processes need of the environment."""
        return (self.key_env,) if self.key_env else ()

    def read_key(self) -> bytes | None:
        return read_key(self.key_env, self.key_file)

    @cached_property
    def wanted_kinds(self) -> int:
        """Bits of the kernel's kinds to look for."""
        ids = {NATIONAL_IDS[name] for name in self.national_ids}
        unwanted = set(NATIONAL_IDS.values()) - ids
        return sum(1 << kind for name in self.types for kind in TYPES[name] if kind not in unwanted)


def _check_regions(regions: tuple[str, ...]) -> None:
    """A region without a number plan is an error: its numbers would stay in the text unseen."""
    unknown = set(regions) - set(DEFAULT_REGIONS)
    if not unknown:
        return  # the package of number plans takes time to load
    from phonenumbers import SUPPORTED_REGIONS

    for region in sorted(unknown - set(SUPPORTED_REGIONS)):
        raise ConfigError(
            f"regions ({region}) has no number plan; {nearest(region, sorted(SUPPORTED_REGIONS))}"
        )


def read_key(variable: str | None, file: Path | None) -> bytes | None:
    """The secret key that an environment variable or a file holds, or None where none is named.

    Raises ConfigError where it is not there or too short to be a secret; the message never shows
    it.
    """
    if variable is None and file is None:
        return None
    if variable is not None and file is not None:
        raise ConfigError(
            f"key_env ({variable}) and key_file ({file}) exclude each other; give one of them"
        )
    if variable is not None:
        key, place = (
            os.environ.get(variable, "").encode("utf-8", "surrogateescape"),
            f"key_env ({variable})",
        )
        if not key:
            raise ConfigError(
                f"{place} is not set in the environment; set it to a secret of at least"
                f" {MIN_KEY_BYTES} bytes"
            )
    else:
        assert file is not None
        place = f"key_file ({file})"
        try:
            key = file.read_bytes().strip()
        except OSError as error:
            raise ConfigError(
                f"{place} cannot be read ({error.strerror}); give a file with a secret key"
            ) from error
    if len(key) < MIN_KEY_BYTES:
        raise ConfigError(
            f"{place} holds {len(key)} bytes; a key needs {MIN_KEY_BYTES}, e.g. from `openssl rand"
            " -hex 32`"
        )
    return key


def key_id(key: bytes) -> str:
    """What names a key without telling it: 64 bits of an HMAC under it, in hex."""
    return hmac.new(key, b"textmill key id", hashlib.sha256).hexdigest()[:16]
