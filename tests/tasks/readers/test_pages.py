"""Pages: their encoding, what the transport did to them, and the text that is in them."""

from __future__ import annotations

import gzip
import io
import json
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
import zstandard
from fastwarc.stream_io import BrotliWriter
from hypothesis import given
from hypothesis import strategies as st

from tasks.ingest.decoding import Encoding, decode
from tasks.ingest.pagetext import read_page
from tasks.readers.pages import READ_PAGE, BrokenPage, Encoded, extract
from tasks.readers.recordlimits import Limits
from tasks.runtime.code import ROOT
from tasks.runtime.sandbox import Sandbox


class Here(Sandbox):
    """A sandbox without a process."""

    def call(self, data: bytes) -> bytes:
        return read_page(data)


HERE = Here(READ_PAGE, 1.0, 1 << 30)


def text_of(
    data: bytes, charset: str | None = None, kind: str = "html", codings: tuple[str, ...] = ()
) -> str:
    return extract(Encoded(data, charset, kind, codings), HERE, main_content=False).text


KOREAN, GERMAN, JAPANESE = "아파치 서버 설명서", "Übergrößenträger", "日本語の文章です。"
RUSSIAN = "Это русский текст, и довольно длинный."
OLD_META = b'<meta http-equiv="content-type" content="text/html; charset=shift_jis">'


@pytest.mark.parametrize(
    ("data", "charset", "text", "encoding"),
    [
        (KOREAN.encode("euc-kr"), "EUC-KR", KOREAN, "cp949"),
        (GERMAN.encode("latin-1"), "ISO-8859-1", GERMAN, "cp1252"),
        (b'<meta charset="euc-kr">' + KOREAN.encode("cp949"), None, KOREAN, "cp949"),
        (OLD_META + JAPANESE.encode("cp932"), None, JAPANESE, "cp932"),
        (RUSSIAN.encode("cp1251"), None, RUSSIAN, "cp1251"),
        (KOREAN.encode(), "euc-kr", KOREAN, "utf-8"),
        (b"<meta charset=latin1>" + GERMAN.encode(), "latin1", GERMAN, "utf-8"),
        (b"\xef\xbb\xbf" + GERMAN.encode(), "latin1", GERMAN, "utf-8"),
        (b"\xff\xfe" + GERMAN.encode("utf-16-le"), None, GERMAN, "utf-16-le"),
        (JAPANESE.encode("iso-2022-jp"), "iso-2022-jp", JAPANESE, "iso2022_jp"),
        (b"plain ascii", "no such encoding", "plain ascii", "utf-8"),
    ],
)
def test_encoding_is_found(data: bytes, charset: str | None, text: str, encoding: str) -> None:
    page = extract(
        Encoded(b"<p>" + data if data[0] < 128 else data, charset, "html"), HERE, main_content=False
    )
    assert page.text == text
    assert (page.encoding.replace("-", "").replace("_", ""), page.repaired) == (
        encoding.replace("-", "").replace("_", ""),
        False,
    )


def test_bytes_without_a_meaning_are_replaced_and_said() -> None:
    assert decode(b"\xef\xbb\xbfa\xffb", None, False) == ("a\ufffdb", Encoding("utf-8", True))
    text, encoding = decode(b"caf\xe9 \x81\x8d", "utf-8", False)
    assert (
        text.startswith("café ")
        and not any("\ud800" <= c <= "\udfff" for c in text)
        and encoding.name
    )


CHARSETS = [None, "utf-8", "utf-7", "euc-kr", "hz", "x", "utf-16", "idna", "rot13", "zlib"]


@given(st.binary(max_size=200), st.sampled_from(CHARSETS), st.booleans())
def test_any_bytes_become_some_text(data: bytes, charset: str | None, is_html: bool) -> None:
    text, _ = decode(data, charset, is_html)
    text.encode(
        "utf-8", "strict" if not any("\ud800" <= c <= "\udfff" for c in text) else "replace"
    )
    assert isinstance(text_of(data, charset, "html" if is_html else "text"), str)


