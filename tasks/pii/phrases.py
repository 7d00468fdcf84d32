"""Finds personal data without a fixed byte to look for: key blocks, addresses written in words,
names in templates.

Private keys are PEM blocks (RFC 7468; OpenSSH and PGP too), with their end or cut off. Addresses in
words are "john at example dot com", "john [at] x.org", "john(at)x(dot)org"; names stand behind the
words of a header ("From: Jane Doe"), before an address in angle brackets, or in parentheses after
one. The last two are off by default: they find by form, not by checksum. Cost: one search for the
marker of keys; the two options walk each document with anchored, bounded patterns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from tasks.definitions import pii_kinds as kinds

MAX_KEY_BYTES = 16384
MAX_PHRASE_BYTES = 160

Row = tuple[int, int, int, int, int]
"""Document, start, end, kind, value, as the kernel gives them."""

_KEY_WORDS = re.compile(rb"PRIVATE KEY")
_KEY_LABEL = re.compile(rb"-----BEGIN ([A-Z0-9 ]{0,24}PRIVATE KEY(?: BLOCK)?)-----")
_KEY_BODY = re.compile(rb"(?:[A-Za-z0-9+/=\s\\:,.()]|-(?!-))*")
_KEY_CUT = re.compile(
    rb"(?:\s*[A-Za-z-]{4,20}: [^\n<>*]{0,80}\n)*(?:[\s\\nr]*[A-Za-z0-9+/=]{16,})*"
)
_KEY_MATTER = re.compile(rb"[A-Za-z0-9+/]{24}")

_AT = re.compile(rb"(?: ?[\[({] ?(?:at|AT|@) ?[\])}] ?| (?:at|AT) )")
_LOCAL = re.compile(
    rb"[A-Za-z0-9][A-Za-z0-9_+-]{0,40}(?:(?:\.| ?[\[(]dot[\])] ?| dot | DOT"
    rb" )[A-Za-z0-9_+-]{1,40}){0,3}$"
)
_HOST = re.compile(
    rb"[A-Za-z0-9-]{1,63}(?:(\.| ?[\[({] ?(?:dot|DOT) ?[\])}] ?| (?:dot|DOT)"
    rb" )[A-Za-z0-9-]{1,63}){1,4}"
)
_WORD_TLD = re.compile(
    rb"(?:com|org|net|edu|gov|info|io|de|uk|fr|cn|jp|ru|eu|[a-z]{2,4}|COM|ORG|NET|EDU)\Z"
)

# A name: two to four words of letters with a capital first, or two to four Chinese characters.
_CAPITAL = rb"(?:[A-Z]|\xc3[\x80-\x96\x98-\x9e]|\xc4[\x80-\xbf]|\xc5[\x81-\xbd]|\xce[\x91-\xa9]|\xd0[\x90-\xaf])"  # noqa: E501
_REST = rb"(?:[A-Za-z.'-]|[\xc3-\xd1][\x80-\xbf])"
_WORD = _CAPITAL + _REST + rb"{0,24}"
_NAME = rb"(?:%b(?: %b){1,3}|(?:[\xe4-\xe9][\x80-\xbf]{2}){2,4})" % (_WORD, _WORD)
_AFTER_HEADER = re.compile(
    rb"(?:^|(?<=\n))["
    rb" \t>|*#-]{0,8}(?:From|To|Cc|Bcc|Reply-To|Sender|Name|Author|Contact|Maintainer|Signed-off-by|Reviewed-by|"  # noqa: E501
    rb"Acked-by|Reported-by|Tested-by|Co-authored-by|\xe5\xa7\x93\xe5\x90\x8d|\xe4\xbd\x9c\xe8\x80\x85)["
    rb" \t]*(?::|\xef\xbc\x9a)"
    rb'[ \t]*"?(' + _NAME + rb')(?="?[ \t]*(?:[<(,;\r\n]|$))'
)
_BEFORE_ADDRESS = re.compile(rb"(?:^|(?<=[\s\"'(,;:>]))(" + _NAME + rb")\"? ?<$")
_AFTER_ADDRESS = re.compile(rb"[<*]*>? ?\((" + _NAME + rb")\)")


def private_keys(text: memoryview, begins: np.ndarray) -> Iterator[Row]:
    """Key blocks in a buffer of documents. What is masked around one cannot make another, so one
    search is enough.

    The buffer may hold more than the documents, as that of a slice does. It is searched where it
    lies: a copy would take five times as long as the search.
    """
    low, high = int(begins[0]), int(begins[-1])
    # A search for plain words is many times as fast, and most texts end here.
    if _KEY_WORDS.search(text, low, high) is None:
        return
    for label in _KEY_LABEL.finditer(text, low, high):
        document = int(np.searchsorted(begins, label.start(), "right")) - 1
        stop = int(begins[document + 1])
        if label.end() <= stop:
            end = _key_end(text, label, min(stop, label.end() + MAX_KEY_BYTES))
            if end > 0:
                yield document, label.start(), end, kinds.PRIVATE_KEY, 0


def _key_end(text: memoryview, label: re.Match[bytes], high: int) -> int:
    body, closing = _KEY_BODY.match(text, label.end(), high), b"-----END " + label[1] + b"-----"
    assert body is not None
    end = body.end() + len(closing)
    if end > high or text[body.end() : end] != closing:  # cut off
        cut = _KEY_CUT.match(text, label.end(), high)
        assert cut is not None
        end = cut.end()
    return end if _KEY_MATTER.search(text, label.end(), end) else -1


def addresses_in_words(
    text: bytes, document: int, low: int, high: int, scan_lo: int, scan_hi: int
) -> Iterator[Row]:
    """E-mail addresses with words in place of signs, whose "at" is in [scan_lo, scan_hi) of a
    document [low, high)."""
    for at in _AT.finditer(text, scan_lo, min(high, scan_hi + 8)):
        host = _HOST.match(text, at.end(), min(high, at.end() + MAX_PHRASE_BYTES))
        bracketed = at[0].strip() not in (b"at", b"AT")
        if host is None or not _WORD_TLD.search(re.split(rb"[^A-Za-z0-9-]", host[0])[-1]):
            continue
        if not bracketed and b"dot" not in host[0].lower():
            continue  # "look at example.com" is not an address
        local = _LOCAL.search(text, max(low, at.start() - MAX_PHRASE_BYTES), at.start())
        if local is not None:
            yield document, local.start(), host.end(), kinds.EMAIL, 0


def names(
    text: bytes,
    document: int,
    low: int,
    high: int,
    scan_lo: int,
    scan_hi: int,
    addresses: list[tuple[int, int]],
) -> Iterator[Row]:
    """Names in headers that begin in [scan_lo, scan_hi) of a document [low, high), and next to its
    addresses (start, end)."""
    inside = text[low:high]
    for header in _AFTER_HEADER.finditer(inside, max(0, scan_lo - low - MAX_PHRASE_BYTES)):
        if header.start() > scan_hi - low:
            break
        yield document, low + header.start(1), low + header.end(1), kinds.NAME, 0
    for start, end in addresses:
        begin = max(0, start - low - MAX_PHRASE_BYTES)
        before = _BEFORE_ADDRESS.search(inside, begin, start - low)
        if before is not None:
            yield document, low + before.start(1), low + before.end(1), kinds.NAME, 0
        after = _AFTER_ADDRESS.match(inside, end - low)
        if after is not None:
            yield document, low + after.start(1), low + after.end(1), kinds.NAME, 0
