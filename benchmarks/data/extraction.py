"""Measures what the extraction of pages keeps, against trafilatura and lxml.

`python -m benchmarks.data.extraction FOLDER`: FOLDER holds unpacked Debian packages
(`dpkg -x`): debian-handbook, installation-guide-amd64, and libreoffice-help-{dz,el,hi,km,ko,ru}.
Their three templates name the part of a page that is its main content, which lxml cuts out; the
rest of the visible text is boilerplate. Reported by script: the share of both that each extractor
keeps, in windows of eight characters without blanks; and the share of tables, lists and code.
`trafilatura` must be installed. The last line is JSON.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from lxml import etree, html

from llm_core.printing import percent, show
from tasks.ingest.maintext import extract_text

PAGES_PER_SCRIPT, WINDOW_CHARS, LEAST_CHARS = 25, 8, 400
HANDBOOK = "debian-handbook/usr/share/doc/debian-handbook/html"
GUIDE = "installation-guide-amd64/usr/share/doc/installation-guide-amd64"
HELP = "libreoffice-help-{0}/usr/share/libreoffice/help/{0}/text/shared"
SCRIPTS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "LATIN": (("LATIN",), (f"{HANDBOOK}/de-DE", f"{GUIDE}/fr", f"{HANDBOOK}/vi-VN")),
    "CYRILLIC": (("CYRILLIC",), (f"{HANDBOOK}/ru-RU", f"{GUIDE}/ru", HELP.format("ru"))),
    "GREEK": (("GREEK",), (f"{GUIDE}/el", HELP.format("el"))),
    "ARABIC": (("ARABIC",), (f"{HANDBOOK}/ar-MA", f"{HANDBOOK}/fa-IR")),
    "DEVANAGARI": (("DEVANAGARI",), (HELP.format("hi"),)),
    "TIBETAN": (("TIBETAN",), (HELP.format("dz"),)),
    "KHMER": (("KHMER",), (HELP.format("km"),)),
    "HANGUL": (("HANGUL",), (f"{HANDBOOK}/ko-KR", f"{GUIDE}/ko", HELP.format("ko"))),
    "JAPANESE": (("HIRAGANA", "KATAKANA", "CJK"), (f"{HANDBOOK}/ja-JP", f"{GUIDE}/ja")),
    "HAN": (("CJK",), (f"{HANDBOOK}/zh-CN", f"{GUIDE}/zh_CN", f"{HANDBOOK}/zh-TW")),
}
"""{script: (beginnings of the Unicode names of its letters, folders)}."""
NOT_MAIN = (
    "//*[@class='navheader' or @class='navfooter' or @id='banner' or @id='title']"
    " | //ul[starts-with(@class, 'docnav')] | //header | //aside | //footer"
    " | //*[@id='SearchFrame' or @id='DonationFrame']"
)
UNSEEN = "//script | //style | //head | //*[@hidden] | //comment() | //noscript"
ELEMENTS = {"tables": "//table", "lists": "//ul | //ol | //dl", "code": "//pre | //code"}


def pages(root: Path, letters: tuple[str, ...], folders: tuple[str, ...]) -> Iterator[str]:
    """Pages that are mostly in a script, as many of each folder, evenly over its names."""
    for folder in folders:
        files = sorted((root / folder).rglob("*.html"))
        wanted, found = -(-PAGES_PER_SCRIPT // len(folders)), 0
        for i in sorted(range(len(files)), key=lambda i: (i * 7919) % len(files)):
            source = files[i].read_text("utf-8", "replace")
            text = split_page(source)[0]
            if found < wanted and len(text) >= LEAST_CHARS and is_in(text, letters):
                found += 1
                yield source


def is_in(text: str, letters: tuple[str, ...]) -> bool:
    names = [unicodedata.name(c, "") for c in text if c.isalpha()]
    return 2 * sum(name.startswith(letters) for name in names) > len(names)


def split_page(source: str) -> tuple[str, str, dict[str, str]]:
    """Main content, boilerplate, and the text of kinds of elements in the main content."""
    tree = html.document_fromstring(source.encode(), parser=html.HTMLParser(encoding="utf-8"))
    _remove(tree, UNSEEN)
    others = [text_of(e) for e in tree.xpath(NOT_MAIN)]
    _remove(tree, NOT_MAIN)
    kinds = {k: "".join(text_of(e) for e in tree.xpath(path)) for k, path in ELEMENTS.items()}
    return text_of(tree), "".join(others), kinds


def _remove(tree: html.HtmlElement, path: str) -> None:
    for element in tree.xpath(path):
        if element.getparent() is not None:
            element.drop_tree()


def text_of(element: html.HtmlElement) -> str:
    return "".join("".join(element.itertext()).split())


def windows(text: str) -> set[str]:
    text = "".join(text.split())
    return {text[i : i + WINDOW_CHARS] for i in range(max(0, len(text) - WINDOW_CHARS + 1))}


def main() -> None:
    from trafilatura import extract

    root = Path(sys.argv[1])
    extractors: dict[str, Callable[[str], str]] = {
        "textmill": lambda page: extract_text(page, True)[1],
        "all text": lambda page: extract_text(page, False)[1],
        "trafilatura": lambda page: extract(page, include_comments=False) or "",
    }
    counts: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    num_pages: dict[str, int] = {}
    for script, (letters, folders) in SCRIPTS.items():
        for source in pages(root, letters, folders):
            num_pages[script] = num_pages.get(script, 0) + 1
            main_text, others, kinds = split_page(source)
            wanted = windows(main_text)
            parts = {"main": wanted, "boilerplate": windows(others) - wanted}
            parts |= {kind: windows(text) for kind, text in kinds.items()}
            for name, read in extractors.items():
                got = windows(read(source))
                for part, expected in parts.items():
                    for group in (script, "all"):
                        kept = counts[group, name, part]
                        kept[0] += len(expected & got)
                        kept[1] += len(expected)
    shares = {
        script: {
            name: {
                part: round(
                    counts[script, name, part][0] / max(1, counts[script, name, part][1]), 4
                )
                for part in ("main", "boilerplate", *ELEMENTS)
            }
            for name in extractors
        }
        for script in (*num_pages, "all")
    }
    num_pages["all"] = sum(num_pages.values())
    show("script       pages  " + "  ".join(f"{name:>22}" for name in extractors))
    for script, of in shares.items():
        cells = (
            f"{percent(of[n]['main'], '.1'):>10}{percent(of[n]['boilerplate'], '.1'):>12}"
            for n in extractors
        )
        show(f"{script:12} {num_pages[script]:>5}  " + "  ".join(cells))
    show(json.dumps({"pages": num_pages, "shares": shares, "lxml": etree.LXML_VERSION}))


if __name__ == "__main__":
    main()