def chunked(data: bytes, size: int = 5) -> bytes:
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    return b"".join(b"%x;ext=1\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"


BODY = ("<p>" + GERMAN * 9).encode()


@pytest.mark.parametrize(
    ("data", "codings"),
    [
        (BODY, ()),
        (chunked(BODY), ("chunked",)),
        (gzip.compress(BODY, mtime=0), ("gzip",)),
        (chunked(gzip.compress(BODY, mtime=0)), ("chunked", "gzip")),
        (zlib.compress(BODY), ("deflate",)),
        (zlib.compress(BODY)[2:-4], ("deflate",)),
        (zstandard.compress(BODY), ("zstd",)),
        (gzip.compress(gzip.compress(BODY, mtime=0), mtime=0), ("gzip", "gzip")),
        (BODY, ("chunked",)),
    ],
)
def test_what_the_transport_did_is_undone(data: bytes, codings: tuple[str, ...]) -> None:
    assert text_of(data, None, "html", codings) == GERMAN * 9


@pytest.mark.parametrize(
    ("data", "codings", "error"),
    [
        (b"not gzip", ("gzip",), "the body is not gzip"),
        (b"not brotli \xff", ("br",), "the body is not br"),
        (chunked(BODY)[:-20], ("chunked",), "the body is not chunked"),
        (BODY, ("compress",), "unknown encoding"),
    ],
)
def test_body_that_is_not_what_it_says_is_a_fault(
    data: bytes, codings: tuple[str, ...], error: str
) -> None:
    with pytest.raises(BrokenPage, match=error):
        text_of(data, None, "html", codings)


def in_brotli(data: bytes) -> bytes:
    out = io.BytesIO()
    writer = BrotliWriter(out)
    writer.write(data)
    writer.close()
    return out.getvalue()


@pytest.mark.parametrize(
    ("compress", "coding"),
    [
        (lambda data: gzip.compress(data, mtime=0), "gzip"),
        (zlib.compress, "deflate"),
        (lambda data: zlib.compress(data)[2:-4], "deflate"),
        (in_brotli, "br"),
        (zstandard.compress, "zstd"),
    ],
)
def test_a_body_over_the_limit_is_refused_while_it_is_decompressed(
    compress: Callable[[bytes], bytes], coding: str
) -> None:
    page, limits = Encoded(compress(b"x" * 50_000_000), None, "html", (coding,)), Limits(1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(
            BrokenPage, match=f"over the limit: a body in {coding} of more than 1,048,576 bytes"
        ):
            extract(page, HERE, True, limits)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    small = Encoded(compress(b"<p>" + b"x" * 1_000_000), None, "html", (coding,))
    assert extract(small, HERE, True, limits).text == "x" * 1_000_000


def test_main_content_leaves_navigation_out() -> None:
    body = b"<main><h1>Head</h1><p>" + b"Words of the text. " * 20 + b"</p></main>"
    page = b"<title> A\n title </title><nav><a href=x>Home</a></nav>" + body
    found = extract(Encoded(page, None, "html"), HERE, main_content=True)
    assert found.title == "A title"
    assert "Home" not in found.text and "Head" in found.text and found.text.count("Words") == 20
    assert "Home" in extract(Encoded(page, None, "html"), HERE, main_content=False).text


def test_half_a_surrogate_pair_in_a_page_is_replaced() -> None:
    text_of(b"<p>a&#xd800;b").encode("utf-8")


def test_pages_of_the_sample_give_the_words_of_their_extracted_documents() -> None:
    with (ROOT / "data/sample/sample.jsonl").open(encoding="utf-8") as lines:
        records = {r["id"]: r for r in map(json.loads, lines)}
    shares = []
    for raw in records.values():
        if raw["kind"] == "raw_html" and (reference := records.get(raw["meta"]["text_id"])):
            found = extract(
                Encoded(raw["text"].encode(), None, "html"), HERE, main_content=True
            ).text
            words, wanted = set(found.split()), set(reference["text"].split())
            shares.append(len(words & wanted) / len(words | wanted))
    assert len(shares) >= 5 and sum(shares) / len(shares) > 0.97, shares
