"""Tells which long words are keys of services.

They are told by prefix, length, alphabet and entropy, as their makers document them. A word is a
run of letters, digits, `_` and `-`.
"""

from __future__ import annotations

import math

import numpy as np

from tasks.kernels import inner
from tasks.kernels.pii.bytes import ALNUM, ALPHA, DIGIT, HEX, TOKEN, UPPER, all_of, is_any

MIN_TOKEN_BYTES = 20
MAX_TOKEN_BYTES = 256
MAX_SEGMENT_BYTES = 8192
MIN_ENTROPY_BITS = 2.8
"""Bits per character of what follows the prefix. Random keys of 16 characters have about 3.6,
placeholders below 2.5."""

_KEYS: tuple[tuple[str, int, int, int], ...] = (
    # prefix, shortest and longest word, alphabet of the rest
    ("AKIA", 20, 20, UPPER | DIGIT),  # Amazon: long-term, temporary, bearer
    ("ASIA", 20, 20, UPPER | DIGIT),
    ("ABIA", 20, 20, UPPER | DIGIT),
    ("ghp_", 40, 40, ALNUM),  # GitHub: personal, OAuth, user, server, refresh
    ("gho_", 40, 40, ALNUM),
    ("ghu_", 40, 40, ALNUM),
    ("ghs_", 40, 40, ALNUM),
    ("ghr_", 40, 80, ALNUM),
    ("github_pat_", 93, 93, TOKEN),
    ("glpat-", 26, 26, TOKEN),  # GitLab
    ("xoxa-", 20, 120, TOKEN),  # Slack
    ("xoxb-", 20, 120, TOKEN),
    ("xoxe-", 20, 256, TOKEN),
    ("xoxo-", 20, 120, TOKEN),
    ("xoxp-", 20, 120, TOKEN),
    ("xoxr-", 20, 120, TOKEN),
    ("xoxs-", 20, 120, TOKEN),
    ("AIza", 39, 39, TOKEN),  # Google
    ("GOCSPX-", 35, 35, TOKEN),
    ("sk_live_", 24, 120, ALNUM),  # Stripe
    ("rk_live_", 24, 120, ALNUM),
    ("sk_test_", 24, 120, ALNUM),
    ("whsec_", 30, 80, ALNUM),
    ("sk-ant-", 60, 160, TOKEN),  # Anthropic
    ("sk-proj-", 48, 220, TOKEN),  # OpenAI
    ("sk-", 51, 51, ALNUM),
    ("hf_", 37, 37, ALPHA),  # Hugging Face
    ("npm_", 40, 40, ALNUM),
    ("pypi-AgE", 60, 256, TOKEN),
    ("dop_v1_", 71, 71, HEX),  # DigitalOcean: personal, OAuth, refresh
    ("doo_v1_", 71, 71, HEX),
    ("dor_v1_", 71, 71, HEX),
    ("shpat_", 38, 38, HEX),  # Shopify: access, custom, private, shared
    ("shpca_", 38, 38, HEX),
    ("shppa_", 38, 38, HEX),
    ("shpss_", 38, 38, HEX),
    # As gitleaks and detect-secrets publish them.
    ("glptt-", 46, 46, TOKEN),
    ("glrt-", 25, 25, TOKEN),
    ("xapp-", 40, 200, TOKEN),
    ("dapi", 36, 36, HEX),  # Databricks
    ("key-", 36, 36, HEX),  # Mailgun
    ("sq0atp-", 29, 29, TOKEN),  # Square
    ("sq0csp-", 50, 50, TOKEN),
    ("lin_api_", 48, 48, ALNUM),  # Linear
    ("PMAK-", 64, 64, TOKEN),  # Postman
    ("pscale_", 45, 80, TOKEN),  # PlanetScale
    ("pul-", 44, 44, HEX),  # Pulumi
    ("r8_", 40, 40, ALNUM),  # Replicate
    ("glsa_", 46, 46, TOKEN),  # Grafana
    ("NRAK-", 32, 32, ALNUM),  # New Relic
    ("rubygems_", 57, 57, TOKEN),
    ("gsk_", 56, 56, ALNUM),  # Groq
    ("pplx-", 53, 53, ALNUM),  # Perplexity
    ("LTAI", 20, 30, ALNUM),  # Alibaba
    ("AKID", 36, 36, ALNUM),  # Tencent
    ("xkeysib-", 89, 89, TOKEN),  # Brevo
    ("ATATT3xF", 180, 256, TOKEN),  # Atlassian
    ("ntn_", 50, 50, ALNUM),  # Notion
    ("EZAK", 58, 58, ALNUM),  # EasyPost
    ("tfp_", 48, 64, TOKEN),  # Typeform
    ("CLOJARS_", 68, 68, TOKEN),
)
# The first eight bytes of a word as one number, and which of its bits a prefix decides.
_PREFIX = np.array(
    [int.from_bytes(p.encode()[:8].ljust(8, b"\0"), "big") for p, _, _, _ in _KEYS], np.uint64
)
_PREFIX_MASK = np.array(
    [(2**64 - 1) << (64 - 8 * min(8, len(p))) & (2**64 - 1) for p, _, _, _ in _KEYS], np.uint64
)
_PREFIX_BYTES = np.array([len(p) for p, _, _, _ in _KEYS], np.int64)
_SHORTEST = np.array([shortest for _, shortest, _, _ in _KEYS], np.int64)
_LONGEST = np.array([longest for _, _, longest, _ in _KEYS], np.int64)
_ALPHABET = np.array([alphabet for _, _, _, alphabet in _KEYS], np.int64)


