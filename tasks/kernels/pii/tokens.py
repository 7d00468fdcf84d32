"""Tells which long words are keys of services.

They are told by prefix, length, alphabet and entropy, as their makers document them. A word is a
run of letters, digits, `_` and `-`.
"""

from __future__ import annotations

import math

import numpy as np

from tasks.kernels import inner
from tasks.kernels.pii.bytes import (
    ALNUM,
    ALPHA,
    DIGIT,
    HEX,
    INNER,
    TOKEN,
    UPPER,
    all_of,
    contains,
    is_any,
    pack,
    packed,
)

MIN_TOKEN_BYTES = 20
MAX_TOKEN_BYTES = 256
MAX_SEGMENT_BYTES = 8192
MIN_ENTROPY_BITS = 2.8
"""Bits per character of what follows the prefix. Random keys of 16 characters have about 3.6,
placeholders below 2.5."""

_UPPER_DIGIT = UPPER | DIGIT
# Prefixes, then the shortest and longest word and the alphabet of the rest, as makers document them
# and as gitleaks and detect-secrets publish them.
_FORMS: tuple[tuple[str, int, int, int], ...] = (
    ("AKIA ASIA ABIA ACCA A3T", 20, 20, _UPPER_DIGIT),  # Amazon
    ("ghp_ gho_ ghu_ ghs_", 40, 40, ALNUM),  # GitHub
    ("ghr_", 40, 80, ALNUM),
    ("github_pat_", 93, 93, TOKEN),
    ("glpat- glrt-", 25, 256, TOKEN),  # GitLab, with a routing tail too
    ("gldt- glft- glsoat- glffct- glimt- glcbt- GR1348941", 25, 36, TOKEN),
    ("glptt-", 46, 46, TOKEN),
    ("glagent- gloas-", 58, 70, TOKEN),
    ("xoxa- xoxb- xoxo- xoxp- xoxr- xoxs- xoxe- xapp-", 20, 256, TOKEN),  # Slack
    ("AIza", 39, 39, TOKEN),  # Google
    ("GOCSPX-", 35, 35, TOKEN),
    ("sk_live_ rk_live_ sk_test_ rk_test_ sk_prod_ rk_prod_", 20, 120, ALNUM),  # Stripe
    ("whsec_", 30, 80, ALNUM),
    ("sk-ant-", 60, 160, TOKEN),  # Anthropic
    ("sk-proj- sk-svcacct- sk-admin-", 48, 256, TOKEN),  # OpenAI
    ("sk-", 51, 51, ALNUM),
    ("hf_ api_org_", 37, 42, ALPHA),  # Hugging Face
    ("npm_ pnu_ r8_ sgp_", 40, 60, ALNUM),  # npm, Prefect, Replicate, Sourcegraph
    ("pypi-AgE", 60, 256, TOKEN),
    ("dop_v1_ doo_v1_ dor_v1_ sntryu_", 71, 71, HEX),  # DigitalOcean, Sentry
    ("shpat_ shpca_ shppa_ shpss_", 38, 38, HEX),  # Shopify
    ("dapi", 36, 38, TOKEN),  # Databricks
    ("key-", 36, 36, HEX),  # Mailgun
    ("SK", 34, 34, HEX),  # Twilio
    ("sq0atp- sq0csp-", 29, 67, TOKEN),  # Square
    ("lin_api_", 48, 48, ALNUM),  # Linear
    ("PMAK-", 64, 64, TOKEN),  # Postman
    ("pscale_", 42, 80, TOKEN),  # PlanetScale
    ("pul-", 44, 44, HEX),  # Pulumi
    ("glsa_", 46, 46, TOKEN),  # Grafana
    ("NRAK- NRII-", 32, 37, TOKEN),  # New Relic
    ("rubygems_", 57, 57, TOKEN),
    ("gsk_ pplx-", 53, 56, ALNUM),  # Groq, Perplexity
    ("LTAI", 20, 30, ALNUM),  # Alibaba
    ("AKID", 36, 36, ALNUM),  # Tencent
    ("xkeysib-", 89, 89, TOKEN),  # Brevo
    ("ATATT3xF", 180, 256, TOKEN),  # Atlassian
    ("ntn_", 50, 50, ALNUM),  # Notion
    ("EZAK EZTK", 58, 58, ALNUM),  # EasyPost
    ("tfp_", 48, 64, TOKEN),  # Typeform
    ("CLOJARS_", 68, 68, TOKEN),
    ("A3-", 39, 40, TOKEN),  # 1Password
    ("p8e-", 36, 36, ALNUM),  # Adobe
    ("AGE-SECRET-KEY-1", 74, 74, ALNUM),
    ("AKCp cmVmd", 64, 73, ALNUM),  # Artifactory
    ("4b1d", 42, 42, ALNUM),  # ClickHouse
    ("duffel_live_ duffel_test_", 55, 55, TOKEN),
    ("EAAM EAAC", 104, 256, ALNUM),  # Facebook
    ("FLWSECK_TEST-", 25, 47, TOKEN),  # Flutterwave
    ("fo1_", 47, 47, TOKEN),  # Fly.io
    ("HRKU-AA", 65, 65, TOKEN),  # Heroku
    ("ico-", 36, 36, ALNUM),  # Infracost
    ("s-s4t2ud- s-s4t2af-", 73, 73, HEX),  # Intra 42
    ("API-", 30, 30, _UPPER_DIGIT),  # Octopus Deploy
    ("rdme_", 75, 75, ALNUM),  # ReadMe
    ("tk-us-", 54, 54, TOKEN),  # Scalingo
    ("sm_aat_ sm_pat_ sm_sat_", 23, 23, ALNUM),  # SettleMint
    ("shippo_live_ shippo_test_", 52, 52, HEX),
)
_KEYS = sorted(
    (prefix, shortest, longest, alphabet)
    for prefixes, shortest, longest, alphabet in _FORMS
    for prefix in prefixes.split()
)
# Where the prefixes of each first byte begin in the table.
_FIRST = np.searchsorted([ord(prefix[0]) for prefix, _, _, _ in _KEYS], np.arange(257))
# The first eight bytes of a word as one number, and which of its bits a prefix decides.
_PREFIX = np.array(
    [int.from_bytes(p.encode()[:8].ljust(8, b"\0"), "big") for p, _, _, _ in _KEYS], np.uint64
)
_PREFIX_MASK = np.array(
    [(2**64 - 1) << (64 - 8 * min(8, len(p))) & (2**64 - 1) for p, _, _, _ in _KEYS], np.uint64
)
_SENDGRID, _DOPPLER = packed("sg. dp.pt.")
_VAULT = packed("hvs. hvb.")
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
    if _is_mailchimp(v, start, end):
        return end
    for n in range(_FIRST[v[start]], _FIRST[v[start] + 1]):
        if (
            (head ^ _PREFIX[n]) & _PREFIX_MASK[n] == 0
            and _SHORTEST[n] <= size <= _LONGEST[n]
            and all_of(v, start + _PREFIX_BYTES[n], end, _ALPHABET[n])
            and entropy_bits(v, start + _PREFIX_BYTES[n], end, counts) >= MIN_ENTROPY_BITS
        ):
            return end
    return -1


