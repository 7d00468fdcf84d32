"""Text nodes of few characters, in many scripts, survive in the main content of a page; all else is
as the extractor has it."""

from __future__ import annotations

import json
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from tasks.ingest.maintext import CODES, CONTROLS, extract_text, keep_lone_characters
from tasks.ingest.sources import HtmlConfig
from tasks.readers.pages import READ_PAGE, BrokenPage, Encoded, extract
from tasks.runtime.sandbox import Sandbox
from tests.support.data.input_files import http_response, warc_record
from tests.support.data.make_artifacts import ingest_files, read_documents

WORDS = "Words enough that the paragraph is not taken for anything else."


def main_text(page: str) -> str:
    return extract_text(page, main_content=True)[1]


def plain(main_content: bool, page: str) -> tuple[str, str]:
    """What resiliparse makes of a page by itself."""
    tree = HTMLTree.parse(page)
    return tree.title or "", extract_plain_text(tree, main_content=main_content)


class VisibleText(HTMLParser):
    """The text of `<main>`, by the parser of the standard library."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.depth, self.text = 0, ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.depth += tag == "main"

    def handle_endtag(self, tag: str) -> None:
        self.depth -= tag == "main"

    def handle_data(self, data: str) -> None:
        self.text += data if self.depth else ""


def visible(text: str) -> str:
    return "".join(text.replace("•", "").split())


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("<p>我<b>爱</b>你们，今<a href=x>天</a>气", "我爱你们，今天气"),
        ("<p><ruby>東<rt>とう</rt>京<rt>きょう</rt></ruby>へ", "東とう京きょうへ"),
        ("<p><ruby>漢<rp>(</rp><rt>か</rt><rp>)</rp></ruby>", "漢(か)"),
        ("<p><code>httpd</code>와 <code>x</code>의 설정", "httpd와 x의 설정"),
        ("<p>ก<b>า</b>ร <i>ๆ</i>", "การ ๆ"),
        ("<p>a <b>—</b> b <span>€</span>5", "a — b €5"),
        ("<p>a<b>&mdash;</b>b<b>&#8364;</b>c<b>&#x2014</b>d<b>&#128;</b>", "a—b€c—d€"),
        (
            "<p>a<b> &#13;\n&rarr; </b>b<b>&#13;天&#13;&NewLine;</b><b>&#25105;&#32;</b>",
            "a → b 天 我",
        ),
        (
            "<p>voil<b>à</b> <i>né</i> <i>n&eacute;</i> <i>&#110;é</i> <i>5°</i>",
            "voilà né né né 5°",
        ),
        ("<table><tr><td>1&nbsp;</td><td>水</td></tr></table>", "1\xa0\t\t水"),
        ("<div><div><div><div><ul><li>水<li>火 </ul></div></div></div></div>", "  • 水\n  • 火"),
        ("<pre>\n  我\n</pre>", "  我"),
        ("我<br>你<br>他", "我\n你\n他"),
        ("<p>" + "".join(f"<span>{c}</span>" for c in "春眠不覚暁"), "春眠不覚暁"),
        (
            "<p>e<b>e\u0301</b> <b>👍</b><b>\u200d</b><b>🏽</b> <b>𠀀</b> <b>ا</b>",
            "ee\u0301 👍\u200d🏽 𠀀 ا",
        ),
        ("<p>a<b>\u2003</b>b<b>\u3000</b>c", "a\u2003b\u3000c"),
        ('<p>x<b><é</b><b>>é</b><b>&é</b><b>\x02é</b><b>"é</b><b>&lté</b>', 'x<é>é&é\x02é"é<é'),
        (
            "<p>" + "".join(f"<b>a{chr(c)}</b>" for c in range(0xC0, 0x130)),
            "".join(f"a{chr(c)}" for c in range(0xC0, 0x130)),
        ),
        ("<p>x<a title='>'é<b>y</a> z<b>我</b>", "xy z我"),
        ("<p>a<b>&mdash;&#1;</b><b>&#1;&mdash;</b><b>&#xfdd0;é</b>", "a—\x01\x01—\ufdd0é"),
        ("<math><mn>1</mn><mo>−</mo><mi>α</mi></math>", "1−α"),
        ("<p>a<img alt='> 我 <'>b", "a> 我 <b"),
    ],
)
def test_no_text_node_is_too_short_to_keep(body: str, text: str) -> None:
    assert main_text(body) == text
    assert main_text(f"<body><main>{body}</main></body>") == text
    assert extract_text(body, main_content=False)[1] == text


def test_a_title_of_one_character_is_kept() -> None:
    assert extract_text("<title> 我 </title><p>我", main_content=True) == ("我", "我")


def test_icons_and_paragraph_links_are_still_left_out() -> None:
    icons = (
        "<p>a<i>\ue001</i>b<i> \uf8ff </i>c<i>&#xe001;</i>d<a href=#d>¶</a><a href=#d>&para;</a>"
    )
    assert main_text(icons) == "abcd"
    assert main_text(icons + "<b>我</b>") == "abcd我"


def test_control_characters_of_a_page_stay_where_they_are() -> None:
    for used in (CONTROLS[:1], CONTROLS[:20], CONTROLS[1:]):
        raw = "".join(used)
        references = "".join(
            f"&#{ord(c)};" if i % 2 else f"&#x00{ord(c):x};" for i, c in enumerate(used)
        )
        assert main_text(f"<p>a{raw}aa<b>我</b>b{references}bb<b>你</b>") == f"a{raw}aa我b{raw}bb你"


def test_a_page_of_all_control_characters_is_broken_only_if_one_is_needed() -> None:
    raw = "".join(CONTROLS)
    assert main_text(f"<p>a{raw}我们") == f"a{raw}我们"
    with (
        Sandbox(READ_PAGE, 10.0, 1 << 30) as sandbox,
        pytest.raises(BrokenPage, match="every control character"),
    ):
        extract(Encoded(f"<p>a{raw}<b>我</b>".encode(), None, "html"), sandbox, main_content=True)


def test_a_table_of_more_characters_than_codes_is_kept() -> None:
    characters = [chr(c) for c in range(0x4E00, 0x4E00 + len(CODES[3]) + 5)]
    page = (
        "<title>一</title><main><table>"
        + "".join(f"<tr><td>{c}</td></tr>" for c in characters)
        + "</table></main>"
    )
    assert extract_text(page, main_content=True) == ("一", "\n".join(characters))


# zh, ja, ko, th, ar, en: single characters first, then words.
SCRIPTS = (
    ["我", "爱", "，", "。", "二", "今天", "天气很好"],
    ["の", "は", "ー", "、", "東", "京", "きょう", "日本語"],
    ["와", "의", "은", "를", "한국어", "설정"],
    ["ก", "า", "ๆ", "ไม่", "ภาษาไทย"],
    ["و", "ا", "،", "؟", "\u200f", "هذا", "العربية"],
    ["a", "I", "—", "’", "€", "é", "né", "5°", "to", "word", "&", "<", "e\u0301", "👍", "𝒜"],
)
SHORT = st.sampled_from(SCRIPTS).flatmap(
    lambda script: st.lists(st.sampled_from(script), min_size=1, max_size=3).map("".join)
)
SPACE = st.sampled_from(["", "", "", " ", "\n  ", "\xa0", "&#32;", "&nbsp;"])
SOURCE = st.one_of(SHORT.map(escape), SHORT.map(lambda text: "".join(f"&#{ord(c)};" for c in text)))
INLINE = st.sampled_from(["b", "em", "span", "code", "mark", "sub", "bdi", "ruby", "u"])


@st.composite
def inline(draw: st.DrawFn) -> str:
    text = draw(SPACE) + draw(SOURCE) + draw(SPACE)
    for tag in draw(st.lists(INLINE, max_size=2)):
        text = f"<{tag}>{text}</{tag}>"
    return text


BLOCK = st.one_of(
    st.lists(inline(), max_size=8).map(lambda texts: f"<p>{''.join(texts)}</p>"),
    st.lists(inline(), max_size=4).map(lambda texts: f"<pre>{''.join(texts)}</pre>"),
    st.lists(inline(), max_size=4).map(
        lambda texts: "<div><ul><li>" + "</li><li>".join(texts) + "</li></ul></div>"
    ),
    st.lists(inline(), max_size=4).map(
        lambda texts: "<table><tr><td>" + "</td><td>".join(texts) + "</td></tr></table>"
    ),
    st.lists(inline(), max_size=4).map(lambda texts: f"<h2>{'<br>'.join(texts)}</h2>"),
    st.tuples(SOURCE, SOURCE).map(
        lambda pair: f"<p><ruby>{pair[0]}<rp>(</rp><rt>{pair[1]}</rt><rp>)</rp></ruby></p>"
    ),
)


@given(st.lists(BLOCK, max_size=6), st.booleans())
def test_every_visible_character_of_the_main_region_survives(
    blocks: list[str], main_content: bool
) -> None:
    region = (
        "<main><article><div><div>"
        + "\n".join([f"<p>{WORDS}</p>", *blocks])
        + "</div></div></article></main>"
    )
    page = f"<html><body><nav>Home</nav>{region}<footer>Imprint</footer></body></html>"
    found = extract_text(page, main_content)[1]
    assert ("Home" in found, "Imprint" in found) == (not main_content, not main_content)
    if not main_content:
        found = found.removeprefix("Home").removesuffix("Imprint")
    assert visible(found) == visible(VisibleText(page).text)


NAMES = [
    "p",
    "b",
    "i",
    "a",
    "div",
    "ul",
    "ol",
    "li",
    "table",
    "td",
    "pre",
    "ruby",
    "rt",
    "title",
    "svg",
    "nav",
    "script",
    "foo",
]
TAGS = [f"<{end}{name}>" for name in NAMES for end in ("", "/")]
HALF_TAGS = ["<!-- ", " -->", "<a href='>", "'>", "<img alt='", "<![CDATA[", "]]>", "<", ">", "&"]
MARKUP = [*TAGS, *HALF_TAGS, "<br>", "&#13;", "\0", "\r\n", "\x01", " ", "\t"]
LONG, LONE = "w" * 300, ["é", "'é", "&nbsp;", "&eacute", "天", "…", "né", "1°", "\ue000", "¶"]
TEXTS = ["a", "ab", "word", "&amp;", "&#1;", "我们", "👍", LONG]


def soups(texts: list[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(MARKUP + texts), max_size=40)


@given(soups(TEXTS + LONE))
def test_spelling_there_and_back_changes_neither_text_nor_white_space(soup: list[str]) -> None:
    page = "".join(soup)
    assert keep_lone_characters(page, lambda source: plain(False, source)) == plain(False, page)


@given(soups(TEXTS))
def test_pages_without_such_text_nodes_give_what_they_gave(soup: list[str]) -> None:
    page = "".join(soup)
    assert keep_lone_characters(page, lambda source: plain(True, source)) == plain(True, page)


@given(soups([*TEXTS, "LONE", "LONE"]), st.sampled_from(["我", "né", "—"]))
def test_decisions_are_those_for_other_text_of_three_bytes(soup: list[str], lone: str) -> None:
    page = "".join(part for part in soup if part != "<")  # with Q it would be a tag
    title, text = (found.replace("QZJ", lone) for found in plain(True, page.replace("LONE", "QZJ")))
    assert keep_lone_characters(page.replace("LONE", lone), lambda source: plain(True, source)) == (
        title,
        text,
    )


LANGUAGES = {
    "zh": (
        "首页 新闻 关于",
        "版权所有",
        "昨天我<b>和</b>朋友去了<a href=x>湖</a>边<i>，</i>看见很多人在<span>钓</span>鱼。",
    ),
    "ja": (
        "ホーム 検索",
        "著作権",
        "昨日<ruby>東<rt>とう</rt>京<rt>きょう</rt></ruby><b>へ</b>行き<em>、</em>食事をした。",
    ),
    "ko": (
        "홈 소개 검색",
        "저작권",
        "<code>httpd</code>와 <a href=x>설정</a>의 자세한 내용<b>은</b> 아래<i>를</i> 참고하라.",
    ),
    "th": (
        "หน้าแรก ติดต่อ",
        "สงวนลิขสิทธิ์",
        "เด็ก<b>ๆ</b> ไป<i>ก</i>า<span>ร</span>เดินทาง<a href=x>ๆ</a> สนุกมาก",
    ),
    "ar": (
        "الرئيسية اتصل",
        "جميع الحقوق",
        "ذهبت<b>\u060c</b> <i>و</i>اشتريت <a href=x>ﷺ</a> خبزا<span>﴾</span> كثيرا",
    ),
    "en": (
        "Home News About",
        "All rights reserved",
        "It costs <b>€</b>5 <i>&mdash;</i> or <a href=x>5°</a> less<q>…</q>",
    ),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_pages_of_each_language_keep_their_text_and_lose_their_boilerplate(language: str) -> None:
    menu, rights, sentence = LANGUAGES[language]
    links = "".join(f"<li><a href=/{i}>{item}</a></li>" for i, item in enumerate(menu.split()))
    page = (
        f"<!DOCTYPE html><html lang={language}><head><meta"
        f" charset=utf-8><title>{menu}</title><script>x='>水<'</script></head>"
        f"<body><header><nav><ul>{links}</ul></nav></header><main><h1>{menu[:1]}</h1><p>{sentence}</p>\n<p>{sentence * 5}</p>"  # noqa: E501
        f"</main><aside>{menu}</aside><footer><p>{rights}</p></footer></body></html>"
    )
    with Sandbox(READ_PAGE, 10.0, 1 << 30) as sandbox:
        found = extract(Encoded(page.encode(), None, "html"), sandbox, main_content=True)
    assert visible(found.text) == visible(VisibleText(page).text)
    assert rights not in found.text and menu not in found.text and found.title == menu


def test_columns_responses_and_files_keep_short_text_alike(tmp_path: Path) -> None:
    page = f"<main><p>我<b>爱</b>你们 <i>né</i></p><p>{WORDS}</p></main>"
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": page}))
    (tmp_path / "b.html").write_text(page)
    response = http_response(page.encode(), "Content-Type: text/html")
    record = warc_record(
        "response", response, WARC_Record_ID="<c>", Content_Type="application/http"
    )
    (tmp_path / "c.warc").write_bytes(record)
    files = [tmp_path / name for name in ("a.jsonl", "b.html", "c.warc")]
    rows = read_documents(ingest_files(tmp_path, "out", files, text_kind="html", html=HtmlConfig()))
    assert [row["text"] for row in rows] == [f"我爱你们 né\n\n{WORDS}"] * 3