@inner
def next_word(v: np.ndarray, low: int, high: int, i: int, end: int) -> int:
    """Where a word of at least MIN_TOKEN_BYTES begins after i, which is not in it, and before
    `end`; `high` if none does.

    Only every twentieth byte is looked at, as long as there is none: a word of twenty letters
    covers one of them.
    """
    while i + MIN_TOKEN_BYTES < high and i < end:
        probe = i + MIN_TOKEN_BYTES
        if is_any(v[probe], TOKEN):
            start = probe
            # In a window the word may have begun before it.
            begins = i + 1 > low and not is_any(v[i], TOKEN)
            limit = max(low, i + 1 if begins else probe - MAX_TOKEN_BYTES)
            while start > limit and is_any(v[start - 1], TOKEN):
                start -= 1
            stop = probe + 1
            while stop < high and stop - start < MIN_TOKEN_BYTES and is_any(v[stop], TOKEN):
                stop += 1
            whole = start == low or not is_any(v[start - 1], TOKEN)
            if whole and stop - start >= MIN_TOKEN_BYTES:
                return start
            while stop < high and is_any(v[stop], TOKEN):
                stop += 1
            i = stop
        else:
            i = probe
    return high


@inner
def key_end(v: np.ndarray, hi: int, start: int, end: int, counts: np.ndarray) -> int:
    """End of the key that begins with the word v[start:end], or -1. `counts` is scratch for 128
    numbers."""
    size = end - start
    if v[start] == 101 and v[start + 1] == 121 and v[start + 2] == 74:
        # A JSON web token: header.payload.signature, the first two JSON objects in base 64, which
        # begin with eyJ.
        payload = _segment_end(v, end, hi)
        if payload > 0 and v[end + 1] == 101 and v[end + 2] == 121 and v[end + 3] == 74:
            signature = _segment_end(v, payload, hi)
            if signature > 0:
                return signature
        return -1
    head = np.uint64(0)
    for k in range(start, start + 8):
        head = (head << np.uint64(8)) | np.uint64(v[k])
    for n in range(len(_PREFIX)):
        if (
            (head ^ _PREFIX[n]) & _PREFIX_MASK[n] == 0
            and _SHORTEST[n] <= size <= _LONGEST[n]
            and all_of(v, start + _PREFIX_BYTES[n], end, _ALPHABET[n])
            and entropy_bits(v, start + _PREFIX_BYTES[n], end, counts) >= MIN_ENTROPY_BITS
        ):
            return end
    return -1


@inner
def _segment_end(v: np.ndarray, dot: int, hi: int) -> int:
    """End of the at least ten characters of base 64 after a dot, or -1."""
    if dot + 11 > hi or v[dot] != 46:
        return -1
    i = dot + 1
    limit = min(hi, i + MAX_SEGMENT_BYTES)
    while i < limit and is_any(v[i], TOKEN):
        i += 1
    return i if i - dot > 10 else -1


@inner
def entropy_bits(v: np.ndarray, start: int, end: int, counts: np.ndarray) -> float:
    """Shannon entropy of the bytes, in bits per byte."""
    bits, size = 0.0, end - start
    for i in range(start, end):
        counts[v[i] & 127] += 1
    for i in range(start, end):
        n = counts[v[i] & 127]
        if n > 0:
            bits -= n / size * math.log2(n / size)
            counts[v[i] & 127] = 0
    return bits