@inner
def signed_key(v: np.ndarray, low: int, hi: int, start: int, end: int) -> tuple[int, int]:
    """The key of which the word v[start:end] is what follows a sign, or (-1, -1): SG.x.y of
    SendGrid, hvs.x and hvb.x of Vault, dp.pt.x of Doppler, 123456789:Ax of Telegram."""
    size, first = end - start, start - 1
    is_telegram = size == 35 and v[first] == 58 and v[start] == 65
    before = DIGIT if is_telegram else ALPHA | INNER
    while first > low and start - first < 18 and is_any(v[first - 1], before):
        first -= 1
    if first > low and is_any(v[first - 1], TOKEN):
        return -1, -1
    word = pack(v, first, start)
    if is_telegram and start - first > 8:
        return first, end
    if word == _SENDGRID and size == 22:
        last = _segment_end(v, end, hi)
        return (first, last) if last == end + 44 else (-1, -1)
    if (size >= 90 and contains(_VAULT, word)) or (size == 43 and word == _DOPPLER):
        return first, end
    return -1, -1


@inner
def _is_mailchimp(v: np.ndarray, start: int, end: int) -> bool:
    """Whether a word is a key of Mailchimp: 32 hexadecimal digits, -us, and a number."""
    dash = start + 32
    if not 36 <= end - start <= 37 or v[dash] != 45 or v[dash + 1] != 117 or v[dash + 2] != 115:
        return False
    return all_of(v, start, dash, HEX) and all_of(v, dash + 3, end, DIGIT)


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
