"""The text of documents is extracted whole and in order, and what cannot be read is one fault."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.ingest.pagetext import EXTRACTORS, read_page
from tasks.readers.formats import DOCUMENTS as KINDS
from tasks.readers.pages import BrokenPage, Encoded, PageText, extract
from tasks.readers.recordlimits import Limits
from tests.support.data.document_files import (
    DOCUMENTS,
    FIRST,
    SECOND,
    docx,
    epub,
    mail,
    notebook,
    odt,
    paragraph,
    pdf,
    wiki,
)
from tests.support.data.ingested import quarantine
from tests.support.data.input_files import as_zip
from tests.support.data.make_artifacts import empty_dir, ingest_files, read_documents


class Here:
    """A sandbox that calls in this process."""

    def call(self, data: bytes) -> bytes:
        return read_page(data)


def read(kind: str, data: bytes, limits: Limits = Limits(1 << 24)) -> PageText:  # noqa: B008
    return extract(Encoded(data, None, kind), Here(), main_content=True, limits=limits)  # type: ignore[arg-type]


def test_the_same_text_is_read_from_every_format(tmp_path: Path) -> None:
    empty_dir(tmp_path / "in")
    for name, data in DOCUMENTS.items():
        (tmp_path / "in" / name).write_bytes(data)
    made = ingest_files(tmp_path, "out", [tmp_path / "in"])
    texts = {r["source_id"]: r["text"] for r in read_documents(made)}
    assert set(texts) == set(DOCUMENTS) and not quarantine(made)
    for name, text in texts.items():
        assert [line for line in text.split("\n") if line.strip()] == [FIRST, SECOND], name
    facts = {r["source_id"]: r for r in read_documents(made)}
    assert facts["r.docx"]["language"] == "de"
    assert json.loads(facts["r.epub"]["metadata"])["license"] == "CC-BY-4.0"
    assert [json.loads(facts[n]["metadata"])["title"] for n in ("r.docx", "r.epub", "r.eml")] == [
        "A title"
    ] * 3


def test_pages_of_a_pdf_are_in_order_and_broken_words_are_joined() -> None:
    pages = [["First page, with a hyphen-", "ated word and a well-", "Known name"], ["Second page"]]
    text = read("pdf", pdf(pages)).text
    assert text.replace("\n\n", "\n").split("\n") == [
        "First page, with a hyphenated word and a well-Known name",
        "Second page",
    ]


def test_tables_and_marks_of_office_documents_become_signs() -> None:
    cell = "<w:tc>{}</w:tc>".format
    row = f"<w:tr>{cell(paragraph('a') + paragraph('b'))}{cell(paragraph('c'))}</w:tr>"
    rest = (
        "<w:p><w:pPr><w:t>no</w:t></w:pPr><w:r><w:t>one</w:t><w:tab/><w:t>two</w:t><w:br/>"
        "<w:t>three</w:t><w:delText>no</w:delText></w:r>"
        "<w:moveFrom><w:r><w:t>no</w:t></w:r></w:moveFrom></w:p>"
    )
    found = read("docx", docx(f"<w:tbl>{row}</w:tbl>{rest}")).text
    assert found == "a b\tc\n\none\ttwo\nthree\n"
    body = (
        "<text:tracked-changes><text:p>no</text:p></text:tracked-changes>"
        "<text:p>one<text:tab/>two<text:s text:c='3'/>three<text:line-break/>"
        "<text:span>four</text:span> five<text:note><text:p>no</text:p></text:note> six</text:p>"
    )
    assert read("odt", odt(body)).text == "one\ttwo   three\nfour five six\n"


@pytest.mark.parametrize(
    ("headers", "body", "wanted"),
    [
        (["Content-Type: text/plain; charset=iso-8859-1"], "größer".encode("latin-1"), "größer"),
        (["Content-Transfer-Encoding: quoted-printable"], b"gr=C3=B6=C3=9Fer", "größer"),
        (["Content-Transfer-Encoding: base64"], b"Z3LDtsOfZXI=", "größer"),
        (["Content-Type: text/html"], b"<p>one<p>two", "one\n\ntwo"),
        (
            ["Content-Type: multipart/mixed; boundary=B"],
            b"--B\n\nbody\n--B\nContent-Type: text/html\n\n<p>other\n"
            b"--B\nContent-Disposition: attachment; filename=a.txt\n\nattached\n--B--\n",
            "body\n\nother",
        ),
        (
            ["Content-Type: multipart/mixed; boundary=B"],
            b"--B\n\nbody\n--B\nContent-Disposition: attachment\n\nattached\n--B--\n",
            "body",
        ),
        (
            ["Content-Type: multipart/alternative; boundary=B"],
            b"--B\n\n \n--B\nContent-Type: text/html\n\n<p>page\n--B--\n",
            "page",
        ),
        (
            ["Content-Type: multipart/mixed; boundary=B"],
            b"--B\nContent-Type: text/html\n\n<p>page\n--B\n\nfooter\n--B--\n",
            "page\n\nfooter",
        ),
        (
            ["Content-Type: multipart/mixed; boundary=B"],
            b"--B\n\nbody\n--B\nContent-Disposition: attachment\nContent-Type: message/rfc822\n\n"
            b"Subject: x\n\nanother mail\n--B--\n",
            "body",
        ),
        (
            ["Content-Type: multipart/alternative; boundary=B"],
            b"--B\nContent-Type: multipart/related; boundary=C\n\n--C\nContent-Type: text/html\n\n"
            b"<p>page\n--C--\n--B\n\nplain\n--B--\n",
            "plain",
        ),
        (["Content-Type: application/pdf"], b"%PDF", ""),
    ],
)
def test_the_body_of_a_mail_is_its_text(headers: list[str], body: bytes, wanted: str) -> None:
    assert read("mail", mail(body, *headers)).text.strip() == wanted


def test_headers_of_mails_are_decoded() -> None:
    data = (
        b"Subject: =?utf-8?B?R3LDtsOfZQ==?= x =?nonsense?Q?y?=\n"
        b"Date: Tue, 01 Dec 2020 10:00:00 +0100\n\nx"
    )
    found = read("mail", data)
    assert found.title == "Größe x y" and found.values == {"added": "2020-12-01T10:00:00+01:00"}


def test_a_damaged_subject_costs_only_the_title() -> None:
    for subject in (b"=?utf-8?B?abcde?=", b"=?utf-8?B?=?=", b"=?utf-8?Q?=ZZ?=", b"\xff\xfe"):
        found = read("mail", b"Date: x\nSubject: " + subject + b"\n\nbody")
        assert found.text == "body"
    assert read("mail", b"Subject: =?utf-8?B?abcde?=\n\nbody").title is None


TIMES = [f"00:00:0{i},000 --> 00:00:0{i},900" for i in range(4)]


@pytest.mark.parametrize("head", ["", "WEBVTT\n\n"])
@pytest.mark.parametrize(
    "cues",
    [
        f"1\n{TIMES[0]}\nHi\n\n2\n{TIMES[1]}\nyou\n",
        f"1\n{TIMES[0]}\nHi\n2\n{TIMES[1]}\nyou\n",
        f"1\n{TIMES[0]}\nHi\n \t\n2 \n{TIMES[1]}\nyou\n",
        f"1\n{TIMES[0]}\n\n2\n{TIMES[1]}\nHi\n\n3\n{TIMES[2]}\n4\n{TIMES[3]}\nyou",
        f"{TIMES[0]}\nHi\n\n{TIMES[1]}\nyou\n",
    ],
)
def test_numbers_of_subtitles_are_no_speech(head: str, cues: str) -> None:
    for ends in ("\n", "\r\n"):
        data = (head + cues).replace("\n", ends).encode()
        assert read("subtitles", data).text == "Hi\nyou"


def test_numbers_that_are_spoken_stay() -> None:
    source = f"1\n{TIMES[0]}\nIn\n1984\n\n2\n{TIMES[1]}\n\nafter a blank\n\n3\n{TIMES[2]}\n42\n"
    assert read("subtitles", source.encode()).text == "In\n1984\nafter a blank\n42"


def test_notes_of_webvtt_are_no_speech() -> None:
    source = f"WEBVTT\n\nfirst\n{TIMES[0]}\nHi\n\nNOTE no\nno\n\nsecond\n{TIMES[1]}\n7\n\nthird\n"
    assert read("subtitles", source.encode()).text == "Hi\n7"


def test_code_of_a_notebook_is_fenced() -> None:
    cells = [("markdown", "# Title\ntext"), ("code", "x = 1\ny = 2"), ("raw", "no"), ("code", " ")]
    assert read("notebook", notebook(cells)).text == "# Title\ntext\n\n```python\nx = 1\ny = 2\n```"


@pytest.mark.parametrize("metadata", [None, {}, {"kernelspec": None}, {"kernelspec": {}}])
def test_a_notebook_without_a_language_is_read(metadata: Any) -> None:
    cells = [{"cell_type": "code", "source": ["x = 1"]}, {"cell_type": "markdown", "source": None}]
    data = json.dumps({"cells": cells, "metadata": metadata}).encode()
    assert read("notebook", data).text == "```\nx = 1\n```"


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (r"a \href{https://a.example}{link}, \hyperref[here]{there}", "a link, there"),
        (
            r"run \verb|make a_b|:\begin{verbatim}x = {1} % one\end{verbatim}",
            "run make a_b:x = {1} % one",
        ),
        (r"\title{Boats}\author{A}\maketitle of \today now", "Boats\n\nof now"),
        (r"\part{A}\chapter*{B}\paragraph[c]{C} d\cite[p. 1]{e}, \pageref{f}", "A\n\nB\n\nC\n\nd,"),
        (r"\begin{thebibliography}{9}\bibitem[k]{l} One\end{thebibliography}", "One"),
        (
            r"\begin{figure}\includegraphics[width=1]{a.png}\caption[no]{A boat}\end{figure}",
            "A boat",
        ),
        (r"a\begin{comment}no\end{comment}\begin{minipage}[t]{0.5em}b\end{minipage}", "ab"),
    ],
)
def test_macros_of_latex_become_what_a_reader_sees(source: str, wanted: str) -> None:
    assert read("latex", source.encode()).text == wanted


def test_a_wiki_page_is_its_words() -> None:
    source = (
        "{{Infobox|a=b}}'''Boat''' is a [[vessel|thing]].<ref>no</ref>"
        " [[File:a.jpg|thumb|no [[x]]]][[Category:No]]\n\n== Use ==\n"
        "* [https://a.example words] &amp; more<!-- no --> __NOTOC__\n"
    )
    text = read("wikitext", source.encode()).text
    assert "no" not in text.lower() and text.startswith("Boat is a thing.")
    assert "Use" in text.split("\n") and "words & more" in text


def test_a_long_article_is_read_whole() -> None:
    line = "[[a|Words]] of '''it'''.<ref>{{cite|u=x}}</ref> [[File:a.jpg|thumb|[[x]]]]\n"
    text = read("wikitext", (line * 1500).encode()).text
    assert text.split("\n") == ["Words of it."] * 1500


@pytest.mark.parametrize("kind", [kind for kind in EXTRACTORS if kind != "wikitext"])
def test_what_is_no_document_is_a_fault(kind: str) -> None:
    for data in (b"", b"\x00\x01\x02", b"PK\x03\x04"):
        if kind == "latex":
            continue  # any text is one
        with pytest.raises(BrokenPage, match=f"unreadable {kind}"):
            read(kind, data)


def test_a_document_that_expands_beyond_the_limit_is_a_fault() -> None:
    huge = docx(paragraph("x" * 5_000_000))
    assert len(huge) < 100_000
    with pytest.raises(BrokenPage, match="over the limit: the content of a zipped document"):
        read("docx", huge, Limits(1 << 20))
    entities = "<!DOCTYPE x [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;'>]><x>&b;</x>"
    with pytest.raises(BrokenPage, match="unreadable docx: damaged"):
        read("docx", as_zip({"word/document.xml": entities.encode()}))


def test_a_chapter_that_is_missing_is_a_fault_and_no_shorter_book() -> None:
    data = epub(["<p>one", "<p>two"])
    with pytest.raises(BrokenPage, match="unreadable epub: damaged"):
        read("epub", data.replace(b"1 c.xhtml", b"1 d.xhtml"))
    spine = b'<spine><itemref idref="c0"/></spine>'
    package = b"<package><manifest/>" + spine + b"</package>"
    container = b"<container><rootfile full-path='b.opf'/></container>"
    listed = as_zip({"META-INF/container.xml": container, "b.opf": package})
    with pytest.raises(BrokenPage, match="a chapter of its spine is missing"):
        read("epub", listed)


MORE: dict[str, bytes] = {"r.pdf": pdf([["one", "two"], ["three"]])} | DOCUMENTS


@pytest.mark.parametrize(("member", "is_read"), [("OPS/1%20c.xhtml", False), ("OPS/a.otf", True)])
def test_a_book_is_read_unless_a_chapter_is_encrypted(member: str, is_read: bool) -> None:
    with zipfile.ZipFile(io.BytesIO(epub(["<p>one", "<p>two"]))) as book:
        members = {name: book.read(name) for name in book.namelist()}
    stated = f'<e xmlns:c="x"><c:CipherReference URI="{member}"/></e>'
    data = as_zip(members | {"META-INF/encryption.xml": stated.encode()})
    if is_read:
        assert read("epub", data).text == "one\n\ntwo"
    else:
        with pytest.raises(BrokenPage, match="unreadable epub: a chapter is encrypted"):
            read("epub", data)


BY_ENDING = {"docx": "docx", "odt": "odt", "epub": "epub", "eml": "mail", "ipynb": "notebook"}
BY_ENDING |= {"tex": "latex", "srt": "subtitles", "vtt": "subtitles", "pdf": "pdf"}


@pytest.mark.parametrize("name", MORE)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), max_size=6),
    st.floats(0, 1),
)
def test_damaged_documents_are_texts_or_faults(
    name: str, flips: list[tuple[float, int]], kept: float
) -> None:
    data = bytearray(MORE[name])
    for frac, bit in flips:
        data[int(len(data) * frac)] ^= 1 << bit
    for damaged in (bytes(data), bytes(data[: int(len(data) * kept)])):
        try:
            assert isinstance(read(BY_ENDING[name.partition(".")[2]], damaged).text, str)
        except BrokenPage as error:
            assert str(error).startswith(("unreadable", "over the limit"))


def test_every_kind_that_a_reader_gives_has_an_extractor() -> None:
    assert {*KINDS, "wikitext"} - {"html"} == set(EXTRACTORS)


def test_wiki_dumps_and_mailboxes_are_read_to_the_end(tmp_path: Path) -> None:
    pages = [("", f"Text '''{i}''' of it.") for i in range(4)]
    pages += [("<ns>1</ns>", "talk"), ('<redirect title="T0"/>', "#REDIRECT [[T0]]")]
    data: dict[str, Any] = {
        "w.xml": wiki(pages),
        "m.mbox": b"".join(
            b"From a@b Sun Nov 29 07:54:49 2026\nMessage-ID: <%d@x>\nSubject: s\n\n"
            b"Text %d of it.\n>From x\n\n" % (i, i)
            for i in range(4)
        ),
    }
    for name, content in data.items():
        (tmp_path / name).write_bytes(content)
    made = ingest_files(tmp_path, "out", list(map(str, (tmp_path / n for n in data))))
    rows = read_documents(made)
    assert [r["text"].strip() for r in rows[4:]] == [f"Text {i} of it." for i in range(4)]
    assert [r["text"].strip() for r in rows[:4]] == [f"Text {i} of it.\nFrom x" for i in range(4)]
    assert [r["source_id"] for r in rows] == [*(f"{i}@x" for i in range(4)), *"0123"]
    assert rows[4]["added_at"] == "2020-01-01T00:00:00Z"
    assert json.loads(rows[4]["metadata"]) == {"title": "T0"}
    assert made.counters["skipped"] == {"wiki_other_namespace": 1, "wiki_redirect": 1}
