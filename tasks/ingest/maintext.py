"""Extracts title and text of an HTML page (resiliparse), and keeps the lone characters that its
main content would lose.

Resiliparse leaves icons out of the main content: text nodes of one private-use character, three
UTF-8 bytes. Up to 2.0.1 it compares these bytes in the wrong order, and takes nearly every text
node of three bytes for an icon: one character (`<b>爱</b>`, `<td>水</td>`, `&mdash;`), or an ASCII
character and one of two bytes (`<i>né</i>`).

So the last character of such a node is spelled in ASCII: a control character that the page does not
contain, and one or two letters or digits. In the extracted text it is spelled back. This happens in
the source, before it is parsed: a walk over the tree would take several times as long as the
extraction. The tree and the extractor's decisions stay the same. To the parser both spellings are
text; neither is white space; and both have as many bytes, so lengths of text, by which clusters of
links are found, do not change. A match that is not a whole text node does no harm, because it is
spelled back too.

Rules of the extractor stay: it leaves out nodes of one private-use character (icon fonts) and of
one `¶` (links to a paragraph). Not found: CDATA in SVG and MathML; an ASCII character parted from
one of two bytes by a stray tag or NUL, or that is a control character given by reference.
"""

from __future__ import annotations

import html
import re
import string
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import NamedTuple

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from tasks.readers.pages import BrokenPage

THREE_BYTES = r"[\u0800-\ud7ff\uf900-\uffff]"
ASCII, TWO_BYTES = r"[\x01-\x08\x0e-\x1f!-\x7f]", r"[\x80-\u07ff]"
LOST = re.compile(f"{THREE_BYTES}|{ASCII}{TWO_BYTES}")
"""Text nodes that may be lost, without the blanks around them. Code points from U+D800 to U+F8FF
are private or no characters."""

BLANK = r"[\0\t\n\v\f\r ]*+"
BLANK_REFERENCE = (
    r"&(?:#0*+(?:9|1[0-3]|32)(?![0-9]);?|#[xX]0*+(?:9|[a-dA-D]|20)(?![0-9a-fA-F]);?|Tab;|NewLine;)"
)
BLANKS = rf"{BLANK}(?:{BLANK_REFERENCE}{BLANK})*+"
"""What the extractor strips, and NUL, which the parser drops."""

REFERENCE = "&#?[0-9A-Za-z]{1,32}+;?+"
NODE = re.compile(
    rf"({BLANKS})((?:{ASCII}|{REFERENCE})?)({THREE_BYTES}|{TWO_BYTES}|(?!{BLANK_REFERENCE}){REFERENCE})({BLANKS})"
)
"""The source of a text node of LOST: blanks, an ASCII character or none, the last character,
blanks."""

CANDIDATE = re.compile(
    # Tried at every tag of every page, so it looks at few characters.
    rf">({BLANK}(?:{THREE_BYTES}{BLANK}(?=[&<])|{ASCII}(?:{TWO_BYTES}|{REFERENCE}){BLANK}(?=[&<])"
    rf"|{REFERENCE}{BLANK}(?=[&<\x80-\uffff]|{ASCII}[&\x80-\u07ff]))[^<>]*+)<"
)
"""All of NODE between two tags, and little else."""

ASCII_HINT = re.compile(rf"&(?!(?:lt|gt|amp|quot);){REFERENCE[1:]}{BLANK}(?:<|\Z)")
"""What NODE ends with in a page of ASCII alone; there are far fewer of these than tags."""

CONTROLS = [chr(c) for c in (*range(0x01, 0x09), *range(0x0E, 0x20), 0x7F)]
CONTROL_REFERENCE = re.compile(
    r"&#(?:0*+([0-9]{1,3})(?![0-9])|[xX]0*+([0-9a-fA-F]{1,2})(?![0-9a-fA-F]))"
)
CODES = {
    2: list(string.digits),
    3: [a + b for a in string.ascii_letters for b in string.ascii_letters + string.digits],
}
"""What follows the control character, by the number of bytes that are spelled."""


class Node(NamedTuple):
    """A text node that may be lost: its last character, and the source before and after it."""

    before: str
    character: str
    after: str


