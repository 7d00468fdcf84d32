"""Masks passwords, tokens and keys in whatever a run leaves behind or prints.

A secret is recognised by its position: between `:` and `@` of an address, after a name that says so
(`password=`, `?sig=`, `AWS_SECRET_ACCESS_KEY=`), or by its own form (`ghp_…`, `AKIA…`). Terms of
this field are not secrets: `unk_token`, `num_tokens`, a store `key`. Only what is shown is masked;
artifact keys are computed from the original values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"

_OWNERS = "access|auth|api|bearer|session|security|refresh|sas|secret|hf|github|gitlab|slack|bot|registry|id"  # noqa: E501
_KEYS = "api|access|secret|private|account|hmac|encryption|signing|master|shared|aws|storage|ssh"
_NAME = (
    r"(?:[\w.\-]*(?:passw(?:or)?d|passphrase|pwd|secret|credentials?|signature)(?:[_\-](?:access[_\-]?)?key(?:[_\-]id)?)?"
    rf"|[\w.\-]*(?:{_OWNERS})[_\-]?token|token|authtoken|sig"
    rf"|[\w.\-]*(?:{_KEYS})[_\-]?key(?:[_\-]?id)?"
    r"|(?:proxy[_\-])?authorization|cookie)"
)
_SECRET_NAME = re.compile(rf"{_NAME}\Z", re.IGNORECASE)
_VALUE = (
    r"""(?:(?:Bearer|Basic|Token)\s+)?(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[^\s&;,'")\]}]+)"""
)
_RULES = (
    # A number and a slash after the colon are a port. What stands before the last @ of the host is
    # the user's. Hydra writes colons and equals signs with a backslash.
    (
        re.compile(
            r"(\w[\w+.\-]*\\*://[^\s/:@\\]*\\*):(?!\d+(?:[/?#\s'\"\\]|\Z))[^\s@]+@(?:[^\s/?#@]*@)*"
        ),
        rf"\1:{MASK}@",
    ),
    (re.compile(r"(https?\\*://)[^\s/:@]+@"), rf"\1{MASK}@"),
    (
        re.compile(rf"""(?<![\w.\-])("?'?{_NAME}"?'?\s*\\*[=:]\s*){_VALUE}""", re.IGNORECASE),
        rf"\1{MASK}",
    ),
    (re.compile(r"\b(?:Bearer|Basic)\s+[\w.\-+/=]{16,}"), MASK),
    (re.compile(r"\b(?:gh[pousr]_|github_pat_|hf_|glpat-|xox[abprs]-|sk-)[\w\-]{16,}"), MASK),
    (
        re.compile(
            r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[\w\-]{35}\b|\beyJ[\w\-]{8,}\.eyJ[\w\-]{8,}\.[\w\-]+"
        ),
        MASK,
    ),
)


def mask_secrets(text: str) -> str:
    """`text` with each secret in it replaced by `***`."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text


def mask_values(value: Any) -> Any:
    """The same for nested plain values; a value under a secret's name is masked whole."""
    if isinstance(value, str):
        return mask_secrets(value)
    if isinstance(value, Mapping):
        return {
            mask_secrets(name) if isinstance(name, str) else name: (
                MASK if _is_secret(str(name), inner) else mask_values(inner)
            )
            for name, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [mask_values(inner) for inner in value]
    return value


def _is_secret(name: str, value: Any) -> bool:
    return bool(isinstance(value, str) and value and _SECRET_NAME.match(name.rpartition(".")[2]))
