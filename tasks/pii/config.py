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
from typing import Literal

from llm_core.config import IN_KEY_IF_SET, NOT_IN_KEY, ConfigError, check_bounds, nearest
from tasks.definitions.pii_kinds import (
    CN_MOBILE,
    FORM_TYPES,
    MODEL_TYPES,
    NATIONAL_IDS,
    NATIONAL_PHONES,
    TYPE_NAMES,
    TYPES,
)
from tasks.pii.ner_folder import LIBRARIES, label_types, model_files

DEFAULT_TYPES = tuple(name for name in FORM_TYPES if name != "NAME")
DEFAULT_REGIONS = ("US", "CN", "JP", "KR", "BR", "FR", "GB", "RU", "IN", "DE")
MIN_KEY_BYTES = 16

Action = Literal["tag", "mask", "drop_document", "pseudonym"]


@dataclass(frozen=True)
class PiiConfig:
    """What counts as personal data, and what is done with it."""

    types: tuple[str, ...] = DEFAULT_TYPES
    """Types of personal data to find by their form. NAME is found in headers and beside addresses
    alone, and is off by default."""
    regions: tuple[str, ...] = DEFAULT_REGIONS
    """ISO 3166 regions whose national phone numbers are found by form alone. Behind a word for a
    telephone those of the largest countries are found too; international numbers always are."""
    ip: Literal["all", "public"] = "all"
    """Which IP addresses are found: all, or those of the public network alone."""
    national_ids: tuple[str, ...] = tuple(NATIONAL_IDS)
    """National ids that are found with type NATIONAL_ID."""
    addresses_in_words: bool = False
    """Also find addresses like "john at example dot com"."""
    ner: Path | None = field(default=None, metadata=NOT_IN_KEY)
    """Folder of a token classification model that finds names, postal addresses and dates of birth
    in prose. Needs textmill[ner]; nothing is fetched. Contents are part of the key."""
    ner_types: tuple[str, ...] = field(default=MODEL_TYPES, metadata=IN_KEY_IF_SET)
    """What that model finds."""
    ner_labels: dict[str, str] = field(default_factory=dict, metadata=IN_KEY_IF_SET)
    """{label of the model, without B- and I-: type} for labels that are not known by their name."""
    ner_min_score: float = field(default=0.5, metadata=IN_KEY_IF_SET)
    """Least probability, from 0 to 1, of a type at a token."""
    action: Action = "tag"
    """What happens to a span that is found."""
    actions: dict[str, Action] = field(default_factory=dict)
    """{type: action} for types that differ from `action`."""
    key_env: str | None = field(default=None, metadata=NOT_IN_KEY)
    """Environment variable with the secret key of pseudonyms and value digests."""
    key_file: Path | None = field(default=None, metadata=NOT_IN_KEY)
    """File with that key, instead of the variable."""
    key_id: str = ""
    """Digest of the key, filled in. Where it is given, no other key is accepted."""

    def __post_init__(self) -> None:
        named = [("types", kind) for kind in self.types]
        for setting, kind in named + [("actions", kind) for kind in self.actions]:
            if kind not in TYPES:
                raise ConfigError(
                    f"{setting} ({kind}) is not a type of personal data;"
                    f" {nearest(kind, list(TYPES))}"
                )
            if setting == "types" and kind not in FORM_TYPES:
                raise ConfigError(
                    f"types ({kind}) has no form to find it by; give ner the folder of a model"
                    " that finds it"
                )
        self._check_ner()
        for name in self.national_ids:
            if name not in NATIONAL_IDS:
                raise ConfigError(
                    f"national_ids ({name}) is not a known id; {nearest(name, list(NATIONAL_IDS))}"
                )
        for region in self.regions:
            if not re.fullmatch("[A-Z]{2}", region):
                raise ConfigError(
                    f"regions ({region}) must be an ISO 3166 code of two capital letters; try"
                    " regions='[US,DE]'"
                )
        _check_regions(self.regions)
        key = self.read_key()
        if key is None and any(self.action_of(name) == "pseudonym" for name in self.found_types):
            raise ConfigError(
                "action (pseudonym) needs a secret key; set key_env=VARIABLE or key_file=PATH"
            )
        made = key_id(key) if key else ""
        if self.key_id not in ("", made):
            raise ConfigError(
                f"key_id ({self.key_id}) is not that of the given key ({made or 'none'}); give the"
                " key that it was made of, or leave key_id out"
            )
        # The dataclass is frozen, and artifacts are keyed by the digest in place of the key.
        object.__setattr__(self, "key_id", made)

    def _check_ner(self) -> None:
        check_bounds(self, ner_min_score=(0, 1))
        if not self.ner_types:
            raise ConfigError("ner_types ([]) names no type; leave ner out to use no model")
        named = [("ner_types", kind) for kind in self.ner_types]
        for setting, kind in named + [("ner_labels", kind) for kind in self.ner_labels.values()]:
            if kind not in MODEL_TYPES:
                raise ConfigError(
                    f"{setting} ({kind}) is not what a model finds;"
                    f" {nearest(kind, list(MODEL_TYPES))}"
                )

    def input_files(self) -> dict[str, Path]:
        """The files of the model, whose contents are part of the key. Raises ConfigError where they
        are not those of a model for `ner_types`."""
        if self.ner is None:
            return {}
        files = model_files(self.ner)
        label_types(self.ner, self.ner_types, self.ner_labels)
        return files

    @property
    def libraries(self) -> tuple[str, ...]:
        """Distributions that these settings add to those of the stage."""
        return () if self.ner is None else LIBRARIES

    @property
    def found_types(self) -> tuple[str, ...]:
        """Every type that is looked for, in order of precedence."""
        wanted = {*self.types, *(self.ner_types if self.ner is not None else ())}
        return tuple(name for name in TYPE_NAMES if name in wanted)

    def action_of(self, kind: str) -> str:
        return self.actions.get(kind, self.action)

    @property
    def part_variables(self) -> tuple[str, ...]:
        """What worker processes need of the environment."""
        return (self.key_env,) if self.key_env else ()

    def read_key(self) -> bytes | None:
        """The secret key, or None where none is named.

        Raises ConfigError where it is missing or too short to be a secret; no message shows it.
        """
        if self.key_env is not None and self.key_file is not None:
            raise ConfigError(
                f"key_env ({self.key_env}) and key_file ({self.key_file}) exclude each other; give"
                " one of them"
            )
        if self.key_env is not None:
            place = f"key_env ({self.key_env})"
            key = os.environ.get(self.key_env, "").encode("utf-8", "surrogateescape")
            if not key:
                raise ConfigError(
                    f"{place} is not set in the environment; set it to a secret of at least"
                    f" {MIN_KEY_BYTES} bytes"
                )
        elif self.key_file is not None:
            place = f"key_file ({self.key_file})"
            try:
                key = self.key_file.read_bytes().strip()
            except OSError as error:
                raise ConfigError(
                    f"{place} cannot be read ({error.strerror}); give a file with a secret key"
                ) from error
        else:
            return None
        if len(key) < MIN_KEY_BYTES:
            raise ConfigError(
                f"{place} holds {len(key)} bytes, and a key needs {MIN_KEY_BYTES}; make one with"
                " `openssl rand -hex 32`"
            )
        return key

    @cached_property
    def wanted_kinds(self) -> int:
        """Bits of the kernel's kinds to look for."""
        ids = {NATIONAL_IDS[name] for name in self.national_ids}
        unwanted = set(NATIONAL_IDS.values()) - ids
        if not self.regions:
            unwanted |= set(NATIONAL_PHONES)
        elif "CN" not in self.regions:
            unwanted.add(CN_MOBILE)
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


def key_id(key: bytes) -> str:
    """What names a key without telling it: 64 bits of an HMAC under it, in hex."""
    return hmac.new(key, b"textmill key id", hashlib.sha256).hexdigest()[:16]