def extract_text(page: str, main_content: bool) -> tuple[str | None, str]:
    """Title and text of an HTML page. Raises BrokenPage."""

    def read(source: str) -> tuple[str, str]:
        tree = HTMLTree.parse(source)
        return tree.title or "", extract_plain_text(tree, main_content=main_content)

    title, text = keep_lone_characters(page, read) if main_content else read(page)
    return " ".join(title.split()) or None, text


def keep_lone_characters(page: str, read: Callable[[str], tuple[str, str]]) -> tuple[str, str]:
    """What `read` extracts from a page in which text nodes of LOST are spelled differently, spelled
    back. Raises BrokenPage."""
    if page.isascii() and not any(map(_lost_node, set(_ends_in_references(page)))):
        return read(page)
    # Text and sources of nodes in turn. Text before the first tag and after the last one may be
    # nodes too.
    pieces = CANDIDATE.split(f">{page}<")
    sources = pieces[1::2]
    nodes = {source: node for source in dict.fromkeys(sources) if (node := _lost_node(source))}
    if not nodes:
        return read(page)
    control = _unused_control(page)
    codes = _codes(dict.fromkeys(node.character for node in nodes.values()))
    spellings = {source: f">{source}<" for source in sources}
    titles, texts = [], []
    for number in range(len(next(iter(codes.values())))):
        for source, node in nodes.items():
            code = codes[node.character][number]
            spellings[source] = f">{node.before}{control}{code}{node.after}<"
        pieces[1::2] = [spellings[source] for source in sources]
        title, text = read("".join(pieces)[1:-1])
        titles.append(title.split(control))
        texts.append(text.split(control))
    characters = {code: character for character, code in codes.items()}
    return _spell_back(titles, characters), _spell_back(texts, characters)


def _ends_in_references(page: str) -> Iterator[str]:
    """The source of text nodes that end in a reference, as all of NODE do in a page of ASCII
    alone."""
    begin = 0
    for hint in ASCII_HINT.finditer(page):
        begin = max(begin, page.rfind(">", begin, hint.start()) + 1)
        yield page[begin : hint.end()].removesuffix("<")
        begin = hint.end()


def _lost_node(source: str) -> Node | None:
    if node := NODE.fullmatch(source):
        blanks, first, last, after = node.groups()
        character = html.unescape(last)
        # References to characters that HTML forbids are nothing to `html`, but something to the
        # parser.
        if character and LOST.fullmatch(html.unescape(first) + character):
            return Node(blanks + first, character, after)
    return None


def _codes(characters: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """A code for each character. Where there are more of them, a code is of several rounds, in each
    of which a page is read."""
    by_bytes: dict[int, list[str]] = {2: [], 3: []}
    for character in characters:
        by_bytes[len(character.encode())].append(character)
    rounds = 1
    while any(len(CODES[size]) ** rounds < len(group) for size, group in by_bytes.items()):
        rounds += 1
    coded: dict[str, tuple[str, ...]] = {}
    for size, group in by_bytes.items():
        coded |= zip(group, product(CODES[size], repeat=rounds), strict=False)
    return coded


def _unused_control(page: str) -> str:
    """A control character that neither a page nor a reference in it contains. Raises BrokenPage."""
    referred = {
        chr(int(decimal) if decimal else int(digits, 16))
        for decimal, digits in CONTROL_REFERENCE.findall(page)
    }
    for control in CONTROLS:
        if control not in page and control not in referred:
            return control
    raise BrokenPage("broken HTML: every control character occurs in it")


def _spell_back(rounds: list[list[str]], characters: dict[tuple[str, ...], str]) -> str:
    """One text of what each round read, split before its codes. The rounds differ in nothing
    else."""
    codes = zip(
        *([piece[: 1 if piece[0].isdigit() else 2] for piece in pieces[1:]] for pieces in rounds),
        strict=True,
    )
    first, *others = rounds[0]
    return first + "".join(
        characters[code] + piece[len(code[0]) :] for code, piece in zip(codes, others, strict=True)
    )
