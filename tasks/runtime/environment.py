"""Says which variables of the environment a started process gets, so that secrets stay where they
are needed.

What works on documents gets a short list (`minimal_environment`): hostile input may bring a reader
under its control. A trainer needs whatever its launcher, network and accelerators were told, so it
gets all but what may be a secret (`without_secrets`).
"""

from __future__ import annotations

import os
import re

from llm_core.secrets import mask_secrets

NEEDED = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TMP", "TEMP"),
    *("VIRTUAL_ENV", "XDG_CACHE_HOME"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH"),
)
NEEDED_PREFIXES = (
    *("LC_", "PYTHON", "NUMBA_", "ARROW_", "MALLOC_", "TORCH"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "RAYON_"),
    *("CUDA_", "HIP_", "ROCR_"),
)

CONNECTION = (
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
)
"""Settings of how other hosts are reached, for processes that talk to some."""

_SECRET_WORDS = "AUTH|TOKENS?|SECRETS?|KEYS?|PASS|PASSWD|PAT|CREDS?|CREDENTIALS?|COOKIES?|JWT|SAS|DSN|NETRC|CONNECTION_STRING"  # noqa: E501
_SECRET_NAME = re.compile(
    rf"(?:^|_)(?:{_SECRET_WORDS})(?:_|$)|_PWD(?:_|$)|PASSWORD|PASSPHRASE|SECRET|APIKEY|ACCESSKEY",
    re.IGNORECASE,
)


def may_be_secret(name: str, value: str) -> bool:
    """Whether a variable is called like a secret, or something in its value would be masked, as the
    password of an address."""
    return bool(_SECRET_NAME.search(name)) or mask_secrets(value) != value


def minimal_environment(*variables: str, settings: tuple[str, ...] = ()) -> dict[str, str]:
    """What a process needs to start, find its libraries and use its cores; `variables`, which are
    asked for by name; and what begins like one of `settings` and does not look like a secret."""
    prefixes = (*NEEDED_PREFIXES, *settings)
    return {
        name: value
        for name, value in os.environ.items()
        if name in variables
        or ((name in NEEDED or name.startswith(prefixes)) and not may_be_secret(name, value))
    }


def without_secrets() -> dict[str, str]:
    """This environment, without what may be a secret."""
    return {name: value for name, value in os.environ.items() if not may_be_secret(name, value)}
